"""Making the WSGI door: what start-up refuses and warns of, and when the engine opens and closes: R12, R41, R49."""

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.wsgi_door import Counter, Door, call, environ_of
from twiceproof import ConfigurationError, Policy, TwiceproofWarning
from twiceproof.server import wsgi
from twiceproof.server.wsgi import IdempotencyMiddleware, anonymous
from twiceproof.stores.memory import AsyncMemoryStore


def make(app=None, **options):
    given: dict[str, Any] = {"store": "memory://", "principal": anonymous, "accept_volatile": True} | options
    return IdempotencyMiddleware(app or Counter(), **given)


async def waits(environ):
    return "ann"


class Waits:
    async def __call__(self, environ):
        return "ann"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"principal": None}, "whose keys are they?"),
        ({"principal": waits}, "principal= is an async function"),
        ({"principal": Waits()}, "principal= is an async function"),
        ({"required": True}, "required is an option of Policy"),
        ({"drian": 1}, "did you mean drain?"),
        ({"policy": 7}, "policy must be a Policy or a mapping"),
        ({"policy": {"POST /a": Policy(reconcile=waits)}}, "reconcile is an async function"),
        ({"store": "sqlite:////no/such/folder/keys.db"}, "no/such/folder"),
        ({"store": AsyncMemoryStore()}, "needs a blocking Store"),
        ({"accept_volatile": False}, "accept_volatile=True"),
    ],
)
def test_a_wrong_set_up_fails_at_start_up(options, sentence):
    """R12, R41: in one sentence that says what to change."""
    with pytest.raises(ConfigurationError, match=sentence.replace("?", r"\?")):
        make(**options)


def test_its_names_are_those_of_every_door():
    """The same names in each."""
    assert wsgi.__all__ == ["IdempotencyMiddleware", "Policy", "anonymous", "by_authorization"]


class GzipMiddleware:
    def __init__(self, application):
        self.application = application


class Flask:
    def wsgi_app(self, environ, start_response): ...


@pytest.mark.parametrize(
    ("app", "warning"),
    [
        (GzipMiddleware(Counter()), "GzipMiddleware stands inside"),
        (Flask(), "around a Flask object .* use twiceproof.server.flask"),
        (Flask().wsgi_app, "around a Flask object"),
        (GzipMiddleware(Flask().wsgi_app), "around a Flask object"),
    ],
)
@pytest.mark.filterwarnings("ignore::twiceproof.TwiceproofWarning")
def test_what_stands_on_the_wrong_side_is_warned_of(app, warning):
    """R49: compression inside us, and an application that authenticates inside."""
    with pytest.warns(TwiceproofWarning, match=warning):
        make(app)


def test_a_chain_that_bites_its_tail_is_walked_once():
    """Whatever wraps what, start-up ends."""
    ring = GzipMiddleware(None)
    ring.application = ring
    with pytest.warns(TwiceproofWarning) as told:
        make(ring)
    assert len(told) == 1


def test_the_engine_opens_at_the_first_covered_request():
    """R41: not at import, not for others; a store that is down then is tried again."""
    with Door(Counter()) as door:
        door.call(method="GET")
        door.call(key=None)
        before = list(door.faults.calls)
        door.call()
        door.call()
    assert (before, door.faults.calls) == ([], ["open", "claim", "complete", "claim", "close"])


def test_a_process_that_forked_has_a_connection_and_a_thread_of_its_own(tmp_path):
    """R41: as under a server that loads the application before it forks; both see one store."""
    app = Counter()
    middleware = make(app, store=f"sqlite:///{tmp_path}/keys.db")
    assert run(middleware, "k1") == (201, False)
    child = os.fork()
    if not child:
        seen = []
        try:
            seen = [run(middleware, key) for key in ("k1", "k2", "k2")]
            middleware.engine.close()
        finally:
            os._exit(seen != [(201, True), (201, False), (201, True)])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [run(middleware, key) for key in ("k2", "k3")] == [(201, True), (201, False)]
    middleware.engine.close()


def run(app, key):
    seen = call(app, environ_of(key))
    return seen.code, seen.replayed


PROGRAM = """
import sys
from tests.support.wsgi_door import Counter, call, environ_of
from tests.support.faulty_store import Faults, FaultyStore
from twiceproof.server.wsgi import IdempotencyMiddleware, anonymous
from twiceproof.stores import open_store

faults = Faults()
store = FaultyStore(open_store("sqlite:///" + sys.argv[1]), faults)
app = IdempotencyMiddleware(Counter(), store=store, principal=anonymous)
call(app, environ_of())
import atexit
atexit._run_exitfuncs()
print(faults.calls[-1])
"""


def test_the_engine_closes_at_the_end_of_the_process(tmp_path):
    """R41: nobody has to call it, since WSGI knows no shutdown."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path / "keys.db")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("close\n", "")


def test_the_door_imports_no_framework():
    """It runs without any extra, and drags none in."""
    program = (
        "import sys, twiceproof.server.wsgi; print(sorted({'flask', 'werkzeug', 'fastapi', 'click'} & {*sys.modules}))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n"
