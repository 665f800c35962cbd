"""What is stored: messages of a script, as a server would hand them to its log.

They are those that the driver publishes and checks (see `mist.bench.script`), so that a replay
of them is compared to the byte with what a subscriber has to get.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from mist.bench.dialect import Line
from mist.bench.process import start_server
from mist.bench.script import Script, write_script
from mist.bench.site import Site, site_of
from mist.history import MAX_GROUP, History, Publication
from mist.message import format_tags
from mist.wire import Batch

__all__ = ["READ", "SIZE", "groups", "publications", "script_of", "serving", "tidy_up", "url_of"]

SIZE: Final = 100  # bytes of data in a message
READ: Final = 500  # messages that one read of a server's brings, and so one publication

Lists = Sequence[tuple[str, ...]]


def url_of(path: Path) -> str:
    """The URL of a log in a file."""
    return f"sqlite:///{path.absolute()}"


def script_of(lists: Lists, messages: int) -> Script:
    """What is stored and heard of `messages` messages that carry `lists` in turns."""
    return write_script(0, messages, SIZE, lists, Line(), Line())


def publications(script: Script, lists: Lists, first: int, number: int) -> list[Publication]:
    """`number` messages of a script from the one numbered `first` on, as a publisher's reads
    bring them.
    """
    turns, last = len(lists), first + number
    # Of very many lists, only those that occur.
    tag_lists = {
        n % turns: format_tags(lists[n % turns]).encode() for n in range(first, last)[:turns]
    }
    now = time.time()
    made = []
    for start in range(first, last, READ):
        read = [tag_lists[n % turns] for n in range(start, min(start + READ, last))]
        made.append(Publication(_batch(script, read, start), now))
    return made


def _batch(script: Script, tag_lists: list[bytes], first: int) -> Batch:
    """The messages from number `first` on, with their tag lists, as the line protocol has them."""
    size, number = script.delivery_size, len(tag_lists)
    start = first % script.cycle * size
    wire = script.delivery[start : start + number * size]
    if len(set(tag_lists)) == 1:
        return Batch(tag_lists[:1], (wire, number))
    datas = [wire[at : at + SIZE] for at in range(script.mark, len(wire), size)]
    return Batch.of_columns(tag_lists, datas, wire)


def groups(
    script: Script, lists: Lists, messages: int | None, size: int = MAX_GROUP
) -> Iterator[list[Publication]]:
    """Messages of a script from the first on, in pieces that are appended at once.

    Args:
        messages: how many there are; None for no end.
        size: messages of a piece; the last one has what is left.
    """
    firsts = count(0, size) if messages is None else range(0, messages, size)
    for first in firsts:
        number = size if messages is None else min(size, messages - first)
        yield publications(script, lists, first, number)


async def tidy_up(history: History) -> None:
    """Do all maintenance that is due, as a server's maintenance task does over time."""
    while await history.compact():
        pass


@contextmanager
def serving(path: Path, durability: str = "process") -> Iterator[Site]:
    """A server of our own that keeps its messages in a file, and trims none of them.

    Raises:
        BenchError: it didn't start.
    """
    options = ["--durability", durability, "--keep-bytes", "1024GiB"]
    with start_server(*options, history=url_of(path)) as server, site_of(server) as site:
        yield site
