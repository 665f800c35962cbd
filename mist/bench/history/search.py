"""Search: 1,000 matches among many messages, until the first byte and until the last.

The messages carry their tag lists in turns, from the first to the last: with 100,000 lists and
more, those of a block were last seen many blocks ago. One thousand messages that carry `rare` are
spread among them, so that a replay has to find its way from one to the next; one thousand that
carry `late` stand at the very end, so that it has to find its way there; none carries `none`, and
what takes time is to be sure of it.

Over TCP it is measured beside a publisher that saturates the server with messages for someone
else, all of which are stored, too; beside nothing at all where it may be idle.
"""

import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from mist.bench.dialect import Line
from mist.bench.history.disk import file_system, scratch
from mist.bench.history.loops import beside, run
from mist.bench.history.publishing import while_publishing
from mist.bench.history.replay import LEAST, Heard, hear, read, repeat
from mist.bench.history.stored import groups, publications, script_of, serving, tidy_up, url_of
from mist.bench.load import Target
from mist.bench.script import Script, tag_lists
from mist.history import MAX_GROUP, Durability, History, Publication, Selection
from mist.history.opening import open_history

__all__ = ["FEWEST", "Search", "measure_search", "spots", "store_haystack"]

FEWEST: Final = MAX_GROUP  # messages to search among

_MATCHES: Final = 1_000
_WANTED: Final = {"rare": _MATCHES, "late": _MATCHES, "none": 0}
_WHERE: Final = {"rare": "spread", "late": "at the end", "none": "nowhere"}
_SPOT: Final = 10  # messages with `rare` that stand together
_TIDY_EVERY: Final = 50  # groups; as often as a server's maintenance runs under load
_PAGE: Final = 100  # messages of the first page that is asked for


@attrs.frozen(kw_only=True)
class Search:
    """How soon matches are found.

    Attributes:
        through: `log`, or `tcp`.
        file_system: that the log is on; None where that can't be told.
        busy: whether the event loop was saturated meanwhile.
        messages: stored, those that match included.
        tag_lists: different ones among those that don't match.
        where: the matches are: `spread`, `at the end`, or `nowhere`.
        matches: how many.
        firsts: seconds until the first match, or until it was sure that there is none.
        seconds: until it was sure that there is no more.
    """

    through: str
    file_system: str | None
    busy: bool
    messages: int
    tag_lists: int
    where: str
    matches: int
    firsts: list[float] = attrs.field(repr=False)
    seconds: list[float] = attrs.field(repr=False)

    @property
    def first(self) -> float:
        """Seconds; the median."""
        return statistics.median(self.firsts)

    @property
    def all(self) -> float:
        """Seconds; the median."""
        return statistics.median(self.seconds)

    @property
    def each(self) -> float | None:
        """Seconds for one of the matches, by the median search; None where there are none."""
        return self.all / self.matches if self.matches else None


def measure_search(
    folder: Path | None,
    *,
    messages: int = 1_000_000,
    lists: int = 1_000,
    seconds: float = 1.0,
    busy: bool = True,
) -> list[Search]:
    """Store messages, then look for some among them: in the log alone, then over TCP.

    Takes some 10 s and 150 MB for a million messages.

    Args:
        folder: where a log is made and removed; None for the system's place for such.
        messages: at least `FEWEST`, in steps of which it is rounded down; 2,000 more match.
        lists: different tag lists, that messages carry in turns.
        seconds: for each of the six.
        busy: whether it is beside a saturated event loop.

    Raises:
        BenchError: the log can't be written or read, or what is found isn't what was stored.
    """
    scripts = {tag: script_of([("eu", tag)], _MATCHES) for tag in _WHERE}
    with scratch(folder) as place:
        path = place / "history.db"
        store = partial(store_haystack, scripts=scripts, messages=messages, lists=lists)
        stored, alone = run(partial(_of_the_log, path, scripts, store, seconds, busy))
        with serving(path) as site:
            over_tcp = _of_the_server(site.target("tcp"), scripts, seconds, busy)
        system = file_system(place)
        return [
            Search(
                through=through,
                file_system=system,
                busy=busy,
                messages=stored,
                tag_lists=lists,
                where=_WHERE[tag],
                matches=_WANTED[tag],
                firsts=[each.first for each in heard],
                seconds=[each.seconds for each in heard],
            )
            for through, found in (("log", alone), ("tcp", over_tcp))
            for tag, heard in found.items()
        ]


async def _of_the_log(
    path: Path,
    scripts: dict[str, Script],
    store: Callable[[History], Awaitable[None]],
    seconds: float,
    busy: bool,
) -> tuple[int, dict[str, list[Heard]]]:
    """How many messages there are, and each search for a tag."""
    async with await open_history(url_of(path), durability=Durability.PROCESS) as history:
        await store(history)
        found: dict[str, list[Heard]] = {tag: [] for tag in scripts}
        async with beside(busy):
            for tag, heard in found.items():
                selection = Selection([frozenset({"eu", tag})])
                end = time.perf_counter() + seconds
                while time.perf_counter() < end or len(heard) < LEAST:
                    heard.append(await read(history, selection, _WANTED[tag], limit=_PAGE))
        return (await history.statistics()).messages, found


async def store_haystack(
    history: History, scripts: dict[str, Script], messages: int, lists: int
) -> None:
    """Store what there is to search, and what to find in it.

    Args:
        scripts: of the messages with `rare` and with `late`, by tag.
        messages, lists: see `measure_search`.
    """
    tags = tag_lists(lists)
    steps = messages // MAX_GROUP
    usual = groups(script_of(tags, MAX_GROUP), tags, steps * MAX_GROUP)
    stored = 0
    for number, (group, count) in enumerate(zip(usual, spots(steps), strict=True)):
        await history.append([*group, *_marked(scripts, "rare", stored, count)])
        stored += count
        if number % _TIDY_EVERY == 0:
            await tidy_up(history)
    await history.append(_marked(scripts, "late", 0, _MATCHES))
    await tidy_up(history)


def spots(groups: int) -> list[int]:
    """How many of the messages that are spread follow each group: none or at least ten, until
    the last one brings what is missing.
    """
    found = []
    spread = 0
    for number in range(1, groups + 1):
        due = _MATCHES * number // groups - spread
        count = due if due >= _SPOT or number == groups else 0
        found.append(count)
        spread += count
    return found


def _marked(scripts: dict[str, Script], tag: str, first: int, count: int) -> list[Publication]:
    return publications(scripts[tag], [("eu", tag)], first, count)


def _of_the_server(
    target: Target, scripts: dict[str, Script], seconds: float, busy: bool
) -> dict[str, list[Heard]]:
    """Each search for a tag, beside someone who publishes."""
    found = {}
    with while_publishing(target) if busy else nullcontext():
        for tag, script in scripts.items():
            question = Line().replay(["eu", tag])
            ask = partial(hear, target.subscribe, question, script, _WANTED[tag])
            found[tag] = repeat(ask, seconds)
    return found
