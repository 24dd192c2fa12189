"""Predicted against actual cached tokens on real vLLM with KV events. See README.md; started by `exact`."""
import argparse
import http.client
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from drive import text
from fleet import MODEL, FleetError, Process, Replica, Router, free_port, stop_all

BLOCK = 32
KV_BLOCKS = 160
"""5,120 tokens a replica; the conversations below need several times that, so blocks are evicted all the time."""
MAX_LEN = 2048
TOOLS = [{"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": {
    "type": "object", "properties": {"value": {"type": "string", "description": text(name, 20)}}}}} for name in ("look_up", "write_down")]


@dataclass
class Answer:
    """One request, and what was said of its cache."""

    replica: str
    predicted: int
    cached: int
    prompt: int
    counted: int
    """Prompt tokens by the router's own count."""

    @property
    def equal(self) -> bool:
        return self.predicted == self.cached


class Traffic:
    """Conversations of every kind: shared system prompts, tools, salts, several turns; picked at random, begun anew when they are long."""

    def __init__(self, seed: int, conversations: int = 24):
        self.rng = random.Random(seed)
        self.open = [self.begin() for _ in range(conversations)]
        self.lock = threading.Lock()

    def begin(self) -> dict:
        rng = self.rng
        system = rng.randrange(4)
        body = {"model": MODEL, "messages": [{"role": "system", "content": text(f"system {system}", 60 + 40 * system)}]}
        if rng.random() < 0.3:
            body["tools"] = TOOLS[: rng.randint(1, 2)]
        if rng.random() < 0.25:
            body["cache_salt"] = f"tenant-{rng.randrange(3)}"
        return body

    def take(self) -> dict:
        """A conversation that nobody else has, with its next question."""
        with self.lock:
            body = self.open.pop(self.rng.randrange(len(self.open)))
            if len(body["messages"]) > 9:
                body = self.begin()
            question = text(f"{self.rng.random()}", self.rng.randint(5, 90))
            body["messages"].append({"role": "user", "content": question})
            return body

    def give(self, body: dict, answer: str) -> None:
        with self.lock:
            body["messages"].append({"role": "assistant", "content": answer})
            self.open.append(body)


