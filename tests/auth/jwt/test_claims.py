"""What claims have to say."""

import json
from typing import Any

import attrs
import pytest

from mist.auth.issued import Rejected, SharedGrants, check_grants
from mist.auth.jwt.claims import Expectations, read_claims

NOW = 1_800_000_000.0
GOOD: dict[str, Any] = {
    "iss": "https://id.example",
    "aud": ["other", "mist"],
    "sub": "auth0|marvin@example.org",
    "jti": "t1",
    "iat": NOW - 60,
    "nbf": NOW - 60,
    "exp": NOW + 600,
    "mist": {"tags": ["room:1", ">room:1"], "attributes": {"groups": ["staff"], "plan": "pro"}},
}
EXPECTED = Expectations(frozenset({"https://id.example"}), frozenset({"mist", "x"}))


def read(expected: Expectations = EXPECTED, **changes: Any) -> Any:
    said = {name: value for name, value in (GOOD | changes).items() if value is not None}
    return read_claims(json.dumps(said).encode(), expected, NOW, SharedGrants())


def reason(expected: Expectations = EXPECTED, **changes: Any) -> str:
    with pytest.raises(Rejected) as caught:
        read(expected, **changes)
    assert str(caught.value).isprintable()
    return caught.value.reason


def test_good_claims_grant_what_they_say() -> None:
    found = read()
    assert found.grant.tags == {"room:1", ">room:1"}
    assert found.attributes.user == "auth0|marvin@example.org"
    assert found.attributes.groups == {"staff"}
    assert found.attributes.others == {"plan": "pro"}
    assert (found.token, found.expires, found.issued) == ("t1", NOW + 600, NOW - 60)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"exp": NOW - 29}, ""),
        ({"exp": NOW - 30}, "expired"),
        ({"exp": None}, "claims"),
        ({"exp": True}, "claims"),
        ({"exp": "1"}, "claims"),
        ({"exp": -1}, "claims"),
        ({"exp": 1e30}, "claims"),
        ({"nbf": NOW + 30}, ""),
        ({"nbf": NOW + 31}, "early"),
        ({"nbf": []}, "claims"),
        ({"nbf": None}, ""),
        ({"iat": NOW + 30}, ""),
        ({"iat": NOW + 31}, "early"),
        ({"iat": None}, ""),
        ({"iat": None, "exp": NOW + 31 * 86_400}, "early"),
        ({"iat": NOW - 31 * 86_400}, "age"),
        ({"exp": NOW + 31 * 86_400}, "age"),
        ({"iss": None}, "issuer"),
        ({"iss": "https://id.example/"}, "issuer"),
        ({"iss": ["https://id.example"]}, "claims"),
        ({"aud": None}, "audience"),
        ({"aud": "mist"}, ""),
        ({"aud": "mis"}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": {"mist": 1}}, "audience"),
        ({"aud": [["mist"]]}, "audience"),
        ({"sub": None}, ""),
        ({"sub": 7}, "claims"),
        ({"sub": "x" * 256}, "claims"),
        ({"sub": "a\nb"}, "grants"),
        ({"sub": "ä" * 200}, "grants"),
        ({"jti": 7}, "claims"),
        ({"jti": "x" * 256}, "claims"),
        ({"mist": None}, "grants"),
        ({"mist": []}, "grants"),
        ({"mist": {}}, "grants"),
        ({"mist": {"tags": "room:1"}}, "grants"),
        ({"mist": {"tags": []}}, "grants"),
        ({"mist": {"tags": [7]}}, "grants"),
        ({"mist": {"tags": ["a b"]}}, "grants"),
        ({"mist": {"tags": ["..x"]}}, "grants"),
        ({"mist": {"tags": [f"t{n}" for n in range(1_001)]}}, "grants"),
        ({"mist": {"tags": ["a"], "attributes": []}}, "grants"),
        ({"mist": {"tags": ["a"], "attributes": {"groups": []}}}, "grants"),
        ({"mist": {"tags": ["a"], "attributes": {"plan": None}}}, "grants"),
        ({"mist": {"tags": ["a"], "attributes": {"Plan": "x"}}}, "grants"),
        ({"mist": {"tags": ["mist:connected"]}}, "grants"),
        ({"mist": {"tags": ["mist:*"]}}, "grants"),
        ({"mist": {"tags": [">mist:*"]}}, "grants"),
        ({"mist": {"tags": ["@mist:*"]}}, "grants"),
        ({"mist": {"tags": [">>mist:*", "a"]}}, "grants"),
        ({"mist": {"tags": ["mister:1", "room:*", "*", "@room:*"], "more": 1}}, ""),
    ],
)
def test_claims(changes: dict[str, Any], wrong: str) -> None:
    if wrong:
        assert reason(**changes) == wrong
    else:
        read(**changes)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"7", b"null", b"{", b"\xff", b'{"a":' * 5_000, b"[" * 8_000, b'{"exp":1e999}'],
)
def test_what_is_no_object_is_rejected(text: bytes) -> None:
    with pytest.raises(Rejected):
        read_claims(text, EXPECTED, NOW, SharedGrants())


def test_nobody_can_be_another_user_by_an_attribute() -> None:
    grants = {"tags": ["a"], "attributes": {"user": "admin"}}
    assert read(mist=grants).attributes.user == "auth0|marvin@example.org"


def test_the_claim_may_have_another_name() -> None:
    expected = attrs.evolve(EXPECTED, claim="https://app.example/mist")
    assert reason(expected) == "grants"
    named = {"https://app.example/mist": {"tags": ["b"]}}
    assert read(expected, **named).grant.tags == {"b"}


def test_without_expectations_any_issuer_and_audience_will_do() -> None:
    read(Expectations(), iss=None, aud=None)
    read(Expectations(), iss="x", aud="y")


def test_grants_name_where_they_are_from() -> None:
    with pytest.raises(Rejected, match=r"^the answer has no grants"):
        check_grants(None, "the answer", "", 10, SharedGrants())


def test_tags_that_others_have_are_read_once() -> None:
    grants = SharedGrants()
    given = {"tags": ["room:1", "room:2"]}
    (first, marvin), (second, zaphod) = (
        check_grants(given, "the token", user, 10, grants) for user in ("marvin", "zaphod")
    )
    assert first is second
    assert first.permits(frozenset({"room:2"}))
    assert (marvin.user, zaphod.user) == ("marvin", "zaphod")
    other, _ = check_grants({"tags": ["room:2", "room:1"]}, "the token", "", 10, grants)
    assert other == first


def test_what_was_granted_once_is_no_way_around_a_limit() -> None:
    grants = SharedGrants()
    given = {"tags": ["a", "b", "c"]}
    check_grants(given, "the token", "", 3, grants)
    for refused, most in ((given, 2), ({"tags": ["a", "mist:connected"]}, 3), ({"tags": []}, 3)):
        for _ in range(2):
            with pytest.raises(Rejected):
                check_grants(refused, "the token", "", most, grants)


def test_grants_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mist.auth.issued._MOST_TAGS", 10)
    grants = SharedGrants()
    for number in range(100):
        check_grants({"tags": [f"{number}:{tag}" for tag in range(3)]}, "", "", 9, grants)
        assert sum(map(len, grants._grants)) <= 10
