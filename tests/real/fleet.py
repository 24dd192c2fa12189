"""Processes of the test: real vLLM replicas and the router, each in a process group of its own that always dies with the test.

Nothing here knows what is being tested. Ports are free ones, asked from the kernel. Logs go to one file a process.
"""
import atexit
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

MODEL = "bench"
BLOCK = 32
"""Tokens a KV block: vLLM's CPU attention takes multiples of 32."""
KV_BLOCKS = 512
"""Blocks a replica: 16,384 tokens. The 20 conversations need about 26,000: more than one replica holds, less than two."""
MAX_LEN = 4096
STEP_TOKENS = 256
"""Prompt tokens a step. Aborts take effect between steps, and on one core 256 tokens are about a quarter of a second."""
MAX_SEQS = 8

_running: list["Process"] = []


class FleetError(Exception):
    """A process did not start, or died when it should not have."""


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# Kills the groups whose numbers it was given, as soon as its input ends: when this process is gone, however it went.
_WATCHDOG = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
groups = [int(line) for line in sys.stdin]
for group in groups:
    try: os.killpg(group, signal.SIGKILL)
    except ProcessLookupError: pass
"""
_watchdog: list[subprocess.Popen] = []


def _watch(group: int) -> None:
    if not _watchdog:
        _watchdog.append(subprocess.Popen([sys.executable, "-c", _WATCHDOG], stdin=subprocess.PIPE, text=True, start_new_session=True))
    _watchdog[0].stdin.write(f"{group}\n")
    _watchdog[0].stdin.flush()


@dataclass
class Process:
    """A child in its own process group."""

    name: str
    log: Path
    popen: subprocess.Popen

    @classmethod
    def start(cls, name: str, argv: list[str], env: dict[str, str], logs: Path) -> "Process":
        log = logs / f"{name}.log"
        with open(log, "ab") as f:
            popen = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=f, stderr=f, start_new_session=True
            )
        _watch(popen.pid)
        process = cls(name, log, popen)
        _running.append(process)
        return process

    def kill(self) -> None:
        """SIGKILL to the whole group: as a machine that loses power."""
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, then what is left of the group is killed."""
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(grace_s)
            except subprocess.TimeoutExpired:
                pass
        self.kill()
        if self in _running:
            _running.remove(self)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def stop_all() -> None:
    """Kills everything that is still there."""
    for process in list(_running):
        process.kill()
        _running.remove(process)


atexit.register(stop_all)


def get(port: int, path: str, timeout_s: float = 5.0, method: str = "GET") -> tuple[int, str]:
    """Status and body of a small request on loopback."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        conn.request(method, path)
        answer = conn.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        conn.close()


def wait_ok(process: Process, port: int, path: str, deadline_s: float) -> None:
    """Returns when the path answers 200; FleetError when the process died or time ran out."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if process.popen.poll() is not None:
            raise FleetError(f"{process.name} exited with {process.popen.returncode}:\n{process.tail()}")
        try:
            if get(port, path)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise FleetError(f"{process.name}: {path} not 200 after {deadline_s:.0f} s:\n{process.tail()}")


@dataclass
class Counters:
    """What one replica's engine has counted since it started, in tokens and requests."""

    running: float
    waiting: float
    prompt_tokens: float
    queried: float
    hit: float
    preemptions: float

    @property
    def computed(self) -> float:
        """Prompt tokens that were not in the cache."""
        return self.queried - self.hit


