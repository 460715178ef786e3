"""What the ASGI door refuses before the handler, and before the store (R2-R8, R10, R12, R54)."""

import logging
from typing import Any

import pytest

from tests.support.asgi_client import Answer, Client, Counted, http_scope, in_loop, keyed, post
from tests.support.asgi_door import Door, SteeredStore
from twiceproof import Policy, TwiceproofWarning
from twiceproof.server.asgi import anonymous, by_authorization

KEY = b"idempotency-key"


async def send_fields(door: Any, *fields: tuple[bytes, bytes], read_nothing: bool = False) -> Answer:
    client = Client([b"{}"])

    async def unread() -> Any:
        raise AssertionError("the body was read")

    await door(http_scope(headers=[*keyed(None), *fields]), unread if read_nothing else client.receive, client.send)
    return client.answer


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([b""], "empty"),
        ([b'""'], "empty"),
        ([b"   "], "blank"),
        ([b'"  "'], "blank"),
        ([b"k" * 256], "too-long"),
        (["schl\u00fcssel".encode()], "not-ascii"),
        ([b"a\x01b"], "control-character"),
        ([b'"abc'], "malformed"),
        ([b":YWJj:x y"], "malformed"),
        ([b"one-1,two-2"], "list"),
        ([b"same-1", b"same-1"], "repeated"),
        ([b"one-1", b"two-2"], "repeated"),
    ],
)
@in_loop
async def test_a_key_that_can_not_be_used_is_refused_before_the_body_is_read(lines, reason, caplog):
    """R3, R6: also where the key is optional; no store I/O, no effect, and the value is nowhere to be seen."""
    caplog.set_level(logging.DEBUG)
    app, store = Counted(), SteeredStore()
    async with Door(app, store=store) as door:
        answer = await send_fields(door, *[(KEY, line) for line in lines], read_nothing=True)
    assert (answer.status, answer.code, answer.problem["reason"]) == (400, "idempotency-key-invalid", reason)
    assert answer.all("cache-control") == [b"no-store"]
    assert app.effects == 0
    assert store.calls == ["close"]
    assert door.events == [("refused", "idempotency-key-invalid")]
    for line in lines:
        if line.strip(b' "'):
            assert line not in answer.body
            assert line.decode("latin-1") not in caplog.text


@pytest.mark.parametrize("status", [400, 422, 428])
@in_loop
async def test_a_missing_key_is_refused_where_one_is_required(status):
    """R8, R10: with the status that was asked for, before the body and the store."""
    app, store = Counted(), SteeredStore()
    policy = {"POST /orders": Policy(required=True, missing_status=status), "*": Policy()}
    async with Door(app, store=store, policy=policy) as door:
        refused = await send_fields(door, read_nothing=True)
        elsewhere = await post(door, None, path="/notes")
    assert (refused.status, refused.code, refused.problem["retryable"]) == (status, "idempotency-key-missing", False)
    assert refused.problem["status"] == status
    assert (elsewhere.status, app.effects) == (201, 1)
    assert store.calls == ["close"]


@pytest.mark.parametrize("name", [b"idempotency-key", b"IDEMPOTENCY-KEY", b"Idempotency-Key"])
@in_loop
async def test_the_name_of_the_field_is_found_in_any_case(name):
    """R2: also where a server hands the names on as they were sent."""
    app = Counted()
    clients = [Client(), Client()]
    async with Door(app) as door:
        for client in clients:
            scope = http_scope()
            scope["headers"] = [(name, b"k1")]
            await door(scope, client.receive, client.send)
    assert [client.answer.replayed for client in clients] == [False, True]
    assert app.effects == 1


@in_loop
async def test_an_alias_names_the_same_key_and_may_not_contradict():
    """R2: equal values are one key, in whichever spelling; different ones are refused."""
    app = Counted()
    async with Door(app, policy=Policy(aliases=("X-Idempotency-Key",))) as door:
        alias = await send_fields(door, (b"x-idempotency-key", b"k1"))
        both = await send_fields(door, (KEY, b"k1"), (b"x-idempotency-key", b'"k1"'))
        torn = await send_fields(door, (KEY, b"k1"), (b"x-idempotency-key", b"k2"))
    assert [answer.status for answer in (alias, both, torn)] == [201, 201, 400]
    assert (both.replayed, torn.code, app.effects) == (True, "idempotency-key-invalid", 1)


@in_loop
async def test_quoted_bare_and_parametrised_spellings_are_one_key():
    """R4, R5, R7, B33."""
    app = Counted()
    async with Door(app) as door:
        answers = [await post(door, spelling) for spelling in ('"abc"', "abc", '"abc";p=1', '"abc"; q="x"')]
    assert [answer.replayed for answer in answers] == [False, True, True, True]
    assert app.effects == 1


@in_loop
async def test_the_strict_syntax_refuses_a_bare_key():
    """R5, B33: the option."""
    app = Counted()
    async with Door(app, policy=Policy(syntax="strict")) as door:
        bare, quoted = await post(door, "abc"), await post(door, '"abc"')
    assert (bare.problem["reason"], quoted.status, app.effects) == ("not-quoted", 201, 1)


# ---------------------------------------------------------------------------------------------- the principal


def plain(scope: Any) -> Any:
    return dict(scope["headers"]).get(b"x-account", b"").decode() or None


async def waiting(scope: Any) -> Any:
    return plain(scope)


def blank(scope: Any) -> Any:
    return plain(scope) or ""


