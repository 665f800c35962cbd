"""Lists: as JSON what a JSON library writes, and long ones in steps."""

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given

from mist.commands import ListSubscriptions, ListTags
from mist.errors import CommandError
from mist.long_list import LongList, pieces
from mist.message import Limits, check_tag
from mist.protocols import Protocol
from mist.protocols.json import JsonProtocol
from mist.protocols.json.frames import JsonFrameProtocol
from mist.protocols.line import LineProtocol
from mist.protocols.line.lists import format_list, list_in_steps, unwrapped
from mist.protocols.listing import tags_as_json
from mist.replies import SortedTags, Subscriptions
from mist.wire import TagList
from tests.broker.test_projection import lists
from tests.steps import run


@pytest.mark.parametrize("tags", ["a", "a,b", 'a"b,c', "a\\b", "Ä,\u2028,中", "a\x85b"])
def test_tags_are_an_array(tags: str) -> None:
    found = TagList(frozenset(tags.split(",")))
    assert tags_as_json(found) == msgspec.json.encode(sorted(found.tags))


@given(lists)
def test_any_valid_tags_are_the_array_that_a_library_writes(written: str) -> None:
    try:
        found = TagList(frozenset(map(check_tag, written.split(","))))
    except CommandError:
        return
    assert tags_as_json(found) == msgspec.json.encode(sorted(found.tags))
    assert TagList(None, found.canonical).tags == found.tags


@pytest.mark.parametrize("protocol", [LineProtocol, JsonProtocol, JsonFrameProtocol])
def test_long_lists_take_steps_and_are_the_same(
    protocol: type[LineProtocol | JsonProtocol | JsonFrameProtocol],
) -> None:
    tags = [f"t{number:06}" for number in range(100_000)]
    dialect: Protocol = protocol(Limits())
    for command, reply in (
        (ListTags(), SortedTags(tags)),
        (ListSubscriptions(), Subscriptions([tag.encode() for tag in tags])),
    ):
        count, wire = run(dialect.reply_in_steps(command, reply))
        assert count >= 9
        assert wire == dialect.reply(command, reply)
        assert wire.count(b"t0") >= len(tags)


@pytest.mark.parametrize("number", [1, 4_999, 5_000, 5_001, 20_000])
def test_braces_are_told_apart_however_long_the_list(number: int) -> None:
    braced = [b"{%d}" % each for each in range(number)]
    for items in (braced, [*braced, b"x"], [b"x", *braced]):
        _, line = run(list_in_steps(b" ", items))
        assert line == format_list(items)
        assert list(unwrapped(line.split(b" "))) == items
        assert line.startswith(b"{{") == (items is braced)


@pytest.mark.parametrize("number", [0, 1, 1_000, 2_500])
def test_a_long_list_is_given_as_it_is_made(number: int) -> None:
    def made() -> Iterator[range]:
        for start in range(0, number, 300):
            begun.append(start)
            yield range(start, min(start + 300, number))

    begun: list[int] = []
    items = LongList(number, made())
    assert len(items) == number
    taken: list[int] = []
    for some in pieces(items, 7):
        taken += some
        assert begun[-1] == some[0]  # and nothing behind it
    assert taken == list(range(number))
    assert list(items) == []  # it is read once
    assert list(LongList(number, made())) == taken
    assert list(pieces(range(number), 7)) == [
        range(start, min(start + 7, number)) for start in range(0, number, 7)
    ]
