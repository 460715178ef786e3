"""A store of one's own: one file for each record in a folder, for any number of processes on one host.

python examples/custom_store.py
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from twiceproof import Attempt, Engine, Policy, Request, Response
from twiceproof.errors import StoreUnavailable
from twiceproof.stores import Capabilities, RowStore, Step


class FolderStore(RowStore):
    capabilities = Capabilities(durable=True)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        for path in self.folder.glob("*.row"):
            with suppress(FileNotFoundError):  # it was deleted meanwhile
                yield bytes.fromhex(path.stem), path.read_bytes()

    def change(self, id: bytes, step: Step) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path, draft = self.folder / f"{id.hex()}.row", self.folder / "draft"
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            lock(folder)  # all threads and processes; one that dies lets go of it
            before = path.read_bytes() if path.exists() else None
            after = step(before)
            if after is None:
                path.unlink(missing_ok=True)
            elif after is not before:
                with draft.open("wb") as file:
                    file.write(after)
                    file.flush()
                    os.fsync(file)
                draft.replace(path)  # whoever dies here leaves the old row or the new one
            os.fsync(folder)  # on disk before anybody relies on it
        finally:
            fcntl.flock(folder, fcntl.LOCK_UN)
            os.close(folder)


def lock(folder: int, timeout: float = 2.0) -> None:
    until = time.monotonic() + timeout
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise StoreUnavailable("Somebody holds the folder's lock.") from None
            time.sleep(0.001)


sent: list[bytes] = []


def send_invoice(request: Request, attempt: Attempt) -> Response:
    sent.append(request.body)  # the effect
    return Response(200, body=b"invoice %d" % len(sent))


def main() -> None:
    request = Request("POST", b"/invoices", headers=[(b"idempotency-key", b"m-1")], body=b"customer 4")
    with Engine(FolderStore(Path("keys"))) as engine:
        for _ in range(2):
            answer = engine.handle(request, principal="billing", policy=Policy(), handler=send_invoice)
            print(answer.status, answer.body, answer.header(b"idempotent-replayed"))
    print(len(sent), "sent")


if __name__ == "__main__":
    main()
