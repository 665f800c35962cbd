"""Scripts: every message once, in the order of its number, of one size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.bench.dialect import Frames, Line
from mist.bench.script import (
    CHUNK,
    LETTERS,
    MANY,
    MAX_SIZE,
    MIN_SIZE,
    TAG,
    tag_lists,
    write_script,
)


def test_tag_lists_are_different_of_one_length_and_wanted() -> None:
    assert tag_lists(1) == [(TAG,)]
    found = tag_lists(101)
    assert len(set(found)) == 101
    assert len({len(",".join(tags)) for tags in found}) == 1
    assert all(tags[0] == TAG and list(tags) == sorted(tags) for tags in found)


def test_many_tag_lists_have_three_tags_of_their_own_each() -> None:
    found = tag_lists(MANY)
    tags = [tag for tags in found for tag in tags if tag != TAG]
    assert len(set(tags)) == len(tags) == 3 * MANY
    assert len({len(",".join(tags)) for tags in found}) == 1
    assert all(list(tags) == sorted(tags) for tags in found[:100])


@given(st.integers(MIN_SIZE, 300), st.integers(1, 12), st.integers(0, len(LETTERS) - 1))
def test_the_script_says_every_number_once(size: int, lists: int, publisher: int) -> None:
    tags = tag_lists(lists)
    script = write_script(publisher, 50, size, tags, Line(), Frames("localhost", "/", None))
    assert script.cycle % lists == 0
    for number in (0, 1, lists, script.cycle - 1, script.cycle, script.cycle + 1):
        data = b"%c%09d" % (LETTERS[publisher].encode(), number % script.cycle)
        data += b"x" * (size - MIN_SIZE)
        start = number * script.publish_size
        line = script.publish[start : start + script.publish_size]
        assert line == b"publish %b %b\n" % (",".join(tags[number % lists]).encode(), data)
        start = number * script.delivery_size
        assert script.delivery[start + script.mark :].startswith(data + b'"}')


def test_a_server_reads_from_slices_what_was_meant() -> None:
    script = write_script(3, 10, 1000, tag_lists(7), Line(), Line())
    count = script.cycle + 700
    sent, said = 0, b""
    while sent < count * script.publish_size:
        piece = script.slice_to_publish(sent, count)
        assert 0 < len(piece) <= CHUNK
        sent += len(piece)
        said += piece
    assert len(said) == count * script.publish_size
    messages = said.split(b"\n")[:-1]
    numbers = [int(message.split(b" ", 2)[2][1:10]) for message in messages]
    assert numbers == [n % script.cycle for n in range(count)]


@pytest.mark.parametrize("size", [1_000, MAX_SIZE])
def test_memory_is_bounded(size: int) -> None:
    script = write_script(0, 100_000_000, size, tag_lists(1), Line(), Line())
    assert len(script.publish) < 70 << 20
    assert script.cycle >= 1024
