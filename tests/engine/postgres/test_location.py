"""What a URL says, and what it must not."""

import pytest

from mist.engine.addresses import Address
from mist.engine.postgres.location import Location
from mist.errors import StartupError


def at(*hosts: str, port: int = 5432) -> tuple[Address, ...]:
    return tuple([Address(each, port) for each in hosts])


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("postgresql://host", Location(at("host"))),
        ("postgres://host/", Location(at("host"))),
        ("postgresql://host:7000/mist", Location(at("host", port=7000), "mist")),
        ("postgresql://[::1]:7000", Location(at("::1", port=7000))),
        ("postgresql://a,b:5432,c/mist", Location(at("a", "b", "c"), "mist")),
        ("postgresql://user@host", Location(at("host"), user="user")),
        (
            "postgresql://us%40er:p%2Fa%3As@host/a%2Fb",
            Location(at("host"), user="us@er", password="p/a:s", database="a/b"),
        ),
        ("postgresql://me@:1/mist?host=/run/A", Location(at("/run/A", port=1), "mist", "me")),
        ("postgresql:///mist?host=/run/A", Location(at("/run/A"), database="mist")),
        (
            "postgresql://host?sslrootcert=/etc/ca.pem&sslmode=verify-full",
            Location(at("host"), tls=(("sslmode", "verify-full"), ("sslrootcert", "/etc/ca.pem"))),
        ),
        (
            "postgresql://host?realm=a.b-c_1&timeout=0.5&connect_timeout=10",
            Location(at("host"), realm="a.b-c_1", timeout=0.5, connect_timeout=10.0),
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
        "host,",
        "host,host:port",
        ",".join(33 * ["host"]),
        "host/mist?host=/run/A",
        ":1,:2/mist?host=/run/A",
        ":port/mist?host=/run/A",
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
    assert Location.parse("postgresql://me:secret@a,b:1").name == "a:5432, b:1"
    assert "secret" not in repr(location)


def test_the_longest_realm_is_an_identifier() -> None:
    assert len(Location(at("host"), realm=58 * "a").schema) == 63
