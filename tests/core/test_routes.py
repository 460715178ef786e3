"""Which policy covers a request (issue of the table: literal before placeholder, then in order)."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twiceproof import ConfigurationError, Policy
from twiceproof.core._path import canonical_path, encode_path
from twiceproof.core._routes import Routes

A, B, C, D = (Policy(lease=lease) for lease in (1, 2, 3, 4))


def test_one_policy_covers_everything():
    """Of the methods that it names."""
    routes = Routes(A)
    assert [routes.match(method, b"/x/y") for method in ("POST", "PATCH", "GET", "post")] == [A, A, None, None]
    assert (routes.table, routes.rest, routes.methods) == (False, A, frozenset({"POST", "PATCH"}))


def test_a_table_covers_what_it_names_and_nothing_else():
    """Unless it says what the rest is."""
    table = {"POST /orders": A, "POST /orders/{id}/cancel": B, "PATCH /orders/{id}": C}
    cases = {
        ("POST", b"/orders"): A,
        ("POST", b"/orders/"): None,
        ("POST", b"/orders/7/cancel"): B,
        ("POST", b"/orders//cancel"): None,
        ("POST", b"/orders/7/8/cancel"): None,
        ("PATCH", b"/orders/7"): C,
        ("POST", b"/orders/7"): None,
        ("PATCH", b"/orders"): None,
        ("POST", b"/other"): None,
    }
    routes, whole = Routes(table), Routes({**table, "*": D})
    assert (routes.table, routes.policies, routes.rest) == (True, table, None)
    assert {case: routes.match(*case) for case in cases} == cases
    assert {case: whole.match(*case) for case in cases} == {case: found or D for case, found in cases.items()}


def test_none_is_uncovered():
    """Also where the rest is covered, and also as the rest."""
    routes = Routes({"POST /login": None, "*": A})
    assert (routes.match("POST", b"/login"), routes.match("POST", b"/orders")) == (None, A)
    routes = Routes({"POST /orders": A, "*": None})
    assert (routes.match("POST", b"/orders"), routes.match("POST", b"/login")) == (A, None)


@pytest.mark.parametrize("turned", [False, True])
def test_a_literal_wins_over_a_placeholder_and_that_over_the_rest(turned):
    """In whichever order they stand."""
    table = {"POST /a/{x:path}": A, "POST /a/{x}": B, "POST /a/b": C}
    routes = Routes(dict(reversed(table.items())) if turned else table)
    assert [routes.match("POST", path) for path in (b"/a/b", b"/a/c", b"/a/c/d", b"/a/")] == [C, B, A, A]


@pytest.mark.parametrize("turned", [False, True])
def test_the_earlier_literal_wins(turned):
    """Segment by segment, in whichever order the rows stand."""
    table = {"POST /{x}/b": A, "POST /a/{y}": B}
    routes = Routes(dict(reversed(table.items())) if turned else table)
    assert [routes.match("POST", path) for path in (b"/a/b", b"/c/b", b"/a/c")] == [B, A, B]


def test_equals_are_tried_in_order():
    """The first row that fits."""
    assert Routes({"POST /{x}-a": A, "POST /b-{y}": B}).match("POST", b"/b-a") == A
    assert Routes({"POST /b-{y}": B, "POST /{x}-a": A}).match("POST", b"/b-a") == B


def test_paths_are_compared_as_they_are_scoped():
    """R16: spelled canonically; an escaped slash is part of its segment; templates are written decoded."""
    routes = Routes({"POST /caf\u00e9/{x}": A, "POST /a|b": B})
    assert routes.match("POST", b"/caf%c3%a9/1") == A
    assert routes.match("POST", b"/caf\xc3\xa9/1%2F2") == A
    assert routes.match("POST", b"/%61%7cb") == B
    assert routes.match("POST", b"/a%7Cb?query=1") == B


def test_the_rest_of_a_path_is_all_of_it():
    """R10: whatever bytes a server lets through, none of them takes a request out of its row."""
    assert Routes({"POST /a/{x:path}": A}).match("POST", b"/a/b\n/c\r\xff") == A


def test_another_method_needs_a_policy_that_covers_it():
    """R1."""
    put = Policy(methods=("PUT",))
    routes = Routes({"PUT /a": put, "*": A})
    assert (routes.match("PUT", b"/a"), routes.match("POST", b"/a")) == (put, A)
    with pytest.raises(
        ConfigurationError, match=re.escape("'PUT /a' is not covered: give its policy methods=('PUT',)")
    ):
        Routes({"PUT /a": A})


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (None, "policy must be a Policy or a mapping of 'POST /path' to Policy, not None"),
        ([A], "policy must be a Policy or a mapping"),
        ({"POST /a": True}, "the policy of 'POST /a' must be a Policy, or None for uncovered, not True"),
        ({"*": "at_most_once"}, "the policy of '*' must be a Policy, or None for uncovered"),
        ({"/a": A}, "a row of the policy table is 'METHOD /path' or '*', not '/a'"),
        ({"post /a": A}, "a row of the policy table is 'METHOD /path' or '*', not 'post /a'"),
        ({"POST a": A}, "a row of the policy table is 'METHOD /path' or '*', not 'POST a'"),
        ({"POST": A}, "a row of the policy table is 'METHOD /path' or '*', not 'POST'"),
        ({"POST  /a": A}, "a row of the policy table is 'METHOD /path' or '*', not 'POST  /a'"),
        ({"POST /a b": A}, "a row of the policy table is 'METHOD /path' or '*', not 'POST /a b'"),
        ({5: A}, "a row of the policy table is 'METHOD /path' or '*', not 5"),
        ({"POST /a/{x:int}": A}, "'POST /a/{x:int}' has a brace that is no placeholder"),
        ({"POST /a/{}": A}, "'POST /a/{}' has a brace that is no placeholder"),
        ({"POST /a/x}": A}, "'POST /a/x}' has a brace that is no placeholder"),
        ({"POST /a/{x": A}, "'POST /a/{x' has a brace that is no placeholder"),
        ({"POST /a/}{x}": A}, "'POST /a/}{x}' has a brace that is no placeholder"),
        (
            {"POST /{x:path}/b": A},
            "{x:path} takes the rest of the path and must be the last part of 'POST /{x:path}/b'",
        ),
        ({"POST /{x:path}b": A}, "{x:path} takes the rest of the path and must be the last part"),
    ],
    ids=[f"row {n}" for n in range(18)],
)
def test_a_table_that_means_nothing_is_refused(table, sentence):
    """With one sentence that says what to write."""
    with pytest.raises(ConfigurationError) as caught:
        Routes(table)
    assert str(caught.value).startswith(sentence)


# ---------------------------------------------------------------------- against an oracle

SEGMENTS = st.sampled_from(["a", "b", "c.d", "{x}", "p{x}", "{x}s", "é"])
TEMPLATES = st.lists(SEGMENTS, min_size=1, max_size=3).flatmap(
    lambda parts: st.sampled_from([parts, [*parts, "{rest:path}"]])
)
PATHS = st.lists(st.sampled_from(["a", "b", "c.d", "cxd", "pa", "as", "p", "s", "é", ""]), min_size=1, max_size=4)


def fits(template, path):
    """Whether one path fits one template, segment by segment."""
    if template and template[-1].endswith(":path}"):
        return len(path) >= len(template) and fits(template[:-1], path[: len(template) - 1])
    if len(template) != len(path):
        return False
    for part, segment in zip(template, path, strict=True):
        before, brace, after = part.partition("{x}")
        if not brace:
            if part != segment:
                return False
        elif not (segment.startswith(before) and segment.endswith(after) and len(segment) > len(before) + len(after)):
            return False
    return True


def rank(template):
    return [2 if ":path" in part else 1 if "{" in part else 0 for part in template]


@settings(max_examples=300)
@given(st.lists(TEMPLATES, min_size=1, max_size=5, unique_by=tuple), PATHS)
def test_the_table_finds_what_reading_it_by_hand_finds(templates, path):
    """Sorted by rank, stably; then the first that fits."""
    table = {"POST /" + "/".join(template): Policy(lease=1 + at) for at, template in enumerate(templates)}
    fitting = [
        at for at, template in sorted(enumerate(templates), key=lambda row: rank(row[1])) if fits(template, path)
    ]
    raw = encode_path("/" + "/".join(path))
    found = Routes(table).match("POST", raw)
    assert canonical_path(raw) == raw.decode()
    assert found == (Policy(lease=1 + fitting[0]) if fitting else None)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({}, "^the policy table is empty and covers nothing; name an operation, or '\\*'$"),
        ({"POST /a?x=1": A}, "has no query"),
        ({"POST /a#b": A}, "has no query"),
        ({"POST /a/*": A}, "wildcards are"),
        ({"POST /{a}": A, "POST /{b}": B}, r"'POST /\{a\}' and 'POST /\{b\}' are the same row"),
    ],
)
def test_a_row_that_could_never_decide_is_refused(table, sentence):
    """R10: an operation that its author takes for protected is protected, or the start-up says why not."""
    with pytest.raises(ConfigurationError, match=sentence):
        Routes(table)
