"""Both blocking doors behind real servers: waitress, gunicorn with two processes, werkzeug and wsgiref."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.raw_http import request
from tests.support.wsgi_app import SETTINGS
from tests.support.wsgi_server import ROOT, serving, until

pytestmark = pytest.mark.slow

DOORS = ["wsgi", "flask"]


@pytest.fixture(params=[(kind, door) for kind in ("waitress", "gunicorn", "gthread") for door in DOORS], ids="-".join)
def server(request, tmp_path):
    kind, door = request.param
    with serving(kind, tmp_path, door, lease=1) as server:
        yield server


def test_the_promises_hold_over_a_socket(server):
    """R21-R26, R43, B43, B45: one server after the other, each with real chunks, streams, files and lost answers."""
    first, again, other = server.post("k1"), server.post("k1"), server.post("k1", body=b'{"n":2}')
    assert (first.status, first.replayed, again.brief) == (201, False, (201, True, first.body))
    assert (other.code, other.whole) == ("idempotency-key-reuse", True)
    assert [server.post(None).json["effect"] for _ in range(2)] == [2, 3]
    assert server.post("caf\xe9").code == server.post("a, b").code == "idempotency-key-invalid"

    chunked = server.post("k2", chunked=True)
    assert chunked.json["sha256"] == first.json["sha256"]  # the application has read the very same bytes
    seen = [server.post("k2", chunked=True).replayed, server.post("k2").replayed]
    assert (seen, server.post("k2", body=b'{"n":3}', chunked=True).code) == ([True, True], "idempotency-key-reuse")

    stream = [server.post("k3", x_mode="stream") for _ in range(2)]
    assert [(one.body, one.whole, one.replayed) for one in stream] == [
        (b"part 0\npart 1\npart 2\nend\n", True, False),
        (b"part 0\npart 1\npart 2\nend\n", True, True),
    ]
    cut = server.post("k4", x_mode="cut")
    assert (cut.status, cut.whole) == (201, False)
    assert server.post("k4", x_mode="cut").code == "outcome-unknown"
    empty = [server.post("k5", x_mode="empty") for _ in range(2)]
    assert [(one.status, one.body, one.replayed) for one in empty] == [(204, b"", False), (204, b"", True)]
    failed = [server.post("k6", x_mode="raise") for _ in range(2)]
    assert [(one.status, one.whole) for one in failed] == [(500, True)] * 2
    assert failed[1].code == "outcome-unknown"
    effects = server.effects
    file = server.post("k7", x_mode="file")
    assert (file.body, file.whole) == (b"*" * (effects + 1), True)
    assert server.post("k7", x_mode="file").code == "replay-unavailable"
    other_account = server.post("k1", x_account="bert")
    assert (other_account.status, other_account.replayed) == (201, False)
    # first, two without a key, the chunked one, streams, the empty one, the failed one, the file, the other account
    assert server.effects == 10
    until(lambda: server.counts()["closed"] == 7)  # every answer that was watched, once each


def test_the_first_part_of_a_stream_comes_while_the_others_are_made(server):
    """R43: over a socket too."""
    with server.connect() as connection:
        connection.send(request("k1", x_mode="stream", x_gap="0.4"))
        assert connection.head().status == 201
        assert connection.chunk() == b"part 0\n"
        assert server.post("k1", x_mode="stream", x_gap="0.4").code == "in-progress"
        rest = []
        while chunk := connection.chunk():
            rest.append(chunk)
    assert (b"".join(rest), server.effects) == (b"part 1\npart 2\nend\n", 1)


def test_a_client_that_leaves_before_the_answer_finds_it_later(server):
    """R44: a handler is not stopped by that, and its answer was recorded before it was sent."""
    with server.connect() as connection:
        connection.send(request("k1", x_sleep="0.5"))
        until(lambda: server.effects)
    until(lambda: server.post("k1").replayed)
    assert server.effects == 1


def test_a_client_that_leaves_a_stream_cuts_it_short(server):
    """R50, B45: the answer is closed once, and the outcome is unknown."""
    with server.connect() as connection:
        connection.send(request("k1", x_mode="endless", x_gap="0.02"))
        connection.head()
    until(lambda: server.counts()["closed"])
    until(lambda: server.post("k1", x_mode="endless", x_gap="0.02").code == "outcome-unknown")
    assert (server.effects, server.counts()["closed"]) == (1, 1)


@pytest.mark.parametrize("end", ["close", "shut"])
def test_a_body_cut_off_on_its_way_runs_nothing(server, end):
    """R52: whoever left; the key is free for the whole request."""
    with server.connect() as connection:
        connection.send(request("k1")[:-3])
        if end == "shut":
            connection.socket.shutdown(1)
            connection.until(b"\r\n\r\n")
    assert server.post("k1").brief[:2] == (201, False)
    assert server.effects == 1


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["gunicorn", "gthread"])
def test_of_fifty_duplicates_over_two_processes_one_runs(kind, door, tmp_path):
    """R22, R41: on one SQLite file, loaded before and after the fork; the others are told 409 or get the answer."""
    with serving(kind, tmp_path, door) as server:
        until(lambda: len({server.counts()["pid"] for _ in range(8)}) == 2)
        connections = [server.connect() for _ in range(50)]
        data = request("k1", x_sleep="0.2", connection="close")
        try:
            with ThreadPoolExecutor(50) as pool:

                def ask(connection):
                    connection.send(data)
                    reply = connection.read()
                    connection.socket.close()  # gunicorn lingers until its client closes
                    return reply

                replies = list(pool.map(ask, connections))
        finally:
            for connection in connections:
                connection.socket.close()
        first = [reply for reply in replies if reply.status == 201 and not reply.replayed]
        assert (len(first), server.effects) == (1, 1)
        assert {reply.code or reply.body for reply in replies if reply not in first} <= {"in-progress", first[0].body}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("guarantee", "seen", "effects"), [("at_most_once", "outcome-unknown", 1), ("at_least_once", "", 2)]
)
def test_a_killed_worker_leaves_neither_a_doubled_effect_nor_a_stuck_key(door, guarantee, seen, effects, tmp_path):
    """R27-R29: kill -9 in mid-view: 409 until the lease is over, then what the guarantee says; a new worker serves."""
    with serving("gthread", tmp_path, door, lease=1.5, guarantee=guarantee) as server:
        pids: set[int] = set()
        with server.connect() as connection:
            connection.send(request("k1", x_sleep="1", x_mode="plain"))
            until(lambda: server.effects)
            while len(pids) < 2:
                pids.add(server.counts()["pid"])
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert not connection.until(b"\r\n\r\n")
        while (code := server.post("k1", x_sleep="1").code) == "in-progress":
            time.sleep(0.05)
        assert (code, server.effects) == (seen, effects)
        again = server.post("k1", x_sleep="1")
        assert (again.code, again.replayed) == (seen, guarantee == "at_least_once")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["gunicorn", "gthread"])
def test_a_stopped_server_finishes_what_runs(kind, door, tmp_path):
    """R41: the answer is delivered and recorded, and the next process replays it."""
    with serving(kind, tmp_path, door) as server, server.connect() as connection:
        connection.send(request("k1", x_sleep="0.7"))
        until(lambda: server.effects) if kind == "gthread" else until((tmp_path / "effects").exists)
        server.process.send_signal(signal.SIGTERM)
        first = connection.read()
        assert server.process.wait(20) == 0
        assert "Traceback" not in server.log.read_text()
    with serving(kind, tmp_path, door) as server:
        assert (first.status, server.post("k1").brief) == (201, (201, True, first.body))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["werkzeug", "wsgiref"])
def test_servers_for_development_keep_the_promises_too(kind, door, tmp_path):
    """HTTP/1.0 answers that end with the connection; wsgiref can't tell where a chunked body ends (B43)."""
    with serving(kind, tmp_path, door) as server:
        first, again = server.post("k1"), server.post("k1")
        assert (first.status, again.brief) == (201, (201, True, first.body))
        stream = [server.post("k2", x_mode="stream").body for _ in range(2)]
        assert stream == [b"part 0\npart 1\npart 2\nend\n"] * 2
        chunked = server.post("k3", chunked=True)
        if kind == "wsgiref":
            assert (chunked.code, server.effects) == ("body-incomplete", 2)
        else:
            assert chunked.json["sha256"] == first.json["sha256"]
            assert server.post("k3").replayed