@pytest.mark.parametrize("principal", [plain, waiting, blank])
@in_loop
async def test_accounts_never_meet_and_nobody_is_refused(principal):
    """R12, R15: a plain or an asynchronous resolver; None or an empty text is 401, never a shared space."""
    app, store = Counted(), SteeredStore()
    async with Door(app, principal=principal, store=store) as door:
        anna, bert = await post(door, "k1", (b"x-account", b"anna")), await post(door, "k1", (b"x-account", b"bert"))
        other = await post(door, "k1", (b"x-account", b"bert"), body=b'{"n":2}')
        calls = list(store.calls)
        nobody = await post(door, "k1")
        again = await post(door, "k1", (b"x-account", b"anna"))
    assert [anna.brief, bert.brief] == [(201, False, b'{"id":"o_1"}'), (201, False, b'{"id":"o_2"}')]
    assert [name for name, _ in anna.headers] == [name for name, _ in bert.headers]
    assert other.status == 422
    assert (nobody.status, nobody.all("www-authenticate")) == (401, [b"Bearer"])
    assert nobody.all("cache-control") == [b"no-store"]
    assert store.calls[len(calls) :] == ["claim", "close"]
    assert (again.brief, app.effects) == ((201, True, b'{"id":"o_1"}'), 2)


@in_loop
async def test_a_resolver_that_returns_something_else_than_a_text_is_told_so():
    """R12: a number would be digested as nobody meant it; nothing runs."""
    app = Counted()
    async with Door(app, principal=lambda scope: 42) as door:
        with pytest.raises(TypeError, match="must return a str"):
            await post(door, "k1")
    assert app.effects == 0


@in_loop
async def test_an_error_of_the_resolver_reaches_the_server_and_nothing_runs():
    """R12: an application that fails to authenticate is not anonymous."""
    app, store = Counted(), SteeredStore()

    def broken(scope: Any) -> str:
        raise LookupError("session store")

    async with Door(app, principal=broken, store=store) as door:
        with pytest.raises(LookupError):
            await post(door, "k1")
    assert (app.effects, store.calls) == (0, ["close"])


@in_loop
async def test_the_anonymous_space_is_one_account_and_no_key_in_it_has_two_payloads():
    """R12, R24, B19: chosen by name; whoever comes with the same key and another body gets nobody else's answer."""
    app = Counted()
    async with Door(app, principal=anonymous) as door:
        mine = await post(door, "k1", body=b'{"who":"me"}')
        other = await post(door, "k1", (b"x-forwarded-for", b"192.0.2.7"), body=b'{"who":"you"}')
    assert (mine.status, other.status, other.code, app.effects) == (201, 422, "idempotency-key-reuse", 1)
    assert b"me" not in other.body


@in_loop
async def test_a_static_credential_names_its_account():
    """R12, B18, B19: by_authorization keeps two credentials apart; without one, or with two, it is 401."""
    app = Counted()
    with pytest.warns(TwiceproofWarning, match="refreshed token"):
        door = Door(app, principal=by_authorization)
    async with door:
        one = await post(door, "k1", (b"authorization", b"Bearer t1"))
        two = await post(door, "k1", (b"authorization", b"Bearer t2"))
        same = await post(door, "k1", (b"authorization", b"Bearer t1"))
        none = await post(door, "k1")
        both = await post(door, "k1", (b"authorization", b"Bearer t1"), (b"authorization", b"Bearer t2"))
    assert [one.status, two.status, same.status, none.status, both.status] == [201, 201, 201, 401, 401]
    assert (same.replayed, app.effects) == (True, 2)


@pytest.mark.parametrize("scheme", ["Digest", "DPoP", "AWS4-HMAC-SHA256", "Signature", "OAuth", "HAWK", "Negotiate"])
@in_loop
async def test_a_credential_that_changes_with_every_request_is_refused(scheme, caplog):
    """R12: it names nobody; the log says why, without the credential."""
    caplog.set_level(logging.DEBUG)
    app = Counted()
    with pytest.warns(TwiceproofWarning):
        door = Door(app, principal=by_authorization)
    async with door:
        answer = await post(door, "k1", (b"authorization", f"{scheme} nonce=s3cr3t".encode()))
    assert (answer.status, app.effects) == (401, 0)
    assert "changes with every request" in caplog.text
    assert "s3cr3t" not in caplog.text


# ---------------------------------------------------------------------------------------------- secrets


@in_loop
async def test_no_key_body_or_credential_is_logged_told_or_stored_in_clear(caplog):
    """R6, R54: not at any level, not in any event, not in our answers, not in a record."""
    caplog.set_level(logging.DEBUG)
    app, store = Counted(), SteeredStore()
    with pytest.warns(TwiceproofWarning):
        door = Door(app, principal=by_authorization, store=store)
    async with door:
        secrets = (b"key-4711", b"body-4711", b"token-4711")
        fields = (b"authorization", b"Bearer token-4711")
        answers = [await post(door, "key-4711", fields, body=b'{"x":"body-4711"}')]
        answers.append(await post(door, "key-4711", fields, body=b'{"x":"body-4711"}'))
        answers.append(await post(door, "key-4711", fields, body=b'{"x":"body-4711+"}'))
        store.down = {"claim"}
        answers.append(await post(door, "key-4711", fields, body=b'{"x":"body-4711"}'))
        store.down = {"complete"}
        answers.append(await post(door, "key-4711+", fields, body=b'{"x":"body-4711"}'))
        records = await door.records()
    assert [answer.status for answer in answers] == [201, 201, 422, 503, 201]
    told = [caplog.text, repr(door.events), repr(records), *(repr(answer.messages) for answer in answers)]
    assert [secret for secret in secrets for text in told if secret.decode() in text] == []
