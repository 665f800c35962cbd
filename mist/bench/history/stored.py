"""What is stored: messages of a script, as a server would hand them to its log.

They are those that the driver publishes and checks (see `mist.bench.script`), so that a replay
of them is compared to the byte with what a subscriber has to get.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mist.bench.dialect import Line
from mist.bench.process import start_server
from mist.bench.script import Script, write_script
from mist.bench.site import Site, site_of
from mist.history import MAX_GROUP, History, Publication
from mist.message import format_tags
from mist.wire import Run

__all__ = ["SIZE", "groups", "publications", "script_of", "serving", "tidy_up", "url_of"]

SIZE: Final = 100  # bytes of data in a message
_READ: Final = 500  # messages that one read of a server's brings, and so one publication

Lists = Sequence[tuple[str, ...]]


def url_of(path: Path) -> str:
    """The URL of a log in a file."""
    return f"sqlite:///{path.absolute()}"


def script_of(lists: Lists, messages: int) -> Script:
    """What is stored and heard of `messages` messages that carry `lists` in turns."""
    return write_script(0, messages, SIZE, lists, Line(), Line())


def publications(script: Script, lists: Lists, first: int, count: int) -> list[Publication]:
    """`count` messages of a script from number `first` on, as a publisher's reads bring them."""
    tag_lists = [format_tags(tags).encode() for tags in lists]
    now = time.time()
    return [
        Publication.of_runs(_runs(script, tag_lists, start, min(_READ, first + count - start)), now)
        for start in range(first, first + count, _READ)
    ]


def _runs(script: Script, tag_lists: list[bytes], first: int, count: int) -> list[Run]:
    """A run where there is one tag list, else a message each."""
    size, turns = script.delivery_size, len(tag_lists)
    step = count if turns == 1 else 1
    runs = []
    for number in range(first, first + count, step):
        start = number % script.cycle * size
        wire = script.delivery[start : start + step * size]
        runs.append((tag_lists[number % turns], wire, step))
    return runs


def groups(script: Script, lists: Lists, messages: int) -> Iterator[list[Publication]]:
    """All of a script's messages, in pieces that are appended at once."""
    for first in range(0, messages, MAX_GROUP):
        yield publications(script, lists, first, min(MAX_GROUP, messages - first))


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
