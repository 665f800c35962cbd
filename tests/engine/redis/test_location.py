"""What a URL says, and what it must not."""

import pytest

from mist.engine.redis.location import Location
from mist.errors import StartupError


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("redis://host", Location("host")),
        ("redis://host/", Location("host")),
        ("redis://host:7000/3", Location("host", 7000, 3)),
        ("redis://[::1]:7000", Location("::1", 7000)),
        ("redis://:pass@host", Location("host", password="pass")),
        ("redis://us%40er:p%2Fa%3As@host", Location("host", user="us@er", password="p/a:s")),
        ("rediss://host?ca=/etc/ca.pem", Location("host", tls=True, ca="/etc/ca.pem")),
        (
            "redis://host?realm=a.b-c_1&timeout=0.5&connect_timeout=10",
            Location("host", realm="a.b-c_1", timeout=0.5, connect_timeout=10.0),
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


def test_its_name_and_its_representation_have_no_password() -> None:
    location = Location.parse("redis://me:secret@host:7000")
    assert location.name == "host:7000"
    assert Location.parse("redis://[::1]").name == "[::1]:6379"
    assert "secret" not in repr(location)
