"""Pages of the log as Arrow streams: from the history, and from the archive where it has more.

A page is made in worker threads, a few at a time, since each takes several times its 16 MiB; the
event loop only sends it, in pieces. The threads hold the interpreter lock briefly: numpy and Arrow
process a megabyte at a time, in a millisecond or two.

Messages that the reader may not get are filtered when rows are made, so a page may have fewer rows
than requested. `after` tells how far it goes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import trio

from mist.attributes import Attributes
from mist.errors import HistoryDamaged
from mist.history import ColumnPage, Part, Selection
from mist.http.staging import no_arrow
from mist.message import TagSet
from mist.sessions.hub import Hub
from mist.sessions.sequencer import Sequencer

if TYPE_CHECKING:
    from mist.archive.sealer import Sealer
    from mist.archive.sharing import SharedSealer
    from mist.http.log_segments import Segments

__all__ = ["LogPage", "LogReader", "Wanted"]

T = TypeVar("T")

_SIZE: Final = 16 * 1024 * 1024  # bytes of data in a page, about
_AT_ONCE: Final = 4  # pages being made; more requests wait
_HELD: Final = 8 * 1024 * 1024  # bytes of blocks that wait for conversion to rows, about
_BATCH: Final = 1024 * 1024  # bytes of blocks converted at a time, about
_MOST_LOST: Final = 50  # ranges in a header

Ranges = tuple[tuple[int, int], ...]


@attrs.frozen
class Wanted:
    """What a request for a page selects.

    Attributes:
        after, upto: ids in `(after, upto]`; None is all there is.
        limit: rows.
        alternatives: subscriptions, of which a message has to match one; None is all messages.
        attributes: of the reader: messages for others are left out, and some columns are blank.
            None for a service, which gets all.
    """

    after: int
    upto: int | None
    limit: int
    alternatives: frozenset[TagSet] | None
    attributes: Attributes | None


@attrs.frozen
class LogPage:
    """A page.

    Attributes:
        body: an Arrow IPC stream.
        after: where to continue.
        complete: whether nothing is left of what was requested.
        lost: ranges of ids up to `after` that are no longer available.
    """

    body: bytes
    after: int
    complete: bool
    lost: Ranges


@attrs.define
class _PageBuilder:
    """A page that is being made.

    Attributes:
        place: everything up to this id is in it.
        rows, size: rows and bytes that still fit.
        batches: rows.
        parts: what follows them and is not converted yet; converted together, since each trip
            to a thread and back is a wait for the event loop.
        held: bytes of the blocks that the parts reference.
    """

    place: int
    rows: int
    size: int
    batches: list[Any] = attrs.field(factory=list)
    parts: list[Part] = attrs.field(factory=list)
    held: int = 0
    lost: list[tuple[int, int]] = attrs.field(factory=list)

    @property
    def full(self) -> bool:
        return self.rows <= 0 or self.size <= 0

    def add(self, batch: Any) -> None:
        self.batches.append(batch)
        self.rows -= len(batch)
        self.size -= batch.nbytes

    def add_columns(self, page: ColumnPage) -> None:
        self.parts += page.parts
        self.held += sum(len(part.columns.data) for part in page.parts)
        self.rows -= page.count
        self.size -= page.size

    def convert(self, attributes: Attributes | None) -> None:
        """Convert the parts to rows, and leave out what is for others. Called in a thread."""
        self.batches += _batches(self.parts, attributes)
        self.parts.clear()
        self.held = 0


class LogReader:
    """Makes pages of a server's log.

    Args:
        sequencer: of the history.
    """

    def __init__(self, hub: Hub, sequencer: Sequencer) -> None:
        self._hub = hub
        self._sequencer = sequencer
        self._history = sequencer.history
        self._threads = trio.CapacityLimiter(_AT_ONCE)
        self._making = trio.CapacityLimiter(_AT_ONCE)
        self._opened: Segments | None = None

    @property
    def _sealer(self) -> "Sealer | SharedSealer | None":
        return self._hub.sealer

    @property
    def sealed(self) -> int:
        """The highest id that was sealed into the archive."""
        return 0 if self._sealer is None else self._sealer.sealed

    async def first(self) -> int:
        """The lowest id that can be read."""
        first = (await self._history.position()).first
        if self._sealer is not None and self._sealer.manifest.segments:
            return min(first, self._sealer.manifest.segments[0].first)
        return first

    async def older(self, time: float) -> int:
        """The id after which the messages not older than `time` (Unix seconds) begin."""
        found: int | None = None
        sealer = self._sealer
        if sealer is not None:
            moment = round(time * 1_000_000)
            segments = await self._segments(sealer)
            manifest = await self._in_thread(sealer.archive.messages.current)
            found = await self._in_thread(partial(segments.older, manifest, moment))
        if found is None:
            found = max(await self._history.before(time), self.sealed)
        return min(max(found, await self.first() - 1), self._sequencer.newest)

    async def read(self, wanted: Wanted) -> LogPage:
        """The next page.

        Raises:
            HistoryUnavailable, ArchiveError: the log can't be read now.
            Problem: the server lacks pyarrow (501).
        """
        async with self._making:
            newest = self._sequencer.newest
            bound = newest if wanted.upto is None else min(wanted.upto, newest)
            selection = (
                None if wanted.alternatives is None else Selection.asked(wanted.alternatives)
            )
            found = _PageBuilder(wanted.after, wanted.limit, _SIZE)
            while found.place < bound and not found.full:
                await self._add(found, wanted, selection, bound)
            body = await self._in_thread(partial(_stream, found, wanted.attributes))
        lost = _joined(found.lost)
        return LogPage(body, max(found.place, wanted.after), found.place >= bound, lost)

    async def _add(
        self, found: _PageBuilder, wanted: Wanted, selection: Selection | None, bound: int
    ) -> None:
        """Add the next messages, from the history or the archive."""
        place = found.place
        expired = (await self._history.position()).expired
        if place < min(expired, self.sealed):
            await self._add_sealed(found, wanted, min(bound, self.sealed))
            return
        try:
            page = await self._history.columns(
                selection, after=place, upto=bound, limit=found.rows, max_bytes=found.size
            )
        except HistoryDamaged as damage:
            if damage.last <= place:
                raise
            upto = min(damage.last, bound)
            if place < self.sealed:
                await self._add_sealed(found, wanted, min(upto, self.sealed))
            else:
                found.lost.append((max(damage.first, place + 1), upto))
                found.place = upto
            return
        # Read after the page: what was removed before the page was read is included.
        expired = (await self._history.position()).expired
        if place < min(expired, self.sealed):
            return  # the archive has it: retried from there
        if place < expired and not await self._history.recovered(selection, place):
            found.lost.append((place + 1, min(expired, page.after)))
        found.add_columns(page)
        found.place = page.after
        if found.held >= _HELD:
            await self._in_thread(partial(found.convert, wanted.attributes))

    async def _add_sealed(self, found: _PageBuilder, wanted: Wanted, upto: int) -> None:
        sealer = self._sealer
        assert sealer is not None
        segments = await self._segments(sealer)
        # The newest one: compaction and erasure may have written it.
        manifest = await self._in_thread(sealer.archive.messages.current)
        piece = await self._in_thread(
            partial(
                segments.read,
                manifest,
                found.place,
                upto,
                wanted.alternatives,
                found.rows,
                found.size,
                wanted.attributes,
            )
        )
        found.lost += piece.lost
        found.place = piece.after
        if piece.batch is not None:
            if found.parts:
                await self._in_thread(partial(found.convert, wanted.attributes))
            found.add(piece.batch)

    async def _segments(self, sealer: "Sealer | SharedSealer") -> "Segments":
        if self._opened is None:
            self._opened = await self._in_thread(partial(_open, sealer))
        return self._opened

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._threads)


# in threads


def _open(sealer: "Sealer | SharedSealer") -> "Segments":
    from mist.http.log_segments import Segments

    return Segments(sealer.archive.messages)


def _batches(parts: Sequence[Part], attributes: Attributes | None) -> Iterator[Any]:
    try:
        from mist.archive.rows import parts_to_batch
        from mist.http.log_segments import filter_visible
    except ModuleNotFoundError as error:
        raise no_arrow() from error
    some: list[Part] = []
    size = 0
    for part in parts:
        some.append(part)
        size += len(part.columns.data)
        if size >= _BATCH:
            yield filter_visible(parts_to_batch(some), attributes)
            some, size = [], 0
    if some:
        yield filter_visible(parts_to_batch(some), attributes)


def _stream(found: _PageBuilder, attributes: Attributes | None) -> bytes:
    try:
        import pyarrow as pa

        from mist.archive.schema import MESSAGES
    except ModuleNotFoundError as error:
        raise no_arrow() from error
    found.convert(attributes)
    # Python's own buffer: from one of Arrow's all 16 MiB would have to be copied at once, while
    # the event loop waits for the interpreter lock.
    sink = BytesIO()
    with pa.ipc.new_stream(sink, MESSAGES) as writer:
        for batch in found.batches:
            writer.write_batch(batch if attributes is None else _blanked(batch))
    return sink.getvalue()


def _blanked(batch: Any) -> Any:
    """The rows with the columns blank that only services may read."""
    import pyarrow as pa

    blank = {
        "publisher": pa.repeat("", len(batch)),
        "audience": pa.nulls(len(batch), pa.string()),
        "meta": pa.nulls(len(batch), batch.schema.field("meta").type),
    }
    columns = [blank.get(name, batch.column(name)) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Join neighbouring ranges; where they are too many, all of them into one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    if len(joined) > _MOST_LOST:
        joined = [(joined[0][0], joined[-1][1])]
    return tuple(joined)
