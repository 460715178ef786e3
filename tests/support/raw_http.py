"""HTTP/1.1 over a plain socket, byte by byte where a test wants that."""

import json
import socket
from dataclasses import dataclass
from typing import Any, Self


@dataclass
class Reply:
    """An answer as it came. ``whole``: it ended as its framing says, not with the connection."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    whole: bool

    def all(self, name: str) -> list[bytes]:
        return [value for field, value in self.headers if field.lower() == name.encode()]

    @property
    def replayed(self) -> bool:
        return self.all("idempotent-replayed") == [b"true"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json["code"] if self.all("content-type") == [b"application/problem+json"] else ""

    @property
    def brief(self) -> tuple[int, bool, bytes]:
        return self.status, self.replayed, self.body


def request(
    key: str | None,
    body: bytes = b'{"n":1}',
    *,
    path: str = "/orders",
    chunked: bool = False,
    media: str = "application/json",
    **fields: str,
) -> bytes:
    """A POST as bytes; ``fields`` are further header fields, with _ for -."""
    lines = [f"POST {path} HTTP/1.1", "host: t", f"content-type: {media}"]
    if key is not None:
        lines.append(f"idempotency-key: {key}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    lines.append("transfer-encoding: chunked" if chunked else f"content-length: {len(body)}")
    if chunked:
        halves = [half for half in (body[: len(body) // 2], body[len(body) // 2 :]) if half]
        body = b"".join(b"%x\r\n%b\r\n" % (len(half), half) for half in halves) + b"0\r\n\r\n"
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class Connection:
    """One connection of one client."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.buffer = b""
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, key: str | None, **options: Any) -> Reply:
        self.send(request(key, **options))
        return self.read()

    def more(self) -> bool:
        """Read what has arrived; say whether there was anything."""
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        self.ended = not data
        self.buffer += data
        return not self.ended

    def until(self, mark: bytes) -> bytes:
        """Take from the stream up to and with a mark, or what there is when the connection ends."""
        while mark not in self.buffer:
            if not self.more():
                data, self.buffer = self.buffer, b""
                return data
        data, _, self.buffer = self.buffer.partition(mark)
        return data + mark

    def exactly(self, size: int) -> bytes:
        while len(self.buffer) < size and self.more():
            pass
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def head(self) -> Reply:
        """Read the head of the next final answer."""
        while True:
            lines = self.until(b"\r\n\r\n").split(b"\r\n")
            assert lines[0].startswith(b"HTTP/1."), lines[0]
            status = int(lines[0].split()[1])
            if status >= 200 or status == 101:
                break
        fields = [line.partition(b":") for line in lines[1:] if line]
        return Reply(status, [(name.strip(), value.strip(b" ")) for name, _, value in fields], b"", whole=True)

    def chunk(self) -> bytes | None:
        """Read one chunk of a body, or nothing at its end; None where the connection ends first."""
        line = self.until(b"\r\n")
        if not line.endswith(b"\r\n"):
            return None
        size = int(line, 16)
        data = self.exactly(size + 2)
        return data[:size] if len(data) == size + 2 else None

    def read(self) -> Reply:
        """Read the next answer."""
        reply = self.head()
        if reply.all("transfer-encoding") == [b"chunked"]:
            while chunk := self.chunk():
                reply.body += chunk
            reply.whole = chunk is not None
        elif lengths := reply.all("content-length"):
            reply.body = self.exactly(int(lengths[0]))
            reply.whole = len(reply.body) == int(lengths[0])
        elif reply.status not in (204, 304):
            while self.more():
                pass
            reply.body, self.buffer = self.buffer, b""
        return reply
