"""Judging a WebSocket handshake."""

import base64

import pytest

from mist.transports.handshake import Origins, read_offer

LOOPBACK = Origins(loopback=True)
LISTED = Origins(["https://app.example.org", "http://one.example:8080"])
NAMED = Origins(names=["mist.example.org"], ports=[8888])


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        (LOOPBACK, None, True),
        (LOOPBACK, "http://localhost:3000", True),
        (LOOPBACK, "http://127.0.0.1", True),
        (LOOPBACK, "http://[::1]:5000", True),
        (LOOPBACK, "https://app.localhost", True),
        (LOOPBACK, "null", False),
        (LOOPBACK, "", False),
        (LOOPBACK, "http://evil.example", False),
        (LOOPBACK, "http://localhost.evil.example", False),
        (LOOPBACK, "http://127.0.0.1.evil.example", False),
        (LOOPBACK, "http://evil.example#localhost", False),
        (LOOPBACK, "http://localhost@evil.example", False),
        (LOOPBACK, "http://localhost:port", False),
        (LOOPBACK, "file://", False),
        (LISTED, None, True),
        (LISTED, "https://app.example.org", True),
        (LISTED, "https://APP.example.org:443", True),
        (LISTED, "http://app.example.org", False),
        (LISTED, "https://app.example.org:444", False),
        (LISTED, "https://x.app.example.org", False),
        (LISTED, "http://one.example:8080", True),
        (LISTED, "http://one.example", False),
        (LISTED, "http://localhost", False),
        (NAMED, "https://mist.example.org", True),
        (NAMED, "http://mist.example.org:8888", True),
        (NAMED, "http://mist.example.org:9999", False),
    ],
)
def test_pages_pass_by_their_origin_alone(
    origins: Origins, origin: str | None, allowed: bool
) -> None:
    assert origins.allow(origin) is allowed


def subprotocol(token: str) -> str:
    return "mist.token." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def test_a_token_comes_by_header_subprotocol_or_where_allowed_in_the_url() -> None:
    header = read_offer("/x", [(b"x-auth-token", b"t")], [], query_token=False)
    assert (header.token, header.subprotocol, header.path) == ("t", None, "/x")
    offered = read_offer("/x", [], ["mist.v1", subprotocol("tö?ken")], query_token=False)
    assert (offered.token, offered.subprotocol) == ("tö?ken", "mist.v1")
    target = "/x?x-auth-token=a%20b"
    assert read_offer(target, [], [], query_token=False).token is None
    assert read_offer(target, [], [], query_token=True).token == "a b"


def test_two_different_credentials_are_ambiguous_and_two_equal_ones_are_not() -> None:
    headers = [(b"x-auth-token", b"t")]
    assert not read_offer("/", headers, [subprotocol("t")], query_token=False).ambiguous
    assert read_offer("/", headers, [subprotocol("u")], query_token=False).ambiguous
    assert read_offer("/", headers * 2 + [(b"x-auth-token", b"u")], [], query_token=False).ambiguous
    assert read_offer("/?x-auth-token=u", headers, [], query_token=True).ambiguous


def test_a_ticket_comes_in_the_url_whatever_tokens_may() -> None:
    for query_token in (True, False):
        offer = read_offer("/x?a=b&ticket=t%2B1", [], ["mist.v1"], query_token=query_token)
        assert (offer.ticket, offer.token, offer.ambiguous) == ("t+1", None, False)
        assert read_offer("/x", [], [], query_token=query_token).ticket is None
        assert read_offer("/x?ticket=", [], [], query_token=query_token).ticket == ""


def test_a_ticket_beside_any_credential_is_ambiguous_even_another_of_the_same() -> None:
    headers = [(b"x-auth-token", b"t")]
    assert read_offer("/?ticket=t", headers, [], query_token=False).ambiguous
    assert read_offer("/?ticket=t", [], [subprotocol("t")], query_token=False).ambiguous
    assert read_offer("/?ticket=t&x-auth-token=t", [], [], query_token=True).ambiguous
    assert read_offer("/?ticket=t&ticket=t", [], [], query_token=False).ambiguous
    assert not read_offer("/?ticket=t&x-auth-token=t", [], [], query_token=False).ambiguous


def test_two_origins_are_ambiguous() -> None:
    headers = [(b"origin", b"http://localhost"), (b"origin", b"http://evil.example")]
    assert read_offer("/", headers, [], query_token=False).ambiguous


@pytest.mark.parametrize("text", ["!", "a", "_w", "dG9rZW4="])
def test_a_subprotocol_that_is_no_base64url_is_nobodys_token(text: str) -> None:
    offer = read_offer("/", [], ["mist.token." + text], query_token=False)
    assert offer.token in ("", "token")


def test_a_token_is_never_shown() -> None:
    offer = read_offer("/?ticket=h1dden", [(b"x-auth-token", b"s3cret")], [], query_token=False)
    assert "s3cret" not in repr(offer)
    assert "h1dden" not in repr(offer)


@pytest.mark.parametrize(
    ("path", "user"),
    [
        ("/stream/user/marvin", "marvin"),
        ("/stream/user/marvin?x=1", "marvin"),
        ("/stream/user/a%20b%C3%A4", "a bä"),
        ("/stream/user/a/b", "a/b"),
        ("/stream/user/", None),
        ("/stream/user", None),
        ("/stream/user/a%2Cb", None),
        ("/stream/user/a%0ab", None),
        ("/stream/user/%C2%85", None),
        ("/stream/user/%FF", None),
        ("/stream/user/" + "x" * 256, None),
        ("/STREAM/user/marvin", None),
        ("/subscribe/websocket", None),
    ],
)
def test_a_path_of_gubles_names_a_user(path: str, user: str | None) -> None:
    assert read_offer(path, [], [], query_token=False).user == user


def test_what_is_spoken_there_is_no_subprotocol_of_elsewhere() -> None:
    offered = ["mist.v1", "mist.topics", "mist.json"]
    there = read_offer("/stream/user/marvin", [], offered, query_token=False)
    elsewhere = read_offer("/subscribe/websocket", [], offered, query_token=False)
    assert (there.subprotocol, elsewhere.subprotocol) == ("mist.topics", "mist.v1")
    assert read_offer("/x", [], ["mist.topics"], query_token=False).subprotocol is None
