"""Lists: as JSON what a JSON library writes, and long ones in steps."""

import msgspec
import pytest
from hypothesis import given

from mist.commands import ListSubscriptions, ListTags
from mist.errors import CommandError
from mist.message import Limits, check_tag
from mist.protocols import Protocol
from mist.protocols.json import JsonProtocol
from mist.protocols.json.frames import JsonFrameProtocol
from mist.protocols.line import LineProtocol
from mist.protocols.line.lists import format_list, list_in_steps, unwrapped
from mist.protocols.listing import joined, tags_as_json
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


def test_joining_in_steps_is_joining() -> None:
    items = [str(number) for number in range(25_000)]
    steps = joined(" ", items)
    assert [next(steps), next(steps)] == [None, None]
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == " ".join(items)
