"""Selections of the log as people write them: the same for a server and for an archive."""

import pytest

from mist.errors import CommandError
from mist.protocols.positions import MAX_ALTERNATIVES
from mist.protocols.selections import parse_alternative, parse_moment, split_alternatives

NOON = 1_795_262_400_000_000  # 2026-11-21 12:00 UTC, in microseconds


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ["a"]),
        ("a,b; c", ["a,b", "c"]),
        (" b , a ;c;", ["b , a", "c"]),
        ("a;\n b\t", ["a", "b"]),
        ("a;a", ["a", "a"]),
        ("\N{NO-BREAK SPACE}", ["\N{NO-BREAK SPACE}"]),  # which a tag may have
    ],
)
def test_alternatives_are_parted(text: str, parts: list[str]) -> None:
    assert split_alternatives(text) == parts


@pytest.mark.parametrize("text", ["", " ", ";", ";a", "a;;b", "a;;"])
def test_an_empty_alternative_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="Empty tag"):
        split_alternatives(text)


def test_there_are_as_many_alternatives_as_can_be_resumed() -> None:
    most = ";".join(["a"] * MAX_ALTERNATIVES)
    assert len(split_alternatives(most)) == MAX_ALTERNATIVES
    with pytest.raises(CommandError, match="Too many subscriptions"):
        split_alternatives(most + ";a")


def test_blanks_around_a_tag_do_not_count() -> None:
    assert parse_alternative(" b,\ta , b\n", 2) == {"a", "b"}


@pytest.mark.parametrize("text", ["a,,b", "a b", "a*", ">a", "..a", "x" * 256, "a,\x00", "a,b,c"])
def test_what_no_subscription_may_say_is_refused(text: str) -> None:
    with pytest.raises(CommandError):
        parse_alternative(text, 2)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-21T12:00:00Z", NOON),
        ("2026-11-21T12:00:00", NOON),
        (" 2026-11-21 13:00+01:00\n", NOON),
        ("2026-11-21T12:00:00.000001Z", NOON + 1),
        ("1795262400000", NOON),
        ("2026-11-21", NOON - 43_200_000_000),
        ("0", 0),
        ("1970-01-01T01:00+01:00", 0),
        ("253402300799999", 253_402_300_799_999_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999_000),
    ],
)
def test_times_are_read_as_utc_to_the_microsecond(text: str, moment: int) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize(
    "text",
    [
        "",
        "noon",
        "-1",
        "1e3",
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00+01:00",
        "0001-01-01T00:00+14:00",
        "9999-12-31T23:59:59-01:00",
        "253402300800000",
        "9" * 16,
        "1" * 5000,
        "²",
        "2026-13-01",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a time"):
        parse_moment(text)
