"""A FastAPI service under uvicorn in a process of its own, for tests over real sockets.

``python -m tests.support.fastapi_program FD STORE FOLDER``: serves on the listening socket FD. Every effect is a line
in FOLDER/effects; a slow handler ends when FOLDER/go exists.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


def make_app(store: str, folder: Path) -> Any:
    from fastapi import FastAPI
    from fastapi.middleware.gzip import GZipMiddleware
    from pydantic import BaseModel

    from twiceproof.server.fastapi import Idempotency, anonymous

    class Order(BaseModel):
        n: int

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        effect("up")
        yield
        effect("down")

    def effect(name: str) -> int:
        with (folder / "effects").open("a") as file:
            file.write(f"{name}\n")
        return (folder / "effects").read_text().split().count(name)

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(GZipMiddleware, minimum_size=400)
    idempotency = Idempotency(store=store, principal=anonymous, accept_volatile=True)
    idempotency.install(app)

    @app.post("/orders", status_code=201)
    @idempotency.operation()
    async def create(order: Order) -> dict[str, int]:
        return {"effect": effect("order"), "n": order.n}

    @app.post("/long")
    @idempotency.operation()
    async def long(order: Order) -> str:
        return "x" * 1000 + str(effect("long"))

    @app.post("/lines")
    @idempotency.operation()
    async def lines(order: Order) -> AsyncIterator[int]:
        for _ in range(order.n):
            yield effect("line")

    @app.post("/slow", status_code=201)
    @idempotency.operation()
    def slow(order: Order) -> dict[str, int]:
        number = effect("slow")
        until = time.monotonic() + 30
        while not (folder / "go").exists() and time.monotonic() < until:
            time.sleep(0.01)
        return {"effect": number}

    return app


def main() -> None:
    import uvicorn

    listener = socket.socket(fileno=int(sys.argv[1]))
    app = make_app(sys.argv[2], Path(sys.argv[3]))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="on")
    uvicorn.Server(config).run(sockets=[listener])


@dataclass
class Program:
    """The running service."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path

    def count(self, name: str) -> int:
        path = self.folder / "effects"
        return path.read_text().split().count(name) if path.exists() else 0

    def until(self, name: str, count: int = 1) -> None:
        """Wait until so many effects have taken place."""
        end = time.monotonic() + 20
        while self.count(name) < count:
            assert time.monotonic() < end, f"{name} did not happen"
            time.sleep(0.01)

    def connect(self) -> "Wire":
        return Wire(socket.create_connection(("127.0.0.1", self.port), timeout=20))

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


class Wire:
    """One connection, spoken by hand."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._read = connection.makefile("rb")

    def send(self, key: str, body: object = {"n": 1}, path: str = "/orders", extra: str = "") -> None:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
            f"IDEMPOTENCY-KEY: {key}\r\n{extra}\r\n"
        )
        self.connection.sendall(head.encode("latin-1") + data)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Read one answer, by its own framing."""
        status = int(self._read.readline().split()[1])
        fields: dict[str, str] = {}
        while (line := self._read.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            fields[name.lower()] = value.strip()
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._read.readline(), 16):
                body += self._read.read(size)
                self._read.readline()
            self._read.readline()
        else:
            body = self._read.read(int(fields.get("content-length", 0)))
        return status, fields, body

    def ask(self, *args: Any, **options: Any) -> tuple[int, bool, bytes]:
        self.send(*args, **options)
        status, fields, body = self.answer()
        return status, fields.get("idempotent-replayed") == "true", body

    def close(self) -> None:
        self._read.close()
        self.connection.close()


@contextmanager
def program(folder: Path, store: str = "memory://") -> Iterator[Program]:
    """Start the service; it is stopped at the end, whatever happened."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        fd = listener.fileno()
        command = [sys.executable, "-m", "tests.support.fastapi_program", str(fd), store, str(folder)]
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, pass_fds=[fd])
        port = listener.getsockname()[1]
    try:
        yield Program(process, port, folder)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


if __name__ == "__main__":
    main()
