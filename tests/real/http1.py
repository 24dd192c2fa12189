"""A small HTTP/1.1 client on asyncio: kept connections, bodies of any size, whole answers. Standard library only."""
import asyncio


class Answer:
    """Status, headers (lower case) and body of one answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes):
        self.status, self.headers, self.body = status, headers, body


class Connection:
    """One kept connection; made when it is first needed, and again when the other side has closed it."""

    def __init__(self, port: int):
        self.port, self.reader, self.writer = port, None, None

    async def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, timeout: float = 120.0) -> Answer:
        """Sends a request and reads the whole answer."""
        return await asyncio.wait_for(self._ask(method, path, body, headers or {}), timeout)

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        head = [f"{method} {path} HTTP/1.1", "host: gateway"]
        if method == "POST":
            head += ["content-type: application/json", f"content-length: {len(body)}"]
        head += [f"{k}: {v}" for k, v in headers.items()]
        self.writer.write("\r\n".join(head).encode() + b"\r\n\r\n")
        for at in range(0, len(body), 1 << 18):
            self.writer.write(body[at : at + (1 << 18)])
            await self.writer.drain()
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        got = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        if got.get("transfer-encoding") == "chunked":
            data = await self._chunks()
        else:
            data = await self.reader.readexactly(int(got.get("content-length", "0")))
        if got.get("connection") == "close":
            self.close()
        return Answer(status, got, data)

    async def _chunks(self) -> bytes:
        parts = []
        while size := int((await self.reader.readline()).split(b";")[0], 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
        await self.reader.readline()
        return b"".join(parts)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None
