"""The store of the example and of the page "Write your own store" keeps the contract, over several processes too."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.docs_pages import DOCS, ROOT, blocks
from twiceproof import Engine
from twiceproof.core._record import Found, Granted, Held, Token
from twiceproof.errors import ConfigurationError, StoreUnavailable
from twiceproof.stores import Store, in_threads
from twiceproof.testing import Driven, DurableStoreContract, FakeClock
from twiceproof.testing.store_contract._ground import AGAIN, LEASE, kept, new_record

EXAMPLE = ROOT / "examples" / "custom_store.py"
PAGE = DOCS / "custom_store.md"


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location("custom_store", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FolderStore = _loaded().FolderStore

COLOURS: dict[str, Callable[[Any], Any]] = {"blocking": lambda store: store, "async": lambda s: Driven(in_threads(s))}


class TestFolderStore(DurableStoreContract):
    @pytest.fixture(autouse=True)
    def no_disk(self, monkeypatch):
        """Don't wait for the disk: nothing but a power cut would show it."""
        monkeypatch.setattr(os, "fsync", lambda file: None)

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def advance(self, clock) -> Callable[[float], None]:
        return clock.advance

    @pytest.fixture(params=COLOURS)
    def another(self, request, tmp_path, clock) -> Iterator[Callable[[], Store]]:
        opened: list[Any] = []

        def open_another() -> Store:
            store = FolderStore(tmp_path / "keys")
            store.now = clock
            opened.append(COLOURS[request.param](store))
            return opened[-1]

        yield open_another
        for store in opened:
            getattr(store, "stop", store.close)()

    @pytest.fixture
    def store(self, another) -> Store:
        return another()


CHILD = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {examples!r})
from custom_store import FolderStore
from twiceproof.core._record import Granted, Guarantee, NewRecord

def record(number):
    return NewRecord(b"%032d" % number, "tests", b"p", "POST /", "/", b"k", b"f", Guarantee.AT_LEAST_ONCE, 1000.0)

store = FolderStore(Path({folder!r}))
"""


def child(folder: Path, program: str) -> subprocess.Popen[str]:
    """Start a process with a store over the folder."""
    source = CHILD.format(examples=str(EXAMPLE.parent), folder=str(folder)) + program
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)


def test_it_is_about_thirty_lines_long():
    """Its code, and that of the function it uses, without blank lines."""
    source = EXAMPLE.read_text().partition("class FolderStore")[2].partition("\nsent: ")[0]
    assert len([line for line in source.splitlines() if line.strip()]) <= 40


def test_the_page_shows_the_example():
    """Letter by letter; what runs here is what a reader copies."""
    imports, _, store = blocks(PAGE, "python")[0].partition("class FolderStore")
    example = EXAMPLE.read_text()
    assert set(imports.splitlines()) <= set(example.splitlines())
    assert store.strip() in example


@pytest.mark.slow
def test_the_suite_on_the_page_passes(tmp_path):
    """Both files saved as the page says, and pytest run as it says."""
    (tmp_path / "custom_store.py").write_text(blocks(PAGE, "python")[0])
    (tmp_path / "test_custom_store.py").write_text(blocks(PAGE, "py")[0])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (ran.returncode, ran.stdout.splitlines()[-1].split()[1:2]) == (0, ["passed"])


def test_of_four_processes_one_is_granted_each_key(tmp_path):
    """R22: over real processes that begin at the same moment, on a folder that none of them finds."""
    program = f"""
while time.time() < {time.time() + 1.0}: pass
for number in range(40):
    if type(store.claim(record(number), 60.0, b"%d" % os.getpid())) is Granted:
        print(number)
"""
    children = [child(tmp_path / "keys", program) for _ in range(4)]
    outputs = [process.communicate(timeout=60)[0] for process in children]
    assert [process.returncode for process in children] == [0] * 4
    assert Counter(number for output in outputs for number in output.split()) == {str(n): 1 for n in range(40)}


def test_a_killed_holder_leaves_its_record_and_no_lock(tmp_path):
    """R21, R27: kill -9 while it holds a claim and, for ever, the lock: the claim is on disk, others go on."""
    program = """
store.claim(record(1), 1.0, b"held")
def die(stored):
    print("locked", flush=True)
    time.sleep(60)
store.change(record(1).id, die)
"""
    process = child(tmp_path / "keys", program)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    store = FolderStore(tmp_path / "keys")
    lapsed = kept(store, b"%032d" % 1)
    assert lapsed.token == Token(1, b"held")
    store.now = lambda: time.time() + 5.0
    new = new_record(AGAIN, id=lapsed.id, fingerprint=b"f")
    answer = store.claim(new, LEASE, b"next")
    assert (type(answer), answer.token) == (Granted, Token(2, b"next"))


def test_a_lock_that_nobody_lets_go_of_is_unavailable_in_time(tmp_path):
    """R48: nothing is written, and the same call works afterwards."""
    store = FolderStore(tmp_path / "keys")
    new = new_record()
    store.check()
    folder = os.open(tmp_path / "keys", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with pytest.raises(StoreUnavailable, match="holds the folder's lock"):
        store.claim(new, LEASE, b"n1")
    os.close(folder)
    assert store.get(new.id) is None
    assert type(store.claim(new, LEASE, b"n1")) is Granted


def test_a_child_forked_in_the_middle_takes_no_lock_along(tmp_path):
    """R41: the parent's verb ends, the child lives on, and others claim."""
    program = """
def forks(stored):
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    print(child, flush=True)
    return stored
store.change(record(1).id, forks)
print("free", flush=True)
time.sleep(30)
"""
    process = child(tmp_path / "keys", program)
    assert process.stdout is not None
    forked = int(process.stdout.readline())
    try:
        assert process.stdout.readline() == "free\n"
        answer = FolderStore(tmp_path / "keys").claim(new_record(), LEASE, b"n1")
        os.kill(forked, 0)  # it is still there
        assert type(answer) is Granted
    finally:
        for pid in (forked, process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=20)


def test_a_draft_that_a_crash_left_is_no_record(tmp_path):
    """Whoever died while writing left the old row, and the next write begins a new draft."""
    store = FolderStore(tmp_path / "keys")
    new = new_record()
    store.claim(new, LEASE * 60, b"n1")
    (tmp_path / "keys" / "draft").write_bytes(b"half a ro")
    assert type(store.claim(new, LEASE, b"n2")) is Held
    assert [id for id, _ in store.rows()] == [new.id]
    store.complete(new.id, b"n1", b"answer", 60.0)
    assert type(store.claim(new, LEASE, b"n2")) is Found


def test_a_folder_that_cannot_be_made_fails_at_construction(tmp_path):
    """R41: in one sentence that names the reason."""
    (tmp_path / "keys").write_text("a file")
    with pytest.raises(ConfigurationError, match=r"FolderStore can't keep records: .*File exists"):
        Engine(FolderStore(tmp_path / "keys"))
