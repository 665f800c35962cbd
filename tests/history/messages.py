"""Publications that are quick to write down, and what becomes of them, likewise."""

from bisect import bisect_right
from itertools import accumulate

from mist.history import Publication, Selection, StoredMessage
from mist.history.clock import Clock
from mist.history.encoding import encode
from mist.message import format_tags
from mist.wire import record, split_run


def run(tags, *data):
    """A run: `run("a,b", "x", "y")` is two messages with the tags a and b."""
    tag_list = format_tags(tags.split(",")).encode()
    pieces = [each if isinstance(each, bytes) else each.encode() for each in data]
    return tag_list, b"".join(record(tag_list, each) for each in pieces), len(pieces)


def publication(*runs, time=1000.0, publisher="", **options):
    return Publication.of_runs(list(runs), time, publisher, **options)


def numbered(publications, first=1):
    """The messages of publications, as they come out of a log in which they have ids from
    `first` on."""
    messages = []
    for each, time in zip(publications, _times(publications), strict=True):
        for tag_list, wire, count in each.batch.runs:
            tags = frozenset(tag_list.decode().split(","))
            for data in split_run(tag_list, wire, count):
                rest = each.publisher, each.audience, each.meta
                messages.append(StoredMessage(first, time / 1e6, tags, data, *rest))
                first += 1
    return messages


def block_of(publications, first=1):
    """The row of a block of publications, ids from `first` on."""
    return encode(publications, _times(publications)).moved(first - 1)


def _times(publications):
    clock = Clock()
    return [clock.stamp(each.time) for each in publications]


def one(tags, data="", **options):
    """A publication of one message."""
    return publication(run(tags, data), **options)


def some(tags, count, **options):
    """A publication of `count` messages in one run."""
    return publication(run(tags, *map(str, range(count))), **options)


def select(*alternatives):
    """`select("a,b", "c")`: those with a and b, and those with c."""
    return Selection(frozenset(each.split(",")) for each in alternatives)


async def replay(history, selection=None, **options):
    """Every message of a replay, read to its end."""
    after = options.pop("after", 0)
    messages = []
    while True:
        page = await history.read(selection, after=after, **options)
        messages += page.messages()
        assert page.after >= after
        if page.complete:
            return messages
        after = page.after


def of_part(part):
    """The messages of a part, one by one from its columns."""
    columns, head = part.columns, part.head
    ends = list(accumulate(columns.sizes))
    messages = []
    for run in part.runs:
        first = head.start + sum(columns.counts[:run]) + sum(columns.gaps[1 : run + 1])
        data = columns.data[ends[run] - columns.sizes[run] : ends[run]]
        skip = part.skip if run == part.runs[0] else 0
        beyond = part.beyond if run == part.runs[-1] else 0
        if skip:
            data, first = data[part.skipped :], first + skip
        if beyond:
            data = data[: -part.unreached]
        count = columns.counts[run] - skip - beyond
        assert data.endswith(b"\n")
        section = bisect_right(columns.section_ends, run)
        audience, meta = columns.extras[columns.section_extras[section]]
        pieces = [data[:-1]] if count == 1 else data[:-1].split(b"\n")
        assert len(pieces) == count
        messages += [
            StoredMessage(
                first + number,
                (head.oldest + columns.section_times[section]) / 1e6,
                frozenset(columns.lists[columns.run_lists[run]].decode().split(",")),
                piece,
                columns.publishers[columns.section_publishers[section]],
                audience,
                None if meta is None else dict(meta),
            )
            for number, piece in enumerate(pieces)
        ]
    assert (part.count, part.last) == (len(messages), messages[-1].id)
    assert part.size == sum(
        len(",".join(each.tags).encode()) + len(each.data) + len("publish  \n") for each in messages
    )
    return messages


def ids(messages):
    return [message.id for message in messages]


def texts(messages):
    return [message.data.decode() for message in messages]


def plain(entries):
    """Entries as what can be compared."""
    return [(tag_list.canonical, wire, count) for tag_list, wire, count in entries]
