"""Replay: what was stored, to one reader, from the first message to the last.

Over TCP a connection says `subscribe TAG 0` and then asks for the proof that all of it has
left. The log alone is read a page after the other, beside a saturated event loop; that is
where a server's share begins.
"""

import select
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from mist.bench.connections import Endpoint, Subscriber
from mist.bench.dialect import Line
from mist.bench.errors import BenchError
from mist.bench.history.disk import file_system, scratch
from mist.bench.history.loops import beside, run
from mist.bench.history.stored import SIZE, groups, script_of, serving, tidy_up, url_of
from mist.bench.load import Target
from mist.bench.script import CHUNK, TAG, Script, tag_lists
from mist.history import MAX_GROUP, Durability, History, Selection
from mist.history.opening import open_history

__all__ = ["LEAST", "Heard", "Replay", "hear", "measure_replay", "read", "repeat"]

_STALL_TIMEOUT: Final = 30.0  # seconds without a byte
LEAST: Final = 3  # answers, however short the time
_SETTLE: Final = 0.005  # seconds for a server to sleep, so that its CPU time is booked


@attrs.frozen(kw_only=True)
class Replay:
    """How fast everything that is stored is replayed.

    Attributes:
        through: `log`, or `tcp`.
        file_system: that the log is on; None where that can't be told.
        messages: stored, and replayed each time.
        tag_lists: different ones among them.
        size: bytes of data in a message.
        stored: bytes of the log's blocks for a message.
        seconds: of each replay.
        firsts: seconds until the first message, of each replay.
        server_cpu: seconds of the server in all replays; None for the log, or where it can't
            be told.
    """

    through: str
    file_system: str | None
    messages: int
    tag_lists: int
    size: int
    stored: float
    seconds: list[float] = attrs.field(repr=False)
    firsts: list[float] = attrs.field(repr=False)
    server_cpu: float | None = None

    @property
    def messages_per_second(self) -> float:
        """By the median replay."""
        return self.messages / statistics.median(self.seconds)


@attrs.frozen
class Heard:
    """How long an answer took.

    Attributes:
        first: seconds until its first byte, or the first page with a message.
        seconds: until it was sure that there is no more.
    """

    first: float
    seconds: float


def measure_replay(
    folder: Path | None,
    *,
    messages: int = 500_000,
    lists: int = 1,
    seconds: float = 1.0,
    busy: bool = True,
) -> list[Replay]:
    """Store messages, then replay them again and again: of the log alone, then over TCP.

    Args:
        folder: where a log is made and removed; None for the system's place for such.
        lists: different tag lists, that messages carry in turns.
        seconds: for each of the two; a replay is always finished, and there are three.
        busy: whether the log alone is read beside a saturated event loop.

    Raises:
        BenchError: the log can't be written or read, or what is replayed isn't what was stored.
    """
    tags = tag_lists(lists)
    script = script_of(tags, messages)
    with scratch(folder) as place:
        path = place / "history.db"
        size, pages = run(partial(_of_the_log, path, script, tags, messages, seconds, busy))
        shape = partial(
            Replay,
            file_system=file_system(place),
            messages=messages,
            tag_lists=lists,
            size=SIZE,
            stored=size / messages,
        )
        alone = shape(
            through="log",
            seconds=[each.seconds for each in pages],
            firsts=[each.first for each in pages],
        )
        with serving(path) as site:
            heard, cpu = _of_the_server(site.target("tcp"), script, messages, seconds)
        over_tcp = shape(
            through="tcp",
            seconds=[each.seconds for each in heard],
            firsts=[each.first for each in heard],
            server_cpu=cpu,
        )
        return [alone, over_tcp]


async def _of_the_log(
    path: Path,
    script: Script,
    lists: Sequence[tuple[str, ...]],
    messages: int,
    seconds: float,
    busy: bool,
) -> tuple[int, list[Heard]]:
    """Bytes stored, and each reading of all of it."""
    async with await open_history(url_of(path), durability=Durability.PROCESS) as history:
        for group in groups(script, lists, messages):
            await history.append(group)
        await tidy_up(history)
        size = (await history.statistics()).size
        found: list[Heard] = []
        async with beside(busy):
            end = time.perf_counter() + seconds
            while time.perf_counter() < end or len(found) < LEAST:
                found.append(await read(history, None, messages))
    return size, found


def _of_the_server(
    target: Target, script: Script, messages: int, seconds: float
) -> tuple[list[Heard], float | None]:
    """Each replay, and the server's CPU seconds for all of them."""
    before = target.cpu()
    question = Line().replay([TAG])
    heard = repeat(partial(hear, target.subscribe, question, script, messages), seconds)
    time.sleep(_SETTLE)
    after = target.cpu()
    cpu = None if before is None or after is None else after - before
    return heard, cpu


def repeat(measure: Callable[[], Heard], seconds: float) -> list[Heard]:
    """Measure for `seconds`, and three times at least."""
    found: list[Heard] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < LEAST:
        found.append(measure())
    return found


async def read(
    history: History, selection: Selection | None, messages: int, *, limit: int = 2 * MAX_GROUP
) -> Heard:
    """Read all that a selection wants, a page of at most `limit` messages after the other.

    Args:
        messages: how many there are.

    Raises:
        BenchError: there were others, too, or not all of them.
    """
    start = time.perf_counter()
    first: float | None = None
    count = after = 0
    while True:
        page = await history.read(selection, after=after, limit=limit)
        count += page.count
        if first is None and page.count:
            first = time.perf_counter() - start
        if page.complete:
            break
        after = page.after
    elapsed = time.perf_counter() - start
    if count != messages:
        raise BenchError(f"the log has {messages:,} such messages, and gave {count:,}")
    return Heard(elapsed if first is None else first, elapsed)


def hear(endpoint: Endpoint, question: bytes, script: Script, messages: int) -> Heard:
    """Ask on a new connection, and take what comes until the proof that it is all.

    Args:
        question: in the endpoint's dialect; the clock runs from when it is sent.
        script: what has to come, from its first message on.
        messages: how many of its messages that are.

    Raises:
        BenchError: something else came, or not all of it, or twice, or out of order.
    """
    buffer = memoryview(bytearray(CHUNK))
    with endpoint.connect() as sock:
        start = time.perf_counter()
        sock.sendall(question + endpoint.dialect.fence)
        subscriber = Subscriber(sock, [script], endpoint.dialect)
        first: float | None = None
        while not subscriber.got.fences:
            ready, _, _ = select.select([sock], [], [], _STALL_TIMEOUT)
            if not ready:
                raise BenchError("the server did not finish a replay")
            if first is None:
                first = time.perf_counter() - start
            subscriber.read(buffer)
            endpoint.dialect.check(subscriber.got.unread)
        elapsed = time.perf_counter() - start
    got = subscriber.got
    if got.repeated or got.reordered:
        raise BenchError("the server replayed messages twice, or out of order")
    if got.received != messages:
        raise BenchError(f"the server has {messages:,} such messages, and sent {got.received:,}")
    return Heard(elapsed if first is None else first, elapsed)