@dataclass
class Replica:
    """One vLLM server."""

    name: str
    port: int
    process: Process | None = None
    folder: str = "model"
    """Of the model, where install.sh made it."""
    kv_blocks: int = KV_BLOCKS
    max_len: int = MAX_LEN
    events: tuple[int, int] | None = None
    """Ports on which it publishes KV events and answers for earlier ones."""
    dtype: str = "bfloat16"
    more: list[str] = field(default_factory=list)
    """Further arguments."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, home: Path, logs: Path) -> None:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}   # with it: no byte code, three times slower
        env |= {
            "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
            "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONHASHSEED": "0", "VLLM_SERVER_DEV_MODE": "1",
        }
        argv = [
            str(home / "vllm/bin/vllm"), "serve", str(home / self.folder), "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", str(self.max_len), "--max-num-seqs", str(MAX_SEQS),
            "--max-num-batched-tokens", str(STEP_TOKENS), "--enable-prefix-caching", "--block-size", str(BLOCK),
            "--num-gpu-blocks-override", str(self.kv_blocks), "--enable-prompt-tokens-details", "--enforce-eager", "--dtype", self.dtype,
            "--enable-auto-tool-choice", "--tool-call-parser", "hermes", *self.more,
        ]
        if self.events:
            # An endpoint with a star is bound by the engine; any other it would connect to.
            argv += ["--kv-events-config", json.dumps({
                "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.events[0]}",
                "replay_endpoint": f"tcp://127.0.0.1:{self.events[1]}", "topic": f"kv@127.0.0.1:{self.port}@{MODEL}",
            })]
        self.process = Process.start(self.name, argv, env, logs)

    def ready(self, deadline_s: float) -> None:
        wait_ok(self.process, self.port, "/health", deadline_s)

    def counters(self) -> Counters:
        page = get(self.port, "/metrics", 10.0)[1]

        def total(name: str) -> float:
            found = re.findall(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", page, re.M)
            if not found:
                raise FleetError(f"{self.name}: no vllm:{name} on its metrics page")
            return sum(map(float, found))

        return Counters(
            running=total("num_requests_running"), waiting=total("num_requests_waiting"), prompt_tokens=total("prompt_tokens_total"),
            queried=total("prefix_cache_queries_total"), hit=total("prefix_cache_hits_total"), preemptions=total("num_preemptions_total"),
        )

    def busy(self) -> float:
        """Requests the engine has, running or waiting."""
        now = self.counters()
        return now.running + now.waiting

    def reset_cache(self) -> None:
        """Empties the prefix cache (development mode only)."""
        status, body = get(self.port, "/reset_prefix_cache", 30.0, "POST")
        if status != 200:
            raise FleetError(f"{self.name}: /reset_prefix_cache answered {status} {body}")


@dataclass
class Router:
    """The router under test, in front of some replicas."""

    binary: Path
    replicas: list[Replica]
    logs: Path
    port: int = field(default_factory=free_port)
    metrics_port: int = field(default_factory=free_port)
    admin_port: int = field(default_factory=free_port)
    process: Process | None = None
    config: str | None = None
    """A configuration file's text, beside what the test itself sets."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "Router":
        argv = [str(self.binary), "serve", "--listen", f"127.0.0.1:{self.port}", "--metrics", f"127.0.0.1:{self.metrics_port}",
                "--admin", f"127.0.0.1:{self.admin_port}"]
        if self.config is not None:
            path = self.logs / f"homing-{self.port}.yaml"
            path.write_text(self.config)
            argv += ["--config", str(path)]
        # A configuration of a test may have the replicas in it, with more than their addresses.
        if "replicas" not in (self.config or ""):
            for replica in self.replicas:
                argv += ["--replica", replica.url]
        self.process = Process.start("homing", argv, dict(os.environ), self.logs)
        wait_ok(self.process, self.metrics_port, "/readyz", 30.0)
        return self

    def stop(self) -> None:
        self.process.stop()

    def ledger(self) -> dict | list:
        """What the router believes about its replicas."""
        return json.loads(get(self.admin_port, "/replicas")[1])

    def cached_token_metrics(self) -> dict[str, float]:
        """The router's own sums of predicted and actual cached tokens, by metric name."""
        page = get(self.metrics_port, "/metrics")[1]
        sums: dict[str, float] = {}
        for name, value in re.findall(r"^(homing_\w*cached_tokens\w*)(?:\{[^}]*\})? (\S+)$", page, re.M):
            if "bucket" not in name:
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums
