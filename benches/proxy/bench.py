"""What the bench scripts share: processes that end with the script, the CPU and sockets of a process from /proc, nginx to compare with."""
import argparse
import atexit
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
_children = []


def say(line):
    print(line, file=sys.stderr, flush=True)


def options(description, **more):
    """The command line: --json, --homing, and one option for each keyword (its default gives the type)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--homing", type=Path, help="the router's binary (default: built here, release)")
    for name, default in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"default {default!r}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    return parser.parse_args()


def built(args, need_router=True):
    """Paths of the generator and the router, built when they are not there or not fresh."""
    cargo = ["cargo", "build", "--release", "--quiet", "--locked"]
    subprocess.run(cargo + ["--manifest-path", str(HERE / "Cargo.toml"), "--target-dir", str(HERE / "target")], check=True)
    router = args.homing
    if need_router and router is None:
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        subprocess.run(["cargo", "build", "--release", "--quiet", "--bin", "homing", "--manifest-path", str(ROOT / "Cargo.toml")], check=True)
        router = target / "release/homing"
    return HERE / "target/release/proxybench", router


def free_ports(count):
    """The first of `count` ports in a row that are free."""
    for first in range(21000 + os.getpid() % 5000, 32000, count):
        socks = []
        try:
            for port in range(first, first + count):
                sock = socket.socket()
                socks.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for sock in socks:
                sock.close()
    raise SystemExit("no free ports")


def start(argv, log=None):
    """A child that is killed when this script ends."""
    out = open(log, "ab") if log else subprocess.DEVNULL
    child = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    _children.append(child)
    return child


def stop(child):
    """Asks it to end, and makes it end."""
    child.terminate()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    _children.remove(child)


@atexit.register
def _stop_all():
    for child in _children:
        # nginx's workers only end with their master when it is asked, not killed.
        child.terminate()
    for child in _children:
        try:
            child.wait(3)
        except subprocess.TimeoutExpired:
            child.kill()


def get(port, path, timeout=5):
    """Status and body of a GET on loopback."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        conn.request("GET", path)
        answer = conn.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        conn.close()


def wait_ok(child, port, path, seconds=30, log=None):
    end = time.monotonic() + seconds
    while time.monotonic() < end and child.poll() is None:
        try:
            if get(port, path)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    tail = Path(log).read_text(errors="replace")[-2000:] if log else ""
    raise SystemExit(f"{child.args[0]}: {path} never answered 200\n{tail}")


def backends(generator, count=4, **more):
    """Instant back ends; the first port and the process."""
    port = free_ports(count)
    argv = [generator, "backends", "--port", port, "--count", count]
    for name, value in more.items():
        argv += [f"--{name.replace('_', '-')}", value]
    child = start(argv)
    wait_ok(child, port, "/health")
    return port, child


class Proxy:
    """A proxy under measurement: its address and its processes."""

    def __init__(self, name, child, port, metrics=None, admin=None):
        self.name, self.child, self.port, self.metrics, self.admin = name, child, port, metrics, admin

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def pids(self):
        """The process and its children (nginx's workers)."""
        own = str(self.child.pid)
        pids = [self.child.pid]
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "stat").read_text().rsplit(")", 1)[1].split()[1] == own:
                    pids.append(int(entry.name))
            except OSError:
                pass
        return pids

    def cpu_seconds(self):
        """User and system time of all its threads so far."""
        total = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def rss_bytes(self):
        for line in Path(f"/proc/{self.child.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise SystemExit(f"{self.name} is gone")

    def sockets(self):
        """Open sockets of its processes."""
        count = 0
        for pid in self.pids():
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    count += os.readlink(entry).startswith("socket:")
                except OSError:
                    pass
        return count

    def in_flight(self):
        """What the router's ledger says is in flight, over all replicas."""
        found = []

        def walk(value):
            if isinstance(value, dict):
                for key, inner in value.items():
                    if key in ("in_flight", "inflight") and isinstance(inner, (int, float)):
                        found.append(inner)
                    else:
                        walk(inner)
            elif isinstance(value, list):
                for inner in value:
                    walk(inner)

        walk(json.loads(get(self.admin, "/replicas")[1]))
        if not found:
            raise SystemExit("/replicas tells no in_flight")
        return sum(found)

    def stop(self):
        stop(self.child)


def homing(binary, first, count, work):
    """The router, cache-aware as it comes, in front of the back ends."""
    port = free_ports(3)
    argv = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--metrics", f"127.0.0.1:{port + 1}", "--admin", f"127.0.0.1:{port + 2}"]
    for backend in range(first, first + count):
        argv += ["--replica", f"http://127.0.0.1:{backend}"]
    log = Path(work) / "homing.log"
    child = start(argv, log)
    wait_ok(child, port + 1, "/readyz", log=log)
    return Proxy("homing", child, port, port + 1, port + 2)


def nginx(first, count, work, workers=2):
    """nginx as a plain proxy: round robin, keep-alive on both sides, nothing buffered on the way back, bodies kept in memory."""
    port = free_ports(1)
    servers = " ".join(f"server 127.0.0.1:{backend};" for backend in range(first, first + count))
    temp = " ".join(f"{kind}_temp_path {work}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    conf = Path(work) / "nginx.conf"
    conf.write_text(f"""
daemon off; pid {work}/nginx.pid; error_log {work}/nginx.log; worker_processes {workers};
events {{ worker_connections 4096; }}
http {{
  access_log off; {temp} tcp_nodelay on; keepalive_requests 100000000; client_max_body_size 64m; client_body_buffer_size 1m;
  upstream backends {{ {servers} keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://backends; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 300s; }}
  }}
}}
""")
    child = start([nginx_binary(), "-c", conf], Path(work) / "nginx.out")
    wait_ok(child, port, "/health", log=Path(work) / "nginx.out")
    return Proxy("nginx", child, port)


def nginx_binary():
    """nginx's path; installed from the distribution when it is missing and we may."""
    found = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        subprocess.run(["apt-get", "update", "-qq"], check=False, env=env, stdout=subprocess.DEVNULL)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "nginx-light"], check=True, env=env, stdout=subprocess.DEVNULL)
        found = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        raise SystemExit("nginx is missing: apt-get install nginx-light")
    return found


def generate(generator, command, **more):
    """Runs one command of the generator; its JSON answer."""
    argv = [str(generator), command]
    for name, value in more.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} failed")
    return json.loads(done.stdout)


def workdir():
    """A folder for logs and configurations that is gone with the script. World-readable: nginx's workers are another user's."""
    path = tempfile.mkdtemp(prefix="proxybench-")
    os.chmod(path, 0o755)
    atexit.register(shutil.rmtree, path, True)
    return path


def finish(args, report, failures):
    """Prints the result; the exit code."""
    report = dict(report, failures=failures, ok=not failures)
    for failure in failures:
        say(f"FAILED {failure}")
    print(json.dumps(report, indent=None if args.json else 1), flush=True)
    return 1 if failures else 0
