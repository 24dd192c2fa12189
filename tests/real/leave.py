"""Clients that leave: how long until no engine works for them any more."""
import json
import socket
import time
from collections.abc import Callable

from drive import text
from fleet import MODEL, Replica

BOUND_MS = 1000.0
LONG_ANSWER = 2500
"""Tokens: an answer that takes far longer than the bound."""


class LeaveError(Exception):
    """The phase could not be reached, or the engine never became idle."""


def _send(port: int, prompt: str, stream: bool, max_tokens: int) -> socket.socket:
    body = json.dumps({
        "model": MODEL, "stream": stream, "max_tokens": max_tokens, "ignore_eos": True, "messages": [{"role": "user", "content": prompt}],
    }).encode()
    sock = socket.create_connection(("127.0.0.1", port), timeout=30.0)
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    return sock


def _busy(replicas: list[Replica]) -> float:
    return sum(replica.busy() for replica in replicas)


def _until(condition: Callable[[], bool], deadline_s: float, what: str) -> float:
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > deadline_s:
            raise LeaveError(f"{what}: not within {deadline_s:.0f} s")
        time.sleep(0.02)
    return 1000 * (time.monotonic() - begin)


def _idle_after(replicas: list[Replica], phase: str) -> float:
    return _until(lambda: _busy(replicas) == 0, 30.0, f"engines idle after clients left ({phase})")


def queued(port: int, replicas: list[Replica]) -> float:
    """Many long prompts at once; all leave before an answer begins, most while they wait for their turn."""
    socks = [_send(port, text(f"queued {time.time()} {n}", 600), n % 2 == 0, 64) for n in range(24)]
    try:
        _until(lambda: _busy(replicas) >= 4, 20.0, "requests reach the engines (queued)")
        early = sum(_has_bytes(sock) for sock in socks[1::2])
        if early == len(socks) // 2:
            raise LeaveError("all answers came before the clients could leave")
    finally:
        for sock in socks:
            sock.close()
    return _idle_after(replicas, "queued")


def _has_bytes(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def mid_stream(port: int, replicas: list[Replica]) -> float:
    """One stream, left after its first tokens."""
    with _send(port, text("stream", 50), True, LONG_ANSWER) as sock:
        got = b""
        while got.count(b"data:") < 5:
            part = sock.recv(65536)
            if not part:
                raise LeaveError(f"the stream ended early: {got[-300:]!r}")
            got += part
        if _busy(replicas) != 1:
            raise LeaveError("the engine is not at work in the middle of a stream")
    return _idle_after(replicas, "mid_stream")


def non_streaming(port: int, replicas: list[Replica]) -> float:
    """One long answer without streaming, left while the engine writes it."""
    with _send(port, text("whole", 50), False, LONG_ANSWER):
        _until(lambda: _busy(replicas) == 1, 20.0, "the request reaches the engine (non_streaming)")
        time.sleep(0.5)
        if _busy(replicas) != 1:
            raise LeaveError("the answer was over before the client could leave")
    return _idle_after(replicas, "non_streaming")


PHASES = {"queued": queued, "mid_stream": mid_stream, "non_streaming": non_streaming}
