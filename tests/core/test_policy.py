"""What an operation is promised, as data: what can't be kept fails when it is said (CONTRACT 2-6)."""

import json
import warnings
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import pytest

from twiceproof import ConfigurationError, FingerprintOptions, Guarantee, Policy, TwiceproofWarning
from twiceproof.core._policy import make_policy, seconds

DURATIONS = {  # name: (default, least, most)
    "retention": (86_400, 1, 10 * 366 * 86_400),
    "lease": (30, 0.5, 3_600),
    "max_runtime": (900, 0.5, 30 * 86_400),
    "wait": (0, 0, 3_600),
    "reconcile_timeout": (30, 0.1, 3_600),
    "reconcile_every": (30, 0, 86_400),
    "unsettled_retention": (30 * 86_400, 1, 10 * 366 * 86_400),
}


def refused(**options):
    """The sentence with which a policy is refused."""
    with pytest.raises(ConfigurationError) as caught:
        Policy(**options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("name", DURATIONS)
def test_durations_have_these_defaults_and_bounds(name):
    """R23, R28, R31, R33, R42: the bounds themselves are allowed."""
    default, low, high = DURATIONS[name]
    assert getattr(Policy(), name) == default
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwiceproofWarning)
        assert [getattr(make_policy({name: value}), name) for value in (low, high)] == [low, high]
    assert refused(**{name: high + 1}).startswith(f"{name} must lie between {low:g} and {high:g} seconds, not ")
    assert refused(**{name: low - 0.01}).startswith(f"{name} must lie between ")


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        -1,
        True,
        False,
        None,
        "5",
        b"5",
        [],
        10**400,
        timedelta(-1),
        timedelta.max,
    ],
    ids=repr,
)
def test_a_duration_is_a_number_of_seconds_or_a_timedelta(name, value):
    """B07: what bounds nothing is refused at start-up; no record is ever written without a lease end."""
    assert refused(**{name: value}).startswith(f"{name} must ")


@pytest.mark.parametrize("value", [0, 0.0, 0.4])
def test_a_lease_of_nothing_is_refused(value):
    """B07: 0 is not *none*."""
    assert refused(lease=value) == f"lease must lie between 0.5 and 3600 seconds, not {value}"


def test_a_timedelta_is_its_seconds():
    """Both ways to say it."""
    assert Policy(lease=timedelta(minutes=1)).lease == 60.0
    assert (seconds(timedelta(milliseconds=1500)), seconds(2)) == (1.5, 2)


@pytest.mark.parametrize("retention", [1, 3_600, 86_399.9, timedelta(hours=23)])
def test_a_retention_below_a_day_warns(retention):
    """R33: where the policy is made."""
    with pytest.warns(TwiceproofWarning, match=r"^retention=.*runs again"):
        Policy(retention=retention)


def test_the_warning_points_at_the_line_that_says_it():
    """R33: and not into this library."""
    with pytest.warns(TwiceproofWarning) as caught:
        Policy(retention=3_600)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            "transactional",
            "guarantee transactional is not available in this release; choose at_most_once or at_least_once",
        ),
        ("resumable", "guarantee resumable is not available in this release; choose at_most_once or at_least_once"),
        ("exactly_once", "guarantee must be at_most_once or at_least_once, not 'exactly_once'"),
        ("", "guarantee must be at_most_once or at_least_once, not ''"),
        (None, "guarantee must be at_most_once or at_least_once, not None"),
        (5, "guarantee must be at_most_once or at_least_once, not 5"),
        ([], "guarantee must be at_most_once or at_least_once, not []"),
    ],
)
def test_a_guarantee_that_cannot_be_kept_is_refused(value, sentence):
    """CONTRACT 5: at start-up, never later."""
    assert refused(guarantee=value) == sentence


