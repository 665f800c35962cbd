"""WebSocket handshakes: judged, and answered."""

import base64

import pytest

from mist.transports.handshake import (
    BAD_REQUEST,
    Origins,
    Refusal,
    is_upgrade,
    read_handshake,
    read_offer,
    refusal_head,
    welcome_head,
)
from mist.transports.http1 import RequestHead

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


# the request and its answer

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="


def asked(
    *headers: tuple[bytes, bytes], path: bytes = b"/subscribe/websocket", method: str = "GET"
) -> RequestHead:
    """A handshake; headers given take the place of those that a client sends."""
    usual = {
        b"host": b"a",
        b"connection": b"Upgrade",
        b"upgrade": b"websocket",
        b"sec-websocket-key": KEY,
        b"sec-websocket-version": b"13",
    }
    given = {name for name, _ in headers}
    found = [(name, value) for name, value in usual.items() if name not in given]
    return RequestHead(method, path, [*found, *headers], "1.1", True, True, 0)


def test_a_welcome_proves_that_the_key_was_read() -> None:
    # The example of RFC 6455, section 1.3.
    assert read_handshake(asked()) == (KEY, [])
    wire = welcome_head(KEY, "mist.v1")
    assert wire.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in wire
    assert b"\r\nSec-WebSocket-Protocol: mist.v1\r\n" in wire
    assert b"Protocol:" not in welcome_head(KEY, None)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (asked((b"sec-websocket-version", b"8")), 426),
        (asked((b"sec-websocket-version", b"13, 8")), 426),
        (asked((b"sec-websocket-version", b"13"), (b"sec-websocket-version", b"8")), 400),
        (asked((b"sec-websocket-key", b"")), 400),
        (asked((b"sec-websocket-key", b"c2hvcnQ=")), 400),
        (asked((b"sec-websocket-key", KEY), (b"sec-websocket-key", KEY)), 400),
        (asked((b"upgrade", b"h2c")), 400),
        (asked((b"upgrade", b"websocketx")), 400),
        (asked(method="POST"), 400),
        (RequestHead("GET", b"/", asked().headers, "1.1", True, False, 0), 400),
        (RequestHead("GET", b"/", asked().headers, "1.0", True, True, 0), 400),
    ],
)
def test_what_is_no_handshake_is_refused(head: RequestHead, status: int) -> None:
    refusal = read_handshake(head)
    assert isinstance(refusal, Refusal)
    assert refusal.status == status
    wire = refusal_head(status)
    assert wire.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nConnection: close\r\n" in wire
    assert (b"\r\nSec-WebSocket-Version: 13\r\n" in wire) is (status == 426)


def test_a_missing_version_or_key_is_no_handshake() -> None:
    for missing in (b"sec-websocket-version", b"sec-websocket-key", b"upgrade"):
        head = asked()
        head.headers = [each for each in head.headers if each[0] != missing]
        assert read_handshake(head) is BAD_REQUEST


def test_subprotocols_may_come_in_several_headers() -> None:
    name = b"sec-websocket-protocol"
    head = asked((name, b"a, b"), (name, b" c ,"))
    assert read_handshake(head) == (KEY, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (asked(), True),
        (asked((b"upgrade", b"h2c, WebSocket")), True),
        (asked(path=b"/subscribe/websocket?ticket=x"), True),
        (asked(path=b"/stream/user/marvin"), True),
        (asked(path=b"/"), False),
        (asked(path=b"/subscribe/websocket/"), False),
        (asked(path=b"/stream/user/"), False),
        (asked((b"upgrade", b"h2c")), False),
        (asked(method="POST"), False),
    ],
)
def test_an_upgrade_is_asked_for_where_there_are_websockets(
    head: RequestHead, expected: bool
) -> None:
    assert is_upgrade(head) is expected


@pytest.mark.parametrize(
    ("offered", "answered"),
    [
        ([], None),
        (["mist.topics", subprotocol("t")], "mist.topics"),
        ([subprotocol("t"), "mist.topics"], "mist.topics"),
        (["guble", subprotocol("t")], "guble"),
        ([subprotocol("t"), "guble"], "guble"),
        ([subprotocol("t")], subprotocol("t")),
    ],
)
def test_a_browser_of_gubles_is_answered_with_what_it_offered(
    offered: list[str], answered: str | None
) -> None:
    # Browsers fail a connection whose welcome names none of the subprotocols that they offered.
    assert read_offer("/stream/user/marvin", [], offered, query_token=False).answered == answered


def test_elsewhere_a_token_is_never_echoed() -> None:
    offered = [subprotocol("t"), "foreign"]
    assert read_offer("/subscribe/websocket", [], offered, query_token=False).answered is None
    offer = read_offer("/stream/user/marvin", [], [subprotocol("t")], query_token=False)
    assert subprotocol("t") not in repr(offer)
