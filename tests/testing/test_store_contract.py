"""The public store suite tells a faulty store, and says what it needs."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest

from tests.support import faulty_keepings, faulty_rulings
from tests.support.row_stores import SharedRows
from tests.support.store_suite import cases, failed

FAULTS = [
    kind
    for module in (faulty_rulings, faulty_keepings)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, SharedRows) and kind is not SharedRows
]


def test_a_store_without_fault_passes():
    """What the faulty ones below are made of fails nothing, so their failures are their faults'."""
    assert failed(SharedRows.sharing) == set()


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_a_faulty_store_fails(kind):
    """Each by the test that promises the opposite of its fault, whatever else it fails."""
    assert failed(kind.sharing, {kind.caught_by}) == {kind.caught_by}


def test_no_test_of_the_suite_is_idle():
    """Each is failed by a store with one fault."""
    idle = {name for name, _ in cases()} - {kind.caught_by for kind in FAULTS}
    for kind in FAULTS:
        idle -= failed(kind.sharing, idle)
    assert idle == set()


def test_pytest_collects_a_subclass_and_reports_its_failures(tmp_path):
    """R22, R30: as a third party has it, in a folder of its own; what was compared is shown."""
    (tmp_path / "test_mine.py").write_text(
        textwrap.dedent("""
            import pytest
            from twiceproof.stores.memory import MemoryStore
            from twiceproof.testing import FakeClock, StoreContract

            class Wrong(MemoryStore):
                def release(self, id, nonce):
                    return super().complete(id, nonce, b"", 1.0)

            class TestMine(StoreContract):
                @pytest.fixture
                def clock(self):
                    return FakeClock()

                @pytest.fixture
                def advance(self, clock):
                    return clock.advance

                @pytest.fixture
                def store(self, clock):
                    return Wrong(clock)

            class TestWithoutAStore(StoreContract):
                pass
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "released_key", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert re.fullmatch(r"1 failed, \d+ deselected, 1 error in .*", ran.stdout.splitlines()[-1])
    assert "assert Record(id=" in ran.stdout
    assert "TestWithoutAStore must override the fixture `store`." in ran.stdout


def test_without_pytest_the_suite_says_what_to_install():
    """The rest of the room works, the explorer too; whoever subclasses the suite is told of the extra."""
    program = """
        import sys
        sys.modules["pytest"] = None
        import importlib.util
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, package=None: None if name == "pytest" else found(name, package)
        import twiceproof.testing.explorer
        from twiceproof.testing import DurableStoreContract, FakeClock
        try:
            class TestMine(DurableStoreContract): ...
        except ImportError as error:
            print(error)
        try:
            import twiceproof.testing.store_contract
        except ImportError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.stdout.splitlines(), ran.stderr) == (
        [
            "TestMine needs pytest: pip install 'twiceproof[testing]'",
            "twiceproof.testing.store_contract needs pytest: pip install 'twiceproof[testing]'",
        ],
        "",
    )