def ask(port: int, body: dict) -> tuple[Answer, str]:
    """Sends a request; raises FleetError for anything but an answer."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        sent = json.dumps(body | {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "tool_choice": "none"} if "tools" in body
                          else body | {"max_tokens": 6, "temperature": 0, "ignore_eos": True})
        conn.request("POST", "/v1/chat/completions", sent, {"content-type": "application/json", "x-homing-explain": "1"})
        answer = conn.getresponse()
        page = answer.read()
        if answer.status != 200:
            raise FleetError(f"{answer.status}: {page[:300]!r}")
        value = json.loads(page)
        usage = value["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Answer(
            replica=answer.headers["x-homing-replica"], predicted=int(answer.headers["x-homing-cached-tokens"]), cached=cached,
            prompt=usage["prompt_tokens"], counted=int(answer.headers.get("x-homing-prompt-tokens") or -1),
        ), value["choices"][0]["message"]["content"] or ""
    finally:
        conn.close()


class Run:
    """One run: its processes, and what it found."""

    def __init__(self, home: Path, binary: Path, logs: Path, requests: int):
        self.home, self.binary, self.logs, self.requests = home, binary, logs, requests
        self.replicas = [
            Replica(f"vllm-{n}", free_port(), folder="tiny", kv_blocks=KV_BLOCKS, max_len=MAX_LEN, events=(free_port(), free_port()))
            for n in range(2)
        ]
        self.report: dict = {"requests": 0}
        self.failures: list[str] = []
        self.begin = time.monotonic()
        self.traffic = Traffic(1)
        self.all: list[Answer] = []

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self.begin:6.1f} s] {line}", file=sys.stderr, flush=True)

    def check(self, good: bool, what: str) -> None:
        self.say(f"{'ok    ' if good else 'FAILED'} {what}")
        if not good:
            self.failures.append(what)

    def start(self) -> None:
        self.say("starting two replicas")
        for replica in self.replicas:
            replica.start(self.home, self.logs)
        for replica in self.replicas:
            replica.ready(240.0)
        self.say("replicas are ready")

    def router(self, events: list[int] | None = None) -> Router:
        """A router whose replicas publish on these ports (by default on their own)."""
        ports = events or [replica.events[0] for replica in self.replicas]
        config = {
            "replicas": [
                {"url": r.url, "name": r.name, "events": {"endpoint": f"tcp://127.0.0.1:{port}", "replay": f"tcp://127.0.0.1:{r.events[1]}"}}
                for r, port in zip(self.replicas, ports)
            ],
            # Both engines, the router and this program share two cores: ids may take longer than elsewhere.
            "tokenizer": {"models": [{"names": [MODEL], "path": str(self.home / "tiny"), "block_tokens": BLOCK}], "timeout": "1s"},
        }
        router = Router(self.binary, self.replicas, self.logs, config=json.dumps(config)).start()
        self.followed(router, 30.0)
        return router

    def followed(self, router: Router, deadline_s: float) -> float:
        """Waits until events of all replicas are followed; seconds that it took."""
        begin = time.monotonic()
        while time.monotonic() < begin + deadline_s:
            views = router.ledger()
            views = views["replicas"] if isinstance(views, dict) else views
            if all(view["source"] == "events" and view["state"] == "ready" for view in views):
                return time.monotonic() - begin
            time.sleep(0.05)
        raise FleetError(f"events are not followed: {views}")

    def drive(self, router: Router, n: int, workers: int) -> list[Answer]:
        """So many requests, so many at a time."""
        todo, lock, answers, errors = [None] * n, threading.Lock(), [], []

        def work() -> None:
            while True:
                with lock:
                    if not todo or errors:
                        return
                    todo.pop()
                body = self.traffic.take()
                try:
                    answer, said = ask(router.port, body)
                    self.traffic.give(body, said)
                    with lock:
                        answers.append(answer)
                except (FleetError, OSError, KeyError) as error:
                    errors.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise FleetError(f"a request failed: {errors[0]}")
        self.all += answers
        return answers

    def judge(self, answers: list[Answer], bar: float, what: str) -> float:
        equal = sum(a.equal for a in answers) / max(len(answers), 1)
        off = [(a.replica, a.predicted, a.cached) for a in answers if not a.equal][:8]
        hit = sum(a.cached for a in answers) / max(sum(a.prompt for a in answers), 1)
        self.check(equal >= bar, f"{what}: predicted = actual in {equal:.4f} of {len(answers)}, at least {bar} (cached share {hit:.2f}); off: {off}")
        return round(equal, 4)

    def serial(self) -> None:
        router = self.router()
        answers = self.drive(router, self.requests * 6 // 10, 1)
        self.report["cached_equal"] = self.judge(answers, 0.99, "one at a time")
        router.stop()

    def parallel(self) -> None:
        router = self.router()
        answers = self.drive(router, self.requests - self.requests * 6 // 10, 8)
        self.report["cached_equal_at_8"] = self.judge(answers, 0.95, "eight at a time")
        router.stop()

    def killed(self) -> None:
        """A replica is killed and started again in place: nothing of its old life may be predicted."""
        router = self.router()
        self.drive(router, 60, 2)
        victim = self.replicas[0]
        victim.process.kill()
        victim.start(self.home, self.logs)
        victim.ready(240.0)
        self.followed(router, 30.0)
        answers = self.drive(router, 80, 1)
        old = [a for a in answers if a.predicted > a.cached]
        self.report["predicted_from_old_life"] = len(old)
        self.check(any(a.replica == victim.name for a in answers), "the restarted replica serves")
        self.check(not [a for a in old if a.replica == victim.name], f"no prediction from its old life: {old[:3]}")
        self.judge(answers, 0.99, "after the restart of a replica")
        router.stop()

    def restarted(self) -> None:
        """A new router in front of warm replicas."""
        router = self.router()
        self.drive(router, 60, 2)
        router.stop()
        begin = time.monotonic()
        router = self.router()
        took = time.monotonic() - begin
        answers = self.drive(router, 100, 1)
        self.report["restart_s"] = round(took, 2)
        self.check(took <= 30, f"a new router follows warm replicas after {took:.1f} s")
        self.report["cached_equal_after_restart"] = self.judge(answers, 0.99, "after the restart of the router")
        router.stop()

    def dropped(self) -> None:
        """5% of the events are lost on their way; two seconds later predictions are right again."""
        control = self.logs / "loss"
        control.write_text("0")
        ports = [free_port() for _ in self.replicas]
        python = str(self.home / "vllm/bin/python")
        proxies = [
            Process.start(f"proxy-{n}", [python, str(Path(__file__).parent / "kv_proxy.py"), str(r.events[0]), str(port), str(control)], {}, self.logs)
            for n, (r, port) in enumerate(zip(self.replicas, ports))
        ]
        time.sleep(1.5)
        router = self.router(ports)
        answers = []
        for _ in range(5):
            control.write_text("0.05")
            self.drive(router, 40, 4)
            control.write_text("0")
            time.sleep(2.0)
            answers += self.drive(router, 20, 1)
        views = router.ledger()
        views = views["replicas"] if isinstance(views, dict) else views
        # What was replayed when the router connected doesn't count.
        gaps = sum(e["gaps"] for view in views for e in view["events"])
        self.check(gaps > 0, f"events were really lost on their way: {gaps} gaps")
        self.report["cached_equal_after_loss"] = self.judge(answers, 0.99, "two seconds after losing 5% of the events")
        router.stop()
        for proxy in proxies:
            proxy.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/real/exact")
    parser.add_argument("--home", type=Path, required=True, help="where install.sh put vLLM")
    parser.add_argument("--binary", type=Path, required=True, help="the router's binary")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--keep", action="store_true", help="keep the logs also when all is well")
    parser.add_argument("--only", default="serial,parallel,killed,restarted,dropped", help="parts to run, in this order")
    parser.add_argument("--requests", type=int, default=1000, help="of serial and parallel together")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    logs = Path(tempfile.mkdtemp(prefix="homing-exact-"))
    run = Run(args.home, args.binary, logs, args.requests)
    try:
        run.start()
        for part in args.only.split(","):
            run.say(f"--- {part}")
            getattr(run, part)()
    except FleetError as error:
        run.check(False, str(error))
    finally:
        stop_all()
    counted = [a for a in run.all if a.counted >= 0]
    if counted:
        run.report["tokens_equal"] = round(sum(a.counted == a.prompt for a in counted) / len(counted), 4)
        run.check(run.report["tokens_equal"] == 1.0, f"our count of prompt tokens is the engine's in {run.report['tokens_equal']}")
    run.report |= {"requests": len(run.all), "failures": run.failures, "seconds": round(time.monotonic() - run.begin, 1), "ok": not run.failures}
    if args.keep or run.failures:
        print(f"logs: {logs}", file=sys.stderr)
    else:
        shutil.rmtree(logs)
    if args.json:
        print(json.dumps(run.report), flush=True)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