@pytest.mark.parametrize("value", ["at_most_once", "at_least_once", *list(Guarantee)[:2]])
def test_a_guarantee_may_be_said_as_text(value):
    """The enumeration's values are its names."""
    assert Policy(guarantee=value).guarantee is Guarantee(value)


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"missing_status": 401}, "missing_status must be one of 400, 422, 428, not 401"),
        ({"missing_status": True}, "missing_status must be one of 400, 422, 428, not True"),
        ({"syntax": "loose"}, "syntax must be one of lenient, strict, not 'loose'"),
        ({"syntax": []}, "syntax must be one of lenient, strict, not []"),
        ({"max_request_bytes": -1}, "max_request_bytes must be a whole number of bytes, 0 or more, not -1"),
        ({"max_request_bytes": 1.5}, "max_request_bytes must be a whole number of bytes"),
        ({"max_response_bytes": True}, "max_response_bytes must be a whole number of bytes"),
        ({"max_response_bytes": "1M"}, "max_response_bytes must be a whole number of bytes"),
        ({"required": 1}, "required must be True or False, not 1"),
        ({"store_body": None}, "store_body must be True or False, not None"),
        ({"fail_open": "no"}, "fail_open must be True or False, not 'no'"),
        ({"operation": ""}, "operation must be a name such as 'transfers.create', not ''"),
        ({"operation": 5}, "operation must be a name"),
        ({"operation": "a\nb"}, "operation must be a name"),
        ({"operation": "\ud800"}, "operation must be a name"),
        ({"methods": "POST"}, "methods must be a tuple or a set of names, not 'POST'"),
        ({"methods": None}, "methods must be a tuple or a set of names"),
        ({"methods": (b"POST",)}, "methods must be a tuple or a set of names"),
        ({"methods": ("PO ST",)}, "methods must be a tuple or a set of names"),
        ({"methods": ()}, "methods must name at least one"),
        ({"methods": ("post",)}, "methods are written in capitals: POST, not post"),
        ({"aliases": "X-Key"}, "aliases must be a tuple or a set of names"),
        ({"aliases": ("",)}, "aliases must be a tuple or a set of names"),
        ({"aliases": ("X-Kéy",)}, "aliases must be a tuple or a set of names"),
        ({"keep_headers": "Date"}, "keep_headers must be a tuple or a set of names"),
        ({"keep_headers": {"Content-Length"}}, "keep_headers can't keep content-length: every answer has its own"),
        ({"keep_headers": {"Idempotent-Replayed"}}, "keep_headers can't keep idempotent-replayed"),
        ({"drop_headers": {5}}, "drop_headers must be a tuple or a set of names"),
        ({"record": "3xx"}, "record must be 'default', '2xx', 'all' or a plain function of the answer, not '3xx'"),
        ({"record": None}, "record must be 'default'"),
        ({"released_statuses": None}, "released_statuses must be a set of statuses from 400 to 599, not None"),
        ({"released_statuses": "401"}, "released_statuses must be a set of statuses"),
        ({"released_statuses": {200}}, "released_statuses must be a set of statuses"),
        ({"released_statuses": {"401"}}, "released_statuses must be a set of statuses"),
        ({"released_statuses": {True}}, "released_statuses must be a set of statuses"),
        ({"released_statuses": {600}}, "released_statuses must be a set of statuses"),
        ({"key_format": "["}, "key_format '[' is no regular expression"),
        ({"key_format": "guid"}, "key_format 'guid' is neither uuid nor ulid"),
        ({"key_format": 5}, "key_format must be 'uuid', 'ulid' or a regular expression as text, not 5"),
        ({"reconcile": "ask"}, "reconcile must be a callable that takes the record and the request, not 'ask'"),
        ({"fingerprint": "raw"}, "fingerprint must be FingerprintOptions(...), not 'raw'"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused_with_what_to_change(options, start):
    """One sentence each, and it names the option."""
    assert refused(**options).startswith(start)


def test_a_record_rule_must_not_be_asynchronous():
    """R36: nobody would await it, and it would be true."""

    async def rule(response):
        raise AssertionError

    assert refused(record=rule).startswith("record must be 'default', '2xx', 'all' or a plain function")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("retensions", "there is no option retensions; did you mean retention?"),
        ("guarentee", "there is no option guarentee; did you mean guarantee?"),
        ("reconcile_time", "there is no option reconcile_time; did you mean reconcile_timeout?"),
        ("xyz", "there is no option xyz; there are aliases, drop_headers, "),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest_that_exists(name, sentence):
    """A misspelt option never goes unnoticed."""
    with pytest.raises(ConfigurationError) as caught:
        make_policy({"required": True, name: 1})
    assert str(caught.value).startswith(sentence)


def test_a_policy_is_made_of_options():
    """As decorators take them."""
    assert make_policy({"required": True, "lease": 5}) == Policy(required=True, lease=5)
    assert make_policy({}) == Policy()


def test_a_policy_is_plain_data_that_does_not_change():
    """Any sequence is taken, and names are compared without case."""
    names: dict[str, Any] = {
        "methods": ["PUT"],
        "aliases": {"X-Key"},
        "keep_headers": ["Date"],
        "drop_headers": ("ETag",),
    }
    policy = Policy(released_statuses=frozenset([402]), **names)
    assert (policy.methods, policy.aliases) == (("PUT",), ("X-Key",))
    assert (policy.keep_headers, policy.drop_headers) == (frozenset({"date"}), frozenset({"etag"}))
    assert policy.released_statuses == frozenset({402})
    assert make_policy({"released_statuses": [402]}) == Policy(released_statuses=frozenset({402}))
    assert Policy(released_statuses=frozenset({400, 599})).released_statuses == {400, 599}
    with pytest.raises(FrozenInstanceError):
        policy.lease = 1  # type: ignore[misc]


def test_a_policy_can_be_written_down():
    """For documents and for `explain`: every option, as JSON."""

    def rule(response):
        return True

    class Ask:
        def __call__(self, record, request):
            return None

    policy = Policy(
        record=rule, reconcile=Ask(), fingerprint=FingerprintOptions(raw=True), keep_headers=frozenset({"B", "a"})
    )
    data = json.loads(json.dumps(policy.to_dict()))
    assert set(data) == {field.name for field in fields(Policy)}
    assert data["guarantee"] == "at_most_once"
    assert data["record"].endswith("rule")
    assert (data["reconcile"], data["fingerprint"], data["keep_headers"]) == ("Ask", "1;raw", ["a", "b"])
    assert (data["methods"], data["released_statuses"][:2]) == (["POST", "PATCH"], [401, 403])
    assert json.loads(json.dumps(Policy().to_dict()))["reconcile"] is None
