"""Publications as they are read: parts of them, and several that are one on a page."""

from collections.abc import Sequence

from mist.history import Stored
from mist.history.record import joined
from mist.wire import Entry, TagList, record


def entry(tag: str, *data: str) -> Entry:
    tag_list = TagList(frozenset({tag}))
    wire = b"".join(record(tag.encode(), each.encode()) for each in data)
    return tag_list, wire, len(data)


def several(*times: float, **options: object) -> Stored:
    """One of an entry a moment; its data says when that was."""
    entries = [entry("a", str(time)) for time in times]
    firsts = range(1, 1 + len(times))
    return Stored(entries, times[0], "p", firsts=firsts, times=times, **options)  # type: ignore[arg-type]


def seen(every: Sequence[Stored]) -> list[list[tuple[int, float, bytes]]]:
    return [[(each.id, each.time, each.data) for each in stored.messages()] for stored in every]


def test_messages_have_the_times_of_their_entries() -> None:
    assert seen([several(5.0, 5.0, 7.0)]) == [
        [(1, 5.0, b"5.0"), (2, 5.0, b"5.0"), (3, 7.0, b"7.0")]
    ]


def test_by_time_they_are_what_they_were_published_as() -> None:
    stored = several(5.0, 5.0, 7.0, 5.0, audience="users=1", framable=False)
    split = stored.by_time()
    assert seen(split) == [
        [(1, 5.0, b"5.0"), (2, 5.0, b"5.0")],
        [(3, 7.0, b"7.0")],
        [(4, 5.0, b"5.0")],
    ]
    for each in split:
        assert (each.publisher, each.audience, each.framable) == ("p", "users=1", False)
        assert each.times is None
        assert each.by_time() == [each]


def test_what_is_kept_of_it_keeps_its_time() -> None:
    kept = several(5.0, 6.0, 7.0).keep([(1, 0), (2, 0)])
    assert kept is not None
    assert kept.time == 6.0
    assert seen([kept]) == [[(2, 6.0, b"6.0"), (3, 7.0, b"7.0")]]
    assert several(5.0).keep([]) is None


def test_those_that_follow_each_other_are_joined_where_all_are_lines_or_none_is() -> None:
    lines = [
        Stored([entry("a", "x", "y")], 1.0, firsts=[1]),
        Stored([entry("b", "z")], 2.0, firsts=[4]),
    ]
    other = Stored([entry("a", "q")], 3.0, framable=False, firsts=[5])
    found = list(joined([*lines, other, lines[1]]))
    assert [(list(each.firsts), each.framable) for each in found] == [
        ([1, 4], True),
        ([5], False),
        ([4], True),
    ]
    assert [each.data for each in found[0].messages()] == [b"x", b"y", b"z"]
    assert found[1] is other
    assert list(joined([])) == []
