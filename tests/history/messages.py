"""Publications that are quick to write down, and what becomes of them, likewise."""

from mist.history import Publication, Selection
from mist.message import TagList


def run(tags, *data):
    """An entry: `run("a,b", "x", "y")` is two messages with the tags a and b."""
    tag_list = TagList(frozenset(tags.split(",")))
    pieces = [each if isinstance(each, bytes) else each.encode() for each in data]
    return tag_list, b"".join(tag_list.head + each + b"\n" for each in pieces), len(pieces)


def publication(*entries, time=1000.0, publisher="", **options):
    return Publication(list(entries), time, publisher, **options)


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


def ids(messages):
    return [message.id for message in messages]


def texts(messages):
    return [message.data.decode() for message in messages]


def plain(entries):
    """Entries as what can be compared."""
    return [(tag_list.canonical, wire, count) for tag_list, wire, count in entries]
