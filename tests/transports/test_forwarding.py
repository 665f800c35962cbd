"""Whom a trusted proxy asks for, as its headers say it, and as an attacker might have it say."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.transports.forwarding import (
    BadForwarding,
    Forwarded,
    Proxies,
    is_forwarded,
)
from tests.deadline import deadline

PROXIES = Proxies([ip_network("10.0.0.0/8"), ip_network("fd00::/8")], unix=True)
PEER = "10.0.0.1"


def read(*headers: tuple[str, str]) -> Forwarded | None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return PROXIES.read(raw, PEER)


def client(value: str, name: str = "x-forwarded-for") -> str:
    found = read((name, value))
    assert found is not None
    return found.address


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("1.1.1.1, 203.0.113.9", "203.0.113.9"),  # the first, the client wrote itself
        ("1.1.1.1, 203.0.113.9, 10.2.3.4", "203.0.113.9"),
        ("10.9.9.9, 203.0.113.9", "203.0.113.9"),
        ("garbage, 203.0.113.9", "203.0.113.9"),
        ("10.1.1.1, 10.2.3.4", "10.1.1.1"),  # all are proxies: the farthest
        ("203.0.113.9:4711", "203.0.113.9"),
        ("[2001:db8::9]:4711", "2001:db8::9"),
        ("2001:DB8:0::9", "2001:db8::9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("203.0.113.9, ::ffff:10.0.0.7", "203.0.113.9"),
        ("203.0.113.9, fd00::7", "203.0.113.9"),
        ("203.0.113.9,", "203.0.113.9"),
        (" , ,203.0.113.9 ,\t", "203.0.113.9"),
        ("unknown", PEER),
        ("203.0.113.9, unknown", PEER),
        ("203.0.113.9, unknown, 10.2.3.4", "10.2.3.4"),
        ("203.0.113.9, _hidden, 10.2.3.4", "10.2.3.4"),
        ("203.0.113.9, unix:", PEER),
        ("", PEER),
        (", ".join(["203.0.113.9", *["10.0.0.9"] * 100]), "10.0.0.9"),  # so many nobody has
    ],
)
def test_the_client_is_the_rightmost_that_is_no_proxy(value: str, address: str) -> None:
    assert client(value) == address


BAD = ["evil", "203.0.113.9, evil", "1.2.3", "1.2.3.4.5", "\xff"]


@pytest.mark.parametrize("value", BAD)
def test_a_proxy_that_names_no_address_is_refused(value: str) -> None:
    with pytest.raises(BadForwarding, match="IP addresses"):
        client(value)


def test_several_headers_are_one_list() -> None:
    found = read(("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "203.0.113.9, 10.0.0.2"))
    assert found == Forwarded("203.0.113.9")


def test_of_the_others_the_nearest_proxys_counts() -> None:
    assert read(
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-proto", "http, HTTPS"),
        ("x-forwarded-host", "evil.example, Example.com:8443"),
        ("x-forwarded-prefix", "/evil,/a/mist/"),
    ) == Forwarded("203.0.113.9", True, b"Example.com:8443", "/a/mist")
    assert read(("x-forwarded-proto", "ws")) == Forwarded(PEER, False)
    assert read(("x-forwarded-prefix", "/")) == Forwarded(PEER)


@pytest.mark.parametrize(
    "prefix",
    ["mist", "//evil.example", "/a//b", "/..", "/a/../b", "/.", "/a/./b", "/a b", "/a?b", "/a#b",
     "/%2e", "/\\evil", "/a;b", "/\x7f", "/" + "a" * 200, "https://evil.example"],
)  # fmt: skip
def test_a_prefix_that_could_lead_elsewhere_is_refused(prefix: str) -> None:
    with pytest.raises(BadForwarding, match="X-Forwarded-Prefix"):
        read(("x-forwarded-prefix", prefix))


@pytest.mark.parametrize("scheme", ["javascript", "https:", "h ttps", "ftp"])
def test_another_scheme_is_refused(scheme: str) -> None:
    for header in (("x-forwarded-proto", scheme), ("forwarded", f'for=1.1.1.1;proto="{scheme}"')):
        with pytest.raises(BadForwarding, match="http or https"):
            read(header)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("for=203.0.113.9", Forwarded("203.0.113.9")),
        ('For="[2001:db8::9]:4711"', Forwarded("2001:db8::9")),
        ("for=203.0.113.9;proto=https;host=a.b", Forwarded("203.0.113.9", True, b"a.b")),
        # What stands with the client counts, not what the client wrote before it.
        (
            "for=1.1.1.1;host=evil;proto=http, for=203.0.113.9;proto=https;host=a.b, for=10.0.0.2",
            Forwarded("203.0.113.9", True, b"a.b"),
        ),
        ('for="203.0.113.9, for=1.1.1.1"', None),  # a comma in quotes parts nothing
        ('for=203.0.113.9;by="\\"quoted\\""', Forwarded("203.0.113.9")),
        ("for=unknown", Forwarded(PEER)),
        ("for=203.0.113.9, for=_gazonk", Forwarded(PEER)),
        ("proto=https", Forwarded(PEER, True)),
        ("", Forwarded(PEER)),
        (", ,for=203.0.113.9,", Forwarded("203.0.113.9")),
        # Half a quoted text would hide what the proxy adds.
        ('for="x, for=203.0.113.9;proto=https', None),
        ("for=x y, for=203.0.113.9", None),
        ("for, for=203.0.113.9", None),
        ("for=1.1.1.1;for=203.0.113.9", None),
        ("for=\xff", None),
        ("=1", None),
    ],
)  # fmt: skip
def test_the_standard_header(value: str, found: Forwarded | None) -> None:
    if found is None:
        with pytest.raises(BadForwarding):
            read(("forwarded", value))
    else:
        assert read(("forwarded", value)) == found


def test_two_standard_headers_are_one_list() -> None:
    assert read(("forwarded", "for=1.1.1.1;host=evil"), ("forwarded", "for=203.0.113.9")) == (
        Forwarded("203.0.113.9")
    )
    with pytest.raises(BadForwarding):  # which is no text over both
        read(("forwarded", 'for="a'), ("forwarded", 'b"'))


def test_the_standard_header_is_not_looked_at_beside_the_other_ones() -> None:
    for value in ("for=1.1.1.1;host=evil", "for=", '"'):
        found = read(("forwarded", value), ("x-forwarded-for", "203.0.113.9"))
        assert found == Forwarded("203.0.113.9")


@pytest.mark.parametrize("begun", ["for=1.1.1.1", "for=1.1.1.1;", ""])
def test_blanks_in_the_standard_header_are_gone_through_once(begun: str) -> None:
    with deadline(30), pytest.raises(BadForwarding, match="can't be understood"):
        read(("forwarded", begun + 300_000 * " " + "@"))


def test_what_was_not_passed_on_is_left_as_it_is() -> None:
    assert read(("host", "a"), ("x-real-ip", "1.1.1.1"), ("via", "1.1 x")) is None


def test_who_is_trusted() -> None:
    assert PROXIES.trust("10.255.0.1")
    assert PROXIES.trust("::ffff:10.0.0.1")
    assert PROXIES.trust("fd00::1%eth0")
    for stranger in ("11.0.0.1", "2001:db8::1", "127.0.0.1", "not an address"):
        assert not PROXIES.trust(stranger)
    assert PROXIES.trust("")
    assert not Proxies([ip_network("10.0.0.0/8")]).trust("")


def test_trust_can_change() -> None:
    proxies = Proxies()
    assert not proxies.trust("10.0.0.1")
    assert not proxies.trust("")
    for networks, trusted in ((["10.0.0.0/8"], True), (["11.0.0.0/8"], False), ([], False)):
        proxies.configure(map(ip_network, networks))
        assert proxies.trust("10.0.0.1") == trusted
    assert Proxies(unix=True).trust("")
    assert not Proxies(unix=True).trust("127.0.0.1")


def test_a_proxy_near_by_that_is_not_trusted_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    passed_on = [(b"host", b"a"), (b"x-forwarded-for", b"192.0.2.1")]
    proxies = Proxies([ip_network("10.0.0.0/8")])
    proxies.note_untrusted([(b"host", b"a")], "192.168.0.1")
    for peer in ("8.8.8.8", "::ffff:8.8.8.8", "2606:4700::1", "", "not an address"):
        proxies.note_untrusted(passed_on, peer)
    assert caplog.records == []
    for peer in ("192.168.0.1", "127.0.0.1", "fd00::1%eth0", "192.168.0.1", "127.0.0.1"):
        proxies.note_untrusted(passed_on, peer)
    told = [each.__dict__["peer"] for each in caplog.records]
    assert told == ["192.168.0.1", "127.0.0.1", "fd00::1%eth0"]
    assert "--trusted-proxy" in caplog.text
    for number in range(100):
        proxies.note_untrusted(passed_on, f"192.168.1.{number}")
    assert len(caplog.records) == 16


def test_what_says_that_it_was_passed_on() -> None:
    for name in (b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"):
        assert is_forwarded([(b"host", b"a"), (name, b"")])
    assert not is_forwarded([(b"host", b"via")])


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-prefix"]),
        st.text('for=1.0,;"\\ :[]/a%\t', max_size=40),
    ),
    max_size=4,
)


@given(HEADERS)
def test_nothing_else_is_ever_raised(headers: list[tuple[str, str]]) -> None:
    try:
        found = read(*headers)
    except BadForwarding:
        return
    assert found is None or found.address


@given(st.lists(st.sampled_from(["1.1.1.1", "x", '"', "10.0.0.3", "", "_a"]), max_size=6))
def test_whatever_a_client_writes_the_proxy_tells_who_it_is(written: list[str]) -> None:
    assert client(", ".join([*written, "203.0.113.9", "10.0.0.2"])) == "203.0.113.9"
