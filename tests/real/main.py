"""Runs everything against two real vLLM replicas and the router. See README.md; started by `run`."""
import argparse
import json
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import checks
import leave
import resume
from drive import Pass, ask, client, converse
from fleet import FleetError, Replica, Router, free_port, get, stop_all

COMPUTED_BAR = 0.7
"""Prompt tokens computed through the router, as a share of round robin's: at most this."""
ROUNDS = 3
"""Comparisons at most: times on a shared machine are noisy, so a slower mean may be measured again twice."""


class Run:
    """One run: its processes, and what it found."""

    def __init__(self, home: Path, binary: Path, logs: Path, streams: int):
        self.home, self.binary, self.logs, self.streams = home, binary, logs, streams
        self.replicas = [Replica(f"vllm-{n}", free_port()) for n in range(2)]
        self.report: dict = {}
        self.failures: list[str] = []
        self.passed = 0
        self.begin = time.monotonic()

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self.begin:6.1f} s] {line}", file=sys.stderr, flush=True)

    def check(self, good: bool, what: str) -> None:
        self.say(f"{'ok    ' if good else 'FAILED'} {what}")
        if good:
            self.passed += 1
        else:
            self.failures.append(what)

    def router(self) -> Router:
        return Router(self.binary, self.replicas, self.logs).start()

    def start(self) -> None:
        self.say("starting two replicas")
        for replica in self.replicas:
            replica.start(self.home, self.logs)
        for replica in self.replicas:
            replica.ready(240.0)
            # The first requests of a process are slow for reasons that have nothing to do with caches.
            for stream in (True, False):
                turn = ask(client(replica.url), [{"role": "user", "content": "warm up " * 200}], stream)
                if turn.failed:
                    raise FleetError(f"{replica.name}: {turn.error}")
        self.say("replicas are ready")

    def surface(self) -> None:
        """What a client sees."""
        router = self.router()
        for one in checks.CHECKS:
            try:
                one(router, self.replicas)
                self.check(True, one.__name__)
            except Exception as error:
                self.say("".join(traceback.format_exception(error, limit=-1)).strip())
                self.check(False, f"{one.__name__}: {str(error)[:400]}")
        router.stop()

    def measured(self, choose, seed: int) -> tuple[Pass, float, int]:
        """A pass over empty caches; also the tokens that the engines say they computed, and their preemptions."""
        for replica in self.replicas:
            replica.reset_cache()
        before = [replica.counters() for replica in self.replicas]
        result = converse(choose, seed=seed)
        after = [replica.counters() for replica in self.replicas]
        computed = sum(a.computed - b.computed for a, b in zip(after, before))
        return result, computed, int(sum(a.preemptions - b.preemptions for a, b in zip(after, before)))

    def compare(self) -> None:
        """The same conversations through round robin and through the router."""
        direct = [client(replica.url) for replica in self.replicas]
        rr_sum = homing_sum = 0.0
        for number in range(1, ROUNDS + 1):
            rr, rr_computed, rr_preempted = self.measured(lambda n: direct[n % len(direct)], seed=number)
            router = self.router()
            routed = client(router.url)
            homing, homing_computed, preempted = self.measured(lambda n: routed, seed=number)
            rr_sum += rr_computed
            homing_sum += homing_computed
            self.report |= {
                "rr": {"computed_tokens": round(rr_computed), "computed_tokens_by_usage": rr.computed_tokens, "prompt_tokens": rr.prompt_tokens,
                       "ttft_mean_ms": round(rr.ttft_mean_ms, 1), "seconds": round(rr.seconds, 1), "preemptions": rr_preempted},
                "homing": {"computed_tokens": round(homing_computed), "computed_tokens_by_usage": homing.computed_tokens,
                           "prompt_tokens": homing.prompt_tokens, "ttft_mean_ms": round(homing.ttft_mean_ms, 1),
                           "seconds": round(homing.seconds, 1), "preemptions": preempted},
                "ratio_computed": round(homing_sum / rr_sum, 3), "rounds": number,
            }
            self.prediction(homing, router)
            router.stop()
            self.say(json.dumps({k: self.report[k] for k in ("rr", "homing", "ratio_computed", "predicted", "actual", "abs_error_share")}))
            # Times are noisy, and so is which conversations share a small cache: measured again, and judged over all rounds.
            for name, result in (("round robin", rr), ("the router", homing)):
                self.check(not result.failed, f"no request failed through {name}: {[turn.error for turn in result.failed][:3]}")
            ratio = self.report["ratio_computed"]
            if homing.ttft_mean_ms < rr.ttft_mean_ms and ratio <= COMPUTED_BAR:
                break
            self.say(f"mean TTFT not lower or more than {COMPUTED_BAR} computed: round {number} of at most {ROUNDS}")
        self.check(ratio <= COMPUTED_BAR, f"prompt tokens computed: {ratio} of round robin's, at most {COMPUTED_BAR}")
        self.check(homing.ttft_mean_ms < rr.ttft_mean_ms, f"mean TTFT {homing.ttft_mean_ms:.0f} ms, round robin {rr.ttft_mean_ms:.0f} ms")
        self.check(self.report["predicted"] is not None, "every answer told the predicted cached tokens (x-homing-cached-tokens)")

    def prediction(self, homing: Pass, router: Router) -> None:
        """Predicted against actual cached tokens."""
        known = [turn for turn in homing.turns if turn.predicted_tokens is not None and turn.finished]
        complete = len(known) == len(homing.turns)
        wrong = sum(abs(turn.predicted_tokens - turn.cached_tokens) for turn in known)
        prompt = sum(turn.prompt_tokens for turn in known)
        self.report |= {
            "predicted": sum(turn.predicted_tokens for turn in known) if complete else None,
            "actual": sum(turn.cached_tokens for turn in homing.turns),
            "abs_error_share": round(wrong / prompt, 4) if prompt else None,
            "turns_per_replica": sorted(sum(turn.replica == name for turn in homing.turns) for name in {turn.replica for turn in homing.turns}),
            "router_metrics": router.cached_token_metrics(),
        }

    def leaving(self) -> None:
        """Clients that leave, first without the router: what the engine itself needs."""
        self.report["cancel_ms_direct"] = {}
        for name, phase in leave.PHASES.items():
            took = phase(self.replicas[0].port, self.replicas[:1])
            self.report["cancel_ms_direct"][name] = round(took)
        router = self.router()
        self.report["cancel_ms"] = {}
        for name, phase in leave.PHASES.items():
            try:
                took = phase(router.port, self.replicas)
                again = took > leave.BOUND_MS
                if again:
                    took = min(took, phase(router.port, self.replicas))
                self.report["cancel_ms"][name] = round(took)
                self.check(took <= leave.BOUND_MS, f"engines idle {took:.0f} ms after clients left ({name}){', second try' if again else ''}")
            except leave.LeaveError as error:
                self.check(False, str(error))
        router.stop()

    def resume(self) -> None:
        """Streams that break in the middle and are continued, in float32 (whatever the other parts run with)."""
        engines = [Replica(f"vllm-f32-{n}", free_port(), dtype="float32") for n in range(2)]
        for engine in engines:
            engine.start(self.home, self.logs)
        for engine in engines:
            engine.ready(300.0)
        relays = [resume.Relay(engine.port, seed).start() for seed, engine in enumerate(engines)]
        router = Router(self.binary, relays, self.logs, config="resume:\n  enabled: true\n").start()
        seen = resume.Result()

        def kill() -> None:
            seen.in_flight_at_kill = engines[0].busy()
            engines[0].process.kill()

        result = resume.run(router.url, engines[1].url, relays, kill, self.streams)
        page = get(router.metrics_port, "/metrics")[1]
        outcomes = {k: int(float(v)) for k, v in re.findall(r'^homing_resumes_total\{outcome="(\w+)"\} (\S+)$', page, re.M)}
        share = result.equal / result.streams
        self.report["resume"] = {
            "streams": result.streams, "equal": result.equal, "equal_share": round(share, 4), "cut_by_relay": result.cuts,
            "in_flight_at_sigkill": round(seen.in_flight_at_kill), "broken": len(result.broken), "malformed": len(result.malformed),
            "unequal": result.unequal[:5], "usage_unequal": result.usage_unequal, "outcomes": outcomes,
        }
        self.say(json.dumps(self.report["resume"]))
        self.check(share >= resume.EQUAL_BAR, f"{result.equal} of {result.streams} streams equal to the unbroken text")
        self.check(not result.broken, f"no stream is broken: {result.broken[:3]}")
        self.check(not result.malformed, f"one id, one role, no ids, an end: {result.malformed[:3]}")
        self.check(result.usage_unequal == 0, f"usage as of the unbroken answer: {result.usage_unequal} differ")
        self.check(outcomes.get("continued", 0) >= result.streams // 2, f"many streams were continued: {outcomes}")
        router.stop()
        for engine in engines:
            engine.process.stop()

    def killed(self) -> None:
        """One replica dies without warning, in the middle of everything."""
        router = self.router()
        sdk = client(router.url)
        victim = self.replicas[0]
        state = {"at": None, "busy": 0.0}

        def after_each(done: int) -> None:
            if done >= 16 and state["at"] is None:
                busy = victim.busy()
                if busy >= 2 or done >= 32:
                    state.update(at=time.monotonic(), busy=busy)
                    victim.process.kill()

        result = converse(lambda n: sdk, seed=77, conversations=16, in_flight=6, stream=lambda n: n % 2 == 0, after_each=after_each)
        failed = result.failed
        not_begun = [turn for turn in failed if not turn.begun]
        silent = [turn for turn in failed if turn.begun and not turn.error_event]
        after = [turn for turn in result.turns if state["at"] is not None and turn.sent > state["at"]]
        self.report["killed"] = {
            "requests": len(result.turns), "in_flight_at_kill": round(state["busy"]), "sent_after_kill": len(after),
            "failed_not_begun": len(not_begun), "streams_ended_by_error_event": len(failed) - len(not_begun) - len(silent),
            "streams_cut_without_error_event": len(silent),
        }
        self.say(json.dumps(self.report["killed"]))
        self.check(state["at"] is not None and state["busy"] > 0, "the replica was killed while it had requests")
        self.check(not not_begun, f"no request failed that had not begun: {[turn.error for turn in not_begun][:3]}")
        self.check(not silent, f"a broken stream ends with an error event: {[turn.error for turn in silent][:3]}")
        self.check(not [turn for turn in after if turn.failed], "no request that was sent after the death failed")
        self.check(get(router.metrics_port, "/readyz")[0] == 200, "the router stays ready with one replica")
        router.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/real/run")
    parser.add_argument("--home", type=Path, required=True, help="where install.sh put vLLM")
    parser.add_argument("--binary", type=Path, required=True, help="the router's binary")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--keep", action="store_true", help="keep the logs also when all is well")
    parser.add_argument("--only", default="surface,compare,leaving,killed", help="parts to run, in this order")
    parser.add_argument("--streams", type=int, default=resume.STREAMS, help="streams of the part `resume`")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    logs = Path(tempfile.mkdtemp(prefix="homing-real-"))
    run = Run(args.home, args.binary, logs, args.streams)
    try:
        if args.only != "resume":
            run.start()
        for part in args.only.split(","):
            run.say(f"--- {part}")
            try:
                getattr(run, part)()
            except (FleetError, leave.LeaveError) as error:
                run.check(False, f"{part}: {error}")
    except FleetError as error:
        run.check(False, str(error))
    finally:
        stop_all()
    ok = not run.failures
    run.report |= {"failures": run.failures, "seconds": round(time.monotonic() - run.begin, 1), "ok": ok}
    if args.keep or not ok:
        print(f"logs: {logs}", file=sys.stderr)
    else:
        shutil.rmtree(logs)
    print(f"real: {run.passed} passed, {len(run.failures)} failed", flush=True)
    if args.json:
        print(json.dumps(run.report), flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
