"""What a URL says, and what it must not."""

import pytest

from mist.engine.postgres.location import Location
from mist.errors import StartupError


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("postgresql://host", Location("host")),
        ("postgres://host/", Location("host")),
        ("postgresql://host:7000/mist", Location("host", 7000, "mist")),
        ("postgresql://[::1]:7000", Location("::1", 7000)),
        ("postgresql://user@host", Location("host", user="user")),
        (
            "postgresql://us%40er:p%2Fa%3As@host/a%2Fb",
            Location("host", user="us@er", password="p/a:s", database="a/b"),
        ),
        ("postgresql:///mist?host=/run/A", Location("/run/A", database="mist")),
        (
            "postgresql://host?sslrootcert=/etc/ca.pem&sslmode=verify-full",
            Location("host", tls=(("sslmode", "verify-full"), ("sslrootcert", "/etc/ca.pem"))),
        ),
        (
            "postgresql://host?realm=a.b-c_1&timeout=0.5&connect_timeout=10",
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
        "host/1/2",
        "host/a%00b",
        "host?realm=",
        "host?realm=a%22b",
        "host?realm=" + 59 * "a",
        "host?realm=a&realm=b",
        "host?timeout=0",
        "host?timeout=nan",
        "host?timeout=soon",
        "host?sslmode=maybe",
        "host?options=-c",
        "/mist?host=relative",
        "host#fragment",
    ],
)
def test_what_is_no_url_is_told_in_one_line_without_the_password(rest: str) -> None:
    with pytest.raises(StartupError) as error:
        Location.parse(f"postgresql://me:secret@{rest}")
    assert str(error.value).startswith("engine: not a URL of PostgreSQL: ")
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_its_name_and_its_representation_have_no_password() -> None:
    location = Location.parse("postgresql://me:secret@host:7000")
    assert location.name == "host:7000"
    assert Location.parse("postgresql://[::1]").name == "[::1]:5432"
    assert "secret" not in repr(location)


def test_the_longest_realm_is_an_identifier() -> None:
    assert len(Location("host", realm=58 * "a").schema) == 63
