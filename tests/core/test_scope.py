"""Who asks for what: scopes, record ids, principals (R12, R14-R16, R54)."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof import ConfigurationError, Policy, Request
from twiceproof.core._scope import MOST_PRINCIPALS, Site, anonymous, by_authorization, make_scope, operation_of

TEXT = st.text(max_size=12)


@given(st.tuples(TEXT, TEXT, TEXT, TEXT), st.tuples(TEXT, TEXT, TEXT, TEXT))
def test_ids_are_equal_only_where_all_four_parts_are(one, other):
    """R14: namespace, principal, operation and key; no part runs into its neighbour."""

    def id_of(parts):
        namespace, principal, operation, key = parts
        encodable = operation.encode("utf-8", "replace").decode()
        space = namespace.encode("utf-8", "replace").decode() or "-"
        return make_scope(Site(space, b"secret"), principal, encodable, "/", key).id, (space, principal, encodable, key)

    (id1, parts1), (id2, parts2) = id_of(one), id_of(other)
    assert (id1 == id2) is (parts1 == parts2)


def test_neighbours_cannot_lend_each_other_characters():
    """R14: the tuple is framed."""
    splits = [("ab", "c"), ("a", "bc"), ("abc", "1:"), ("1:a", "bc")]
    ids = {make_scope(Site(space, b"s"), "p", operation, "/", "k").id for space, operation in splits}
    assert len(ids) == len(splits)


def test_the_path_of_a_named_operation_is_kept_and_not_part_of_its_id():
    """R16."""
    site = Site("n")
    request = Request("POST", b"/v1/%7Ea?x=1")
    assert operation_of(request, Policy()) == ("POST /v1/~a", "/v1/~a")
    assert operation_of(request, Policy(operation="pay")) == ("pay", "/v1/~a")
    plain = make_scope(site, "p", "POST /v1/~a", "/v1/~a", "k")
    named, other = (make_scope(site, "p", "pay", path, "k") for path in ("/v1/~a", "/v2"))
    assert named.id == other.id != plain.id


def test_principals_and_keys_are_stored_as_digests_only():
    """R54: keyed by the secret, else by the namespace."""
    scopes = [make_scope(site, "alice", "op", "/", "key-1") for site in (Site("n"), Site("m"), Site("n", b"s"))]
    for scope in scopes:
        assert (len(scope.principal), len(scope.key), len(scope.id)) == (32, 32, 32)
        assert scope.principal != scope.key
    assert len({scope.principal for scope in scopes}) == len({scope.key for scope in scopes}) == 3


@pytest.mark.parametrize("secret", [b"secret", b"s" * 64, b"s" * 65, b"s" * 200], ids=len)
def test_the_digests_are_these(secret):
    """R53: records of this release are found by the next, under secrets of any length."""
    scope = make_scope(Site("shop", secret), "alice", "POST /orders", "/orders", "key-1")
    assert scope.principal == hmac.digest(secret, b"alice", "sha256")
    assert scope.key == hmac.digest(secret, b"key-1", "sha256")
    framed = b"\0\0\0\x04\0\0\0\x0cshopPOST /orders" + scope.principal + scope.key
    assert scope.id == hashlib.sha256(framed).digest()
    assert (scope.operation, scope.path) == ("POST /orders", "/orders")


def test_remembered_principals_are_bounded():
    """A million accounts take no more memory than a thousand, and each keeps its digest."""
    site = Site("n")
    first = site.principal("0")
    sizes = set()
    for n in range(2 * MOST_PRINCIPALS):
        site.principal(str(n))
        sizes.add(len(site._principals))
    assert sizes == set(range(1, MOST_PRINCIPALS + 1))
    assert site.principal("0") == first == site.digest("0")
    assert site.principal("0") is site.principal("0")


def test_a_principal_may_be_any_text():
    """Also one that is no UTF-8."""
    assert len({Site("n").principal(name) for name in ("é", "\ud800", "e", "\x00")}) == 4


# ---------------------------------------------------------------------- Authorization


def authorization(*values):
    return [(b"accept", b"*/*"), *((b"Authorization", value) for value in values)]


def test_a_static_credential_names_its_account():
    """R12: the same value is the same account, another one is another; the value itself is not kept."""
    one, again, other = (by_authorization(authorization(v)) for v in (b"Bearer abc", b"  Bearer abc\t", b"Bearer abd"))
    assert one == again != other
    assert "abc" not in str(one)


@pytest.mark.parametrize("values", [(), (b"",), (b" \t",), (b"Bearer a", b"Bearer a")], ids=repr)
def test_nobody_is_named_without_exactly_one_credential(values):
    """R12: 401, never the anonymous space."""
    assert by_authorization(authorization(*values)) is None


@pytest.mark.parametrize("separator", [" ", "\t", "  "], ids=["blank", "tab", "blanks"])
@pytest.mark.parametrize(
    "scheme",
    ["Digest", "DPoP", "Signature", "OAuth", "AWS4-HMAC-SHA256", "aws4-ecdsa-p256-sha256", "Hawk", "SharedKey"],
)
def test_a_credential_that_changes_with_every_request_is_refused(scheme, separator):
    """R12: every retry would be another account."""
    with pytest.raises(ConfigurationError, match="give principal= a callable"):
        by_authorization(authorization(f"{scheme}{separator}x=1".encode()))


@pytest.mark.parametrize("scheme", ["Bearer", "Basic", "Token", "ApiKey", "OAuthBearer", "Digestive"])
def test_other_schemes_are_static(scheme):
    """R12."""
    assert by_authorization(authorization(scheme.encode() + b" x")) is not None


def test_anonymous_is_one_space_for_all():
    """R12: only where somebody chose it. R53: its name is part of the ids of records."""
    assert anonymous([]) == anonymous(authorization(b"Bearer x")) == "anonymous"
