"""Checking deliveries: against the plain definition, however the bytes are cut."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.bench.dialect import Dialect, Frames, Line
from mist.bench.errors import UnexpectedBytes
from mist.bench.receiver import Receiver
from mist.bench.script import Script, tag_lists, write_script
from mist.protocols.rfc6455 import ping_frame

DIALECTS: list[Dialect] = [Line(), Frames("localhost", "/", None)]
PUBLISHERS = 3
SCRIPTS = {
    (index, lists): [
        write_script(n, 100, 20, tag_lists(lists), Line(), dialect) for n in range(PUBLISHERS)
    ]
    for index, dialect in enumerate(DIALECTS)
    for lists in (1, 4)
}

Arrival = tuple[int, int]  # publisher, number

# Each publisher's numbers in order, but for some that are left out, told twice or come late;
# the publishers' turns are mixed.
arrivals = st.lists(
    st.tuples(st.integers(0, PUBLISHERS - 1), st.integers(0, 99)), max_size=60
) | st.builds(
    lambda numbers, stride: sorted(
        ((n % PUBLISHERS, n // PUBLISHERS) for n in numbers), key=lambda each: each[1] // stride
    ),
    st.lists(st.integers(0, 120), max_size=120),
    st.integers(1, 7),
)


def delivery(script: Script, number: int) -> bytes:
    start = number % script.cycle * script.delivery_size
    return script.delivery[start : start + script.delivery_size]


def counts(came: Sequence[Arrival]) -> tuple[int, int, int]:
    """Different ones, repeated ones, and those that came after a later one."""
    seen: set[Arrival] = set()
    repeated = reordered = 0
    for publisher, number in came:
        if (publisher, number) in seen:
            repeated += 1
        elif any(p == publisher and n > number for p, n in seen):
            reordered += 1
        seen.add((publisher, number))
    return len(seen), repeated, reordered


def feed(receiver: Receiver, data: bytes, cuts: Sequence[int]) -> bytes:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    parts = [data[start:end] for start, end in pairwise(edges)]
    return b"".join(receiver.feed(memoryview(part)) for part in parts if part)


@given(
    st.sampled_from(sorted(SCRIPTS)),
    arrivals,
    st.integers(1, PUBLISHERS),
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_counts_are_those_of_the_definition(
    which: tuple[int, int], came: list[Arrival], publishers: int, cuts: list[int]
) -> None:
    came = [each for each in came if each[0] < publishers]
    dialect, scripts = DIALECTS[which[0]], SCRIPTS[which][:publishers]
    data = b"".join(delivery(scripts[publisher], number) for publisher, number in came)
    receiver = Receiver(scripts, dialect)
    assert feed(receiver, data + dialect.fenced, cuts) == b""
    found = (receiver.received, receiver.repeated, receiver.reordered)
    assert found == counts(came)
    assert receiver.fences == 1
    assert receiver.unread == b""


@given(st.integers(1, PUBLISHERS), st.lists(st.integers(0, 200_000), max_size=8))
def test_a_script_is_followed_into_its_next_cycle(publishers: int, cuts: list[int]) -> None:
    scripts = SCRIPTS[0, 1][:publishers]
    count = scripts[0].cycle + 500
    data = b"".join(delivery(script, n) for n in range(count) for script in scripts)
    receiver = Receiver(scripts, DIALECTS[0])
    feed(receiver, data, cuts)
    assert (receiver.received, receiver.repeated) == (count * publishers, 0)


def test_a_gap_over_the_end_of_a_cycle_is_a_gap() -> None:
    scripts = SCRIPTS[0, 1][:1]
    cycle = scripts[0].cycle
    came = [*range(cycle - 1), cycle + 1, cycle + 2, cycle - 1]
    receiver = Receiver(scripts, DIALECTS[0])
    for number in came:
        receiver.feed(memoryview(delivery(scripts[0], number)))
    assert (receiver.received, receiver.repeated, receiver.reordered) == (len(came), 0, 1)


@pytest.mark.parametrize("publishers", [1, 2])
@pytest.mark.parametrize("cut", range(5))
def test_pings_between_deliveries_are_answered(publishers: int, cut: int) -> None:
    scripts = SCRIPTS[1, 1][:publishers]
    first, second = delivery(scripts[0], 0), delivery(scripts[0], 1)
    receiver = Receiver(scripts, DIALECTS[1])
    data = first + ping_frame(b"12") + second
    answer = feed(receiver, data, [len(first) + cut])
    assert answer == b"\x8a\x82\0\0\0\0" + b"12"
    assert receiver.received == 2


def test_a_receiver_that_begins_later_misses_nothing_before() -> None:
    scripts = SCRIPTS[0, 1][:2]
    receiver = Receiver(scripts, DIALECTS[0])
    receiver.begin(0, 50)
    for number in (50, 51):
        receiver.feed(memoryview(delivery(scripts[0], number)))
    assert (receiver.received, receiver.reordered) == (2, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"publish bench 2000000000xxxxxxxxxx\n",  # a publisher nobody knows
        b"publish bench 0000000000xxxxxxxxxy\n",  # other padding
        b"publish bench 000000000axxxxxxxxxx\n",  # no number
        b"publish bench 0999999999xxxxxxxxxx\n",  # a number beyond the script
        b"publish bencH 0000000000xxxxxxxxxx\n",  # another tag
        b"error Something went very, very wrong here\n",
        bytes(100),
    ],
)
@pytest.mark.parametrize("publishers", [1, 2])
def test_anything_else_is_shown(data: bytes, publishers: int) -> None:
    receiver = Receiver(SCRIPTS[0, 1][:publishers], DIALECTS[0])
    with pytest.raises(UnexpectedBytes, match=r"the server sent b"):
        receiver.feed(memoryview(data))


def test_the_beginning_of_something_else_is_kept() -> None:
    receiver = Receiver(SCRIPTS[0, 1][:1], DIALECTS[0])
    receiver.feed(memoryview(b"error No\n"))
    assert receiver.unread == b"error No\n"