def test_an_encoded_slash_is_told_apart_where_the_server_shows_it(tmp_path):
    """R16: waitress, gunicorn and werkzeug do; wsgiref doesn't, and the log says so."""
    seen = {}
    for kind in ("waitress", "gunicorn", "werkzeug", "wsgiref"):
        folder = tmp_path / kind
        folder.mkdir()
        with serving(kind, folder) as server:
            server.post("k1", path="/a/b")
            replayed = server.post("k1", path="/a%2Fb").replayed
            seen[kind] = (replayed, "/a%2Fb and /a/b are one operation" in server.log.read_text())
    told = {"waitress": (False, False), "gunicorn": (False, False), "werkzeug": (False, False)}
    assert seen == told | {"wsgiref": (True, True)}


def test_http_1_0_and_a_wrong_request_line_do_no_harm(tmp_path):
    """R52."""
    with serving("gunicorn", tmp_path) as server, server.connect() as connection:
        connection.send(request("k1", x_mode="stream").replace(b"HTTP/1.1", b"HTTP/1.0"))
        reply = connection.read()
        assert (reply.status, reply.body) == (201, b"part 0\npart 1\npart 2\nend\n")
        assert server.post("k1", x_mode="stream").replayed


def test_flask_run_serves_a_protected_application(tmp_path):
    """The command line of Flask loads the application as any other."""
    command = [sys.executable, "-m", "flask", "--app", "tests.support.wsgi_app:make_flask", "routes"]
    settings = {"effects": str(tmp_path / "e"), "policy": {}, "door": {"store": f"sqlite:///{tmp_path}/keys.db"}}
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {SETTINGS: json.dumps(settings)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, "POST" in ran.stdout, "/orders" in ran.stdout) == (0, True, True), ran.stderr
