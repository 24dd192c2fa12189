"""Streams that break on one engine and go on on another: is the text the one of the unbroken answer?

Between the router and each engine stands a relay that resets connections in the middle of streams, each at a place of its own; one
engine also gets SIGKILL with all that it has in flight. Greedy, float32, by token ids. Texts can still differ where two logits are equal
to the last bits: an engine's sums depend on what else is in its batch.
"""
import json
import random
import socket
import struct
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from drive import text
from fleet import MODEL, free_port

STREAMS = 200
EQUAL_BAR = 0.98
"""Streams whose text is that of the unbroken answer: at least this share."""
IN_FLIGHT = 6
TOKENS = 40


@dataclass
class Relay:
    """Passes TCP on to one engine. Each stream of events is reset behind a number of events, as long as `cutting` is set."""

    target: int
    seed: int
    port: int = field(default_factory=free_port)
    cutting: bool = True
    cuts: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "Relay":
        self.random = random.Random(self.seed)
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            engine = socket.create_connection(("127.0.0.1", self.target), timeout=10)
        except OSError:
            return _reset(client)
        engine.settimeout(None)
        threading.Thread(target=_copy, args=(client, engine), daemon=True).start()
        left = TOKENS
        try:
            while data := engine.recv(65536):
                if data.startswith(b"HTTP/1.1 "):
                    # An answer that has not begun is tried again elsewhere: that is another promise.
                    with self.lock:
                        left = self.random.randint(1, TOKENS + 2)
                    client.sendall(data)
                    continue
                left -= data.count(b'"token_ids":[')
                if self.cutting and left <= 0:
                    with self.lock:
                        self.cuts += 1
                    # Half of what came is lost on the way, in the middle of an event.
                    client.sendall(data[: len(data) // 2])
                    time.sleep(0.005)
                    break
                client.sendall(data)
            else:
                client.shutdown(socket.SHUT_WR)
                return
        except OSError:
            pass
        _reset(client)
        _reset(engine)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    # The router has closed: so does the engine's client.
    try:
        sink.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def _reset(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Wakes the thread that waits for bytes of it: the kernel keeps a socket open that is being read.
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    try:
        sock.close()
    except OSError:
        pass


@dataclass
class Story:
    """What a client makes of a stream."""

    text: str = ""
    finish: str | None = None
    usage: tuple[int, int] | None = None
    ids: set = field(default_factory=set)
    roles: int = 0
    done: bool = False
    error: str | None = None
    strange: str | None = None


def _body(number: int) -> tuple[str, dict]:
    common = dict(
        model=MODEL, stream=True, temperature=0.0, max_tokens=TOKENS, ignore_eos=number % 2 == 0, stream_options={"include_usage": True}
    )
    prompt = text(f"resume {number}", 12 + number % 40)
    if number % 4 == 3:
        return "/v1/completions", common | {"prompt": prompt}
    return "/v1/chat/completions", common | {"messages": [{"role": "user", "content": prompt}]}


def read(url: str, number: int) -> Story:
    """Sends request number `number` and reads its stream."""
    path, body = _body(number)
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    story = Story()
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            for line in answer:
                _take(story, line.decode().strip())
    except OSError as error:
        story.error = story.error or str(error)
    return story


def _take(story: Story, line: str) -> None:
    if not line.startswith("data: "):
        return
    if line == "data: [DONE]":
        story.done = True
        return
    event = json.loads(line[6:])
    if "error" in event:
        story.error = json.dumps(event["error"])
        return
    story.ids.add((event["id"], event["created"], event["object"]))
    if event.get("usage"):
        story.usage = (event["usage"]["prompt_tokens"], event["usage"]["completion_tokens"])
    if event.get("prompt_token_ids"):
        story.strange = "prompt ids"
    for choice in event["choices"]:
        if choice.get("token_ids") or choice.get("prompt_token_ids"):
            story.strange = "ids"
        delta = choice.get("delta") or {}
        story.roles += bool(delta.get("role"))
        story.text += delta.get("content") or choice.get("text") or ""
        story.finish = choice.get("finish_reason") or story.finish


@dataclass
class Result:
    """All streams of the run."""

    equal: int = 0
    streams: int = 0
    cuts: int = 0
    in_flight_at_kill: float = 0.0
    broken: list[str] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)
    usage_unequal: int = 0


def run(url: str, direct: str, relays: list[Relay], kill, streams: int = STREAMS) -> Result:
    """Runs the streams through the router at `url`; `direct` is an engine that is never cut. `kill` is called once, in the middle."""
    result, begun, lock = Result(streams=streams), 0, threading.Lock()

    def one(number: int) -> tuple[int, Story]:
        nonlocal begun
        with lock:
            begun += 1
            now = begun == streams * 3 // 4
        if now:
            threading.Timer(0.3, kill).start()
        return number, read(url, number)

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        unbroken = dict(pool.map(lambda n: (n, read(direct, n)), range(streams)))
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for number, story in pool.map(one, range(streams)):
            want = unbroken[number]
            assert not want.error, want.error
            chat = _body(number)[0].endswith("chat/completions")
            if story.error or not story.done:
                result.broken.append(f"{number}: {story.error or 'no [DONE]'}")
            elif len(story.ids) != 1 or story.roles != int(chat) or story.strange or not story.finish:
                result.malformed.append(f"{number}: {story}")
            elif (story.text, story.finish) != (want.text, want.finish):
                result.unequal.append(f"{number}: {story.text!r} instead of {want.text!r}")
            else:
                result.equal += 1
                result.usage_unequal += story.usage != want.usage
    result.cuts = sum(relay.cuts for relay in relays)
    return result
