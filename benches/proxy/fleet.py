"""Simulated replicas (`homing mock`) as processes of their own, a router before them, and a small HTTP client over asyncio streams."""
import asyncio
import json
import subprocess
import time
import urllib.request
from pathlib import Path

import bench


class Mock:
    """One simulated replica; it can be killed and started again under the same address."""

    def __init__(self, binary, port, work, slow=None, profile="demo"):
        self.binary, self.port, self.work, self.slow, self.profile = binary, port, Path(work), slow, profile
        self.child = None

    def start(self):
        argv = [self.binary, "mock", "--listen", f"127.0.0.1:{self.port}", "--profile", self.profile, "--seed", 7]
        self.child = bench.start(argv, self.work / f"mock-{self.port}.log")
        return self

    def ready(self):
        bench.wait_ok(self.child, self.port, "/health", log=self.work / f"mock-{self.port}.log")
        if self.slow:
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/mock/faults", json.dumps({"slow": self.slow}).encode())
            urllib.request.urlopen(request, timeout=5).read()
        return self

    def kill(self):
        """As a machine that loses power."""
        self.child.kill()
        self.child.wait()
        bench._children.remove(self.child)


def router(binary, mocks, work, config):
    """The router with a configuration of its own."""
    port = bench.free_ports(3)
    path = Path(work) / "homing.yaml"
    replicas = "".join(f"  - url: http://127.0.0.1:{mock.port}\n" for mock in mocks)
    path.write_text(f"replicas:\n{replicas}log: {{access: 'off'}}\n{config}")
    argv = [binary, "serve", "--config", path, "--listen", f"127.0.0.1:{port}", "--metrics", f"127.0.0.1:{port + 1}",
            "--admin", f"127.0.0.1:{port + 2}"]
    log = Path(work) / "homing.log"
    child = bench.start(argv, log)
    bench.wait_ok(child, port + 1, "/readyz", log=log)
    proxy = bench.Proxy("homing", child, port, port + 1, port + 2)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        seen = json.loads(bench.get(proxy.admin, "/replicas")[1])
        rows = seen if isinstance(seen, list) else seen.get("replicas", [])
        if sum(row.get("state") == "ready" for row in rows) == len(mocks):
            break
        time.sleep(0.05)
    return proxy


class Connection:
    """A keep-alive connection. One request at a time."""

    def __init__(self, port):
        self.port, self.reader, self.writer = port, None, None

    async def post(self, path, body):
        """Status, headers and the whole body; raises OSError or EOFError when the connection breaks."""
        if self.writer is not None and self.reader.at_eof():
            # The router closes what has been idle for longer than `limits.client_idle`.
            self.close()
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        self.writer.write(
            b"POST %s HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nx-homing-explain: 1\r\ncontent-length: %d\r\n\r\n%s"
            % (path.encode(), len(body), body)
        )
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            lines = head.split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
            if "content-length" in headers:
                content = await self.reader.readexactly(int(headers["content-length"]))
            else:
                content = await self._chunks()
            if headers.get("connection") == "close":
                self.close()
            return int(lines[0].split()[1]), headers, content
        except asyncio.IncompleteReadError as error:
            self.close()
            raise EOFError(str(error)) from None
        except OSError:
            self.close()
            raise

    async def _chunks(self):
        parts = []
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
            if size == 0:
                return b"".join(parts)
            parts.append(data[:-2])

    def close(self):
        if self.writer is not None:
            self.writer.close()
            self.writer = None


def binary(args):
    """The router's binary, built if none was given."""
    if args.homing:
        return args.homing
    target = Path(bench.os.environ.get("CARGO_TARGET_DIR", bench.ROOT / "target"))
    subprocess.run(["cargo", "build", "--release", "--quiet", "--bin", "homing", "--manifest-path", str(bench.ROOT / "Cargo.toml")], check=True)
    return target / "release/homing"
