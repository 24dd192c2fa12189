"""A real Envoy with Homing as its endpoint picker: what goes where, what it costs, and what happens when parts of it die.

Envoy runs with examples/envoy/envoy.yaml, only with other ports: what is tested is what the example says.
"""
import argparse
import asyncio
import glob
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from fleet import FleetError, Process, Replica, free_port, stop_all
from http1 import Connection

ROOT = Path(__file__).resolve().parents[2]
REPLICAS = 3
PARTS = ["mixed", "latency", "fallback", "restart", "withheld", "crowd"]
TICK = os.sysconf("SC_CLK_TCK")


UNPICKED = """\
              - match: { prefix: "/unpicked/" }
                route: { cluster: replicas, timeout: 0s, prefix_rewrite: "/" }
                typed_per_filter_config:
                  envoy.filters.http.ext_proc:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                    disabled: true
"""


class Check(Exception):
    """Something that was promised isn't so."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Gateway:
    """Envoy, the picker and the replicas."""

    def __init__(self, args, logs: Path):
        self.args, self.logs = args, logs
        self.envoy_bin = glob.glob(f"{args.home}/envoy/lib/python*/site-packages/envoy/_bin/envoy")[0]
        self.ports = {name: free_port() for name in ("main", "admin", "grpc", "health", "metrics", "homing_admin")}
        self.replica_ports = [free_port() for _ in range(REPLICAS)]
        # Two real engines are as many as two cores bear; the third place of the example stays empty.
        self.alive = 2 if args.vllm else REPLICAS
        self.model = "bench" if args.vllm else "mock"
        self.replicas, self.envoy, self.picker = [], None, None

    def start_replica(self, n: int, profile: str = "instant") -> Process:
        port = self.replica_ports[n]
        argv = [self.args.binary, "mock", "--listen", f"127.0.0.1:{port}", "--profile", profile, "--max-model-len", "8000000"]
        return Process.start(f"replica-{n}-{time.monotonic_ns()}", argv, dict(os.environ), self.logs)

    def start_replicas(self, profile: str = "instant") -> None:
        for old in self.replicas:
            old.stop(2)
        if self.args.vllm:
            self.engines = [Replica(f"vllm-{n}", port) for n, port in enumerate(self.replica_ports)]
            for engine in self.engines[: self.alive]:
                engine.start(Path(self.args.home), self.logs)
            for engine in self.engines[: self.alive]:
                engine.ready(300)
            return
        self.replicas = [self.start_replica(n, profile) for n in range(REPLICAS)]

    def start_picker(self) -> None:
        p = self.ports
        argv = [self.args.binary, "serve", "--extproc", f"127.0.0.1:{p['grpc']}", "--extproc-health", f"127.0.0.1:{p['health']}",
                "--extproc-alone", "--metrics", f"127.0.0.1:{p['metrics']}", "--admin", f"127.0.0.1:{p['homing_admin']}",
                "--log-access", str(self.logs / "picker.jsonl")]
        # Probes further apart than usual: what a dead replica costs until they notice is what is to be seen.
        config = self.logs / "homing.yaml"
        config.write_text("health: { interval: 3s }\n")
        argv += ["--config", str(config)]
        for port in self.replica_ports:
            argv += ["--replica", f"http://127.0.0.1:{port}"]
        self.picker = Process.start(f"picker-{time.monotonic_ns()}", argv, dict(os.environ), self.logs)

    def start_envoy(self, fail_open: bool = False, withhold: bool = False) -> None:
        if self.envoy:
            self.envoy.stop(2)
        text = (ROOT / "examples/envoy/envoy.yaml").read_text()
        ports = {10000: self.ports["main"], 9901: self.ports["admin"], 9002: self.ports["grpc"]}
        ports |= {8001 + n: port for n, port in enumerate(self.replica_ports)}
        text = re.sub(r"port_value: (\d+)", lambda m: f"port_value: {ports[int(m[1])]}", text)
        # Beside the example's route one that doesn't ask the picker, to compare with.
        text = text.replace("              routes:\n", "              routes:\n" + UNPICKED, 1)
        if fail_open:
            text = text.replace("failure_mode_allow: false", "failure_mode_allow: true")
        if withhold:
            text = text.replace("response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: NONE")
            text = text.replace("response_trailer_mode: SEND", "response_trailer_mode: SKIP")
        config = self.logs / "envoy.yaml"
        config.write_text(text)
        argv = [self.envoy_bin, "-c", str(config), "--disable-hot-restart", "--file-flush-interval-msec", "200", "--concurrency", "1", "-l", "warning"]
        self.envoy = Process.start(f"envoy-{time.monotonic_ns()}", argv, dict(os.environ), self.logs)

    async def ready(self) -> None:
        """Until a request goes through, and all replicas are known."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                answer = await Connection(self.ports["main"]).ask("POST", "/v1/chat/completions", body(64, False, self.model), timeout=5)
                up = await Connection(self.ports["metrics"]).ask("GET", "/metrics", timeout=5)
                if answer.status == 200 and up.body.count(b'state="ready"} 1') == self.alive:
                    return
            except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(0.2)
        raise Check("the gateway didn't come up")

    async def in_flight(self) -> int:
        page = (await Connection(self.ports["metrics"]).ask("GET", "/metrics")).body.decode()
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in page.splitlines() if line.startswith("homing_replica_in_flight{"))

    def cpu(self) -> float:
        """Seconds of CPU of the picker so far."""
        fields = Path(f"/proc/{self.picker.popen.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def picker_access(self) -> list[dict]:
        """The picker's word about each request."""
        return [json.loads(line) for line in (self.logs / "picker.jsonl").read_text().splitlines()]

    def access(self) -> list[dict[str, str]]:
        """Envoy's own word about each request."""
        lines = self.envoy.log.read_text(errors="replace").splitlines()
        found = [re.match(r"(\d+) picked=(\S+) upstream=(\S+) attempts=(\S+) details=(\S*) (\S+) (\S+)", line) for line in lines]
        names = ("status", "picked", "upstream", "attempts", "details", "method", "path")
        return [dict(zip(names, m.groups())) for m in found if m]


def body(size: int, stream: bool, model: str, seed: int = 0, tokens: int = 8) -> bytes:
    """A completion request of about `size` bytes; large ones are images, as they are in the field."""
    rng = random.Random(seed)
    words = ["cache", "router", "prefix", "token", "replica", "block", "queue", "worker"]
    text = " ".join(rng.choice(words) for _ in range(max(1, min(size, 200_000) // 7)))
    content = text if size <= 200_000 else [
        {"type": "text", "text": text[:1000]},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * (size // 8)}}]
    return json.dumps({"messages": [{"role": "user", "content": content}], "model": model, "stream": stream, "max_tokens": tokens}).encode()


async def one(connection: Connection, data: bytes, stream: bool, before: str = "") -> str | None:
    """What is wrong with the answer, if anything is."""
    try:
        answer = await connection.ask("POST", before + "/v1/chat/completions", data)
    except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError) as e:
        connection.close()
        return f"{type(e).__name__}: {e}"
    if answer.status != 200:
        return f"status {answer.status}: {answer.body[:200]!r}"
    if stream:
        return None if answer.body.rstrip().endswith(b"data: [DONE]") else "a stream without [DONE]"
    told = json.loads(answer.body)
    return None if told["choices"] and told["usage"]["prompt_tokens"] > 0 else "an answer without usage"


async def mixed(g: Gateway, n: int) -> dict:
    """Requests of 1 KB to 20 MB, streams and not, 32 at a time."""
    rng = random.Random(7)
    sizes = [1000] * 60 + [8000] * 25 + [32_000] * 10 + [200_000] * 4 + [1_000_000]
    if g.args.vllm:
        sizes = [1000] * 8 + [4000]   # its context is short
    plan = [(rng.choice(sizes), rng.random() < 0.4, i) for i in range(n)]
    for i in range(0 if g.args.vllm else min(10, n)):
        plan[i * (n // min(10, n))] = (20_000_000, False, i)
    wrong, todo = [], iter(plan)

    async def worker() -> None:
        connection = Connection(g.ports["main"])
        for size, stream, seed in todo:
            fault = await one(connection, body(size, stream, g.model, seed % 500), stream)
            if fault:
                wrong.append(fault)
        connection.close()

    await asyncio.sleep(1)   # Envoy writes its log five times a second
    before, cpu = len(g.access()), g.cpu()
    await asyncio.gather(*(worker() for _ in range(32)))
    used = g.cpu() - cpu
    await asyncio.sleep(1.5)
    lines = g.access()[before:]
    astray = [l for l in lines if l["status"] == "200" and l["upstream"] != l["picked"].split(",")[0]]
    left = await g.in_flight()
    for fault in wrong[:5]:
        say(f"  failed: {fault}")
    say(f"mixed: {n} requests, {len(wrong)} failed, {len(astray)} not where they were sent, {left} still booked")
    if left:
        raise Check(f"{left} requests are still booked")
    if len(lines) != n:
        raise Check(f"Envoy's log has {len(lines)} lines for {n} requests")
    return {"requests": n, "failed": len(wrong), "wrong_endpoint": len(astray), "cpu_us": round(used / n * 1e6)}


async def latency(g: Gateway) -> dict:
    """What the picker adds: through Envoy with it and without it, one request at a time, in turns."""
    ways = {"": Connection(g.ports["main"]), "/unpicked": Connection(g.ports["main"])}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for i in range(1000):
        data = body(1000, False, g.model, i % 50, 1)
        for way, connection in ways.items():
            begun = time.perf_counter()
            fault = await one(connection, data, False, way)
            times[way].append(time.perf_counter() - begun)
            if fault:
                raise Check(fault)
    share = lambda way, p: sorted(times[way][50:])[int(len(times[way][50:]) * p)] * 1e3
    added = {f"p{int(p * 100)}": round(share("", p) - share("/unpicked", p), 3) for p in (0.5, 0.95)}
    say(f"latency: the picker adds {added} ms; without it Envoy takes {share('/unpicked', 0.5):.3f} ms at the median")
    return added


async def fallback(g: Gateway) -> None:
    """A replica dies: whoever is sent there is served by the next of the list."""
    g.replicas[1].kill()
    await asyncio.sleep(1)
    wrong, connections = [], [Connection(g.ports["main"]) for _ in range(8)]
    before, picked_before = len(g.access()), len(g.picker_access())
    for i in range(25):
        wrong += [f for f in await asyncio.gather(*(one(c, body(1000, i % 2 == 0, g.model, i * 8 + k), i % 2 == 0) for k, c in enumerate(connections))) if f]
    await asyncio.sleep(1.2)
    lines = g.access()[before:]
    dead = f"127.0.0.1:{g.replica_ports[1]}"
    moved = [l for l in lines if l["picked"].startswith(dead) and l["upstream"] != dead]
    say(f"fallback: {len(lines)} requests after a replica died, {len(moved)} of them sent to it first, {len(wrong)} failed")
    if wrong:
        raise Check(f"failed after a replica died: {wrong[0]}")
    if not moved:
        raise Check("none was sent to the dead one: nothing was shown")
    rebooked = [l for l in g.picker_access()[picked_before:] if l["attempts"] == 2]
    if len(rebooked) != len(moved):
        raise Check(f"{len(moved)} went elsewhere, {len(rebooked)} were booked there")
    end = time.monotonic() + 10
    while await g.in_flight() and time.monotonic() < end:
        await asyncio.sleep(0.2)
    if left := await g.in_flight():
        raise Check(f"{left} requests are still booked")
    g.replicas[1] = g.start_replica(1)
    await g.ready()


async def restart(g: Gateway) -> None:
    """The picker is killed and comes back: closed as configured, or open."""
    for fail_open in (False, True):
        g.start_envoy(fail_open)
        await g.ready()
        g.picker.kill()
        answer = await Connection(g.ports["main"]).ask("GET", "/v1/models")
        if (answer.status == 200) != fail_open:
            raise Check(f"without a picker, failure_mode_allow {fail_open}: status {answer.status}")
        say(f"restart: without a picker, failure_mode_allow {str(fail_open).lower()}: {answer.status}")
        g.start_picker()
        await g.ready()
        faults = [f for f in [await one(Connection(g.ports["main"]), body(1000, s, g.model), s) for s in (True, False) * 5] if f]
        if faults:
            raise Check(f"after the picker came back: {faults[0]}")
    g.start_envoy()
    await g.ready()


async def withheld(g: Gateway) -> None:
    """Envoy keeps the answers' bodies to itself: what is booked goes by the replicas' own counts."""
    g.start_envoy(withhold=True)
    await g.ready()
    cpu = g.cpu()
    connections = [Connection(g.ports["main"]) for _ in range(8)]
    wrong = []
    for i in range(50):
        wrong += [f for f in await asyncio.gather(*(one(c, body(1000, i % 2 == 0, g.model, i * 8 + k), i % 2 == 0) for k, c in enumerate(connections))) if f]
    used = (g.cpu() - cpu) / 400 * 1e6
    end = time.monotonic() + 20
    while (left := await g.in_flight()) and time.monotonic() < end:
        await asyncio.sleep(0.5)
    say(f"withheld: 400 requests, {len(wrong)} failed, {left} booked in the end, {used:.0f} us of CPU each")
    if wrong or left:
        raise Check(f"{len(wrong)} failed, {left} still booked")
    g.start_envoy()
    await g.ready()


async def crowd(g: Gateway, n: int = 2000) -> None:
    """So many streams at once, each of some seconds."""
    g.start_replicas("instant")
    await g.ready()
    for port in g.replica_ports:
        await Connection(port).ask("POST", "/mock/faults", json.dumps({"delay_headers": 8}).encode())
    answers = [asyncio.create_task(one(Connection(g.ports["main"]), body(2000, True, g.model, i % 300, 50), True)) for i in range(n)]
    peak = 0
    while not all(a.done() for a in answers):
        await asyncio.sleep(0.5)
        peak = max(peak, await g.in_flight())
    wrong = [f for f in (a.result() for a in answers) if f]
    for fault in wrong[:5]:
        say(f"  failed: {fault}")
    say(f"crowd: {n} streams at once, {peak} booked at the peak, {len(wrong)} failed")
    if wrong or peak < n * 0.9:
        raise Check(f"{len(wrong)} of {n} failed, {peak} at once")
    for port in g.replica_ports:
        await Connection(port).ask("POST", "/mock/faults", b"{}")
    await asyncio.sleep(1.5)
    if left := await g.in_flight():
        raise Check(f"{left} requests are still booked")


async def run(args, logs: Path) -> dict:
    g = Gateway(args, logs)
    g.start_replicas()
    g.start_picker()
    g.start_envoy()
    await g.ready()
    result: dict = {"requests": 0, "failed": 0, "wrong_endpoint": 0, "added_ms": None, "cpu_us": None}
    if "mixed" in args.only:
        result |= await mixed(g, args.requests)
    if "latency" in args.only:
        result["added_ms"] = await latency(g)
    if "fallback" in args.only and not args.vllm:
        await fallback(g)
    if "restart" in args.only:
        await restart(g)
    if "withheld" in args.only:
        await withheld(g)
    if "crowd" in args.only and not args.vllm:
        await crowd(g)
    if result["failed"] or result["wrong_endpoint"]:
        raise Check(f"{result}")
    return result


def main() -> int:
    p = argparse.ArgumentParser()
    p.add_argument("--home", required=True)
    p.add_argument("--binary", required=True)
    p.add_argument("--json", action="store_true")
    p.add_argument("--keep", action="store_true")
    p.add_argument("--vllm", action="store_true")
    p.add_argument("--requests", type=int, default=10_000)
    p.add_argument("--only", type=lambda s: s.split(","), default=PARTS)
    args = p.parse_args()
    logs = tempfile.mkdtemp(prefix="homing-envoy-")
    try:
        result = asyncio.run(run(args, Path(logs)))
    except (Check, FleetError) as e:
        say(f"FAILED: {e}")
        return 1
    finally:
        stop_all()
        if args.keep:
            say(f"logs: {logs}")
        else:
            shutil.rmtree(logs, ignore_errors=True)
    if args.json:
        print(json.dumps(result))
    else:
        say(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
