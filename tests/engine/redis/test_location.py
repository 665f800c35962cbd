"""What a URL says, and what it must not."""

import pytest

from mist.engine.addresses import Address
from mist.engine.redis.location import Location
from mist.errors import StartupError

HOST = (Address("host", 6379),)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("redis://host", Location(HOST)),
        ("redis://host/", Location(HOST)),
        ("redis://host:7000/3", Location((Address("host", 7000),), database=3)),
        ("redis://[::1]:7000", Location((Address("::1", 7000),))),
        ("redis://:pass@host", Location(HOST, password="pass")),
        ("redis://us%40er:p%2Fa%3As@host", Location(HOST, user="us@er", password="p/a:s")),
        ("rediss://host?ca=/etc/ca.pem", Location(HOST, tls=True, ca="/etc/ca.pem")),
        (
            "redis://host?realm=a.b-c_1&timeout=0.5&connect_timeout=10",
            Location(HOST, realm="a.b-c_1", timeout=0.5, connect_timeout=10.0),
        ),
        (
            "redis+sentinel://a,b:7000,[::1]/mymaster",
            Location(
                (Address("a", 26379), Address("b", 7000), Address("::1", 26379)),
                "sentinel",
                "mymaster",
                connect_timeout=1.0,
            ),
        ),
        (
            "rediss+sentinel://u:p@a/m.1/2?sentinel_user=s&sentinel_password=t%26u&realm=r",
            Location(
                (Address("a", 26379),),
                "sentinel",
                "m.1",
                2,
                "u",
                "p",
                "s",
                "t&u",
                tls=True,
                realm="r",
                connect_timeout=1.0,
            ),
        ),
        (
            "redis+cluster://:p@a,b:7000/0?connect_timeout=2",
            Location((Address("a", 6379), Address("b", 7000)), "cluster", password="p"),
        ),
    ],
)
def test_a_url_says_where_a_realm_is(url: str, location: Location) -> None:
    assert Location.parse(url) == location


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "/0",
        "host:port",
        "host:70000",
        "[::1",
        "host/one",
        "host/-1",
        "host/1/2",
        "host?realm=",
        "host?realm=a}b",
        "host?realm=" + 65 * "a",
        "host?realm=a&realm=b",
        "host?timeout=0",
        "host?timeout=nan",
        "host?timeout=inf",
        "host?timeout=soon",
        "host?pool=7",
        "host#fragment",
    ],
)
def test_what_is_no_url_is_told_in_one_line_without_the_password(rest: str) -> None:
    with pytest.raises(StartupError) as error:
        Location.parse(f"redis://me:secret@{rest}")
    assert str(error.value).startswith("engine: not a URL of Redis: ")
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("scheme", "rest"),
    [
        ("redis", "a,b"),
        ("redis+sentinel", "a,b"),
        ("redis+sentinel", "a,/m"),
        ("redis+sentinel", "a:port/m"),
        ("redis+sentinel", "a:0/m"),
        ("redis+sentinel", "a/m/one"),
        ("redis+sentinel", "a/my master"),
        ("redis+sentinel", "a/m?sentinel_pass=secret"),
        ("redis+sentinel", ",".join(33 * "a") + "/m"),
        ("redis+cluster", "a,b/1"),
        ("redis+cluster", "a/m"),
        ("redis+cluster", "a?sentinel_password=secret"),
    ],
)
def test_several_servers_that_are_none_are_told_in_one_line(scheme: str, rest: str) -> None:
    with pytest.raises(StartupError) as error:
        Location.parse(f"{scheme}://me:secret@{rest}")
    assert str(error.value).startswith("engine: not a URL of Redis: ")
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_its_name_and_its_representation_have_no_password() -> None:
    location = Location.parse("redis://me:secret@host:7000")
    assert location.name == "Redis at host:7000"
    assert Location.parse("redis://[::1]").name == "Redis at [::1]:6379"
    assert "secret" not in repr(location)
    location = Location.parse("redis+sentinel://me:secret@a,b:7/m?sentinel_password=hidden")
    assert location.name == "Redis m of Sentinel at a:26379, b:7"
    assert "secret" not in repr(location)
    assert "hidden" not in repr(location)
    location = Location.parse("redis+cluster://me:secret@a,b:7")
    assert location.name == "the Redis cluster at a:6379, b:7"
