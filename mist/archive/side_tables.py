"""Side tables: usage accounting, subscriptions and token grants, as tables of the archive.

A task of the server (`run`) closes the accounts (`mist.broker.usage`) at the end of each minute
and reads changes of the token registry. The rows are buffered as Arrow, and become segments of
the tables `deliveries`, `subscriptions` and `tokens` after ten minutes, at many rows, when
everything is to be sealed now (`seal_now`), and when the server stops. A segment has the rows of
many minutes, all of one day.

For readers:

- Rows are summed: a minute may have several for one account, for instance when there were so
  many accounts that it was closed early.
- `sealed` in the manifest of `deliveries` is the minute, counted since 1970, that accounts have
  been written up to: all before it are complete.
- The accounts of a minute have what was published in it, give or take the moment of its end.
- `tokens` has a token's grants at the end of a minute in which they changed, and all tokens once
  a day and at each start of the server. No tags: the token was removed.
- Subscriptions that end because the server does are not counted as closed.

Nodes that share an archive write each its own accounts, by its own clock: readers sum them.
`sealed` is the minute that all nodes have written up to that are members of the engine then. The
tokens are the same at all of them, and are written by the one that seals the archive; all of them
also when another node begins to.

A crash loses the minutes that were not written yet, at most ten, of all three tables, and no
messages. While the disk is full, rows are buffered up to a limit; beyond that the oldest are
lost, which is logged.
"""

import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import date
from typing import Final

import attrs
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import trio

from mist.archive.manifest import ArchiveError
from mist.archive.schema import DELIVERIES, SUBSCRIPTIONS, TABLES, TOKENS
from mist.archive.segments import day_of, write_segment
from mist.archive.table import Archive, Table
from mist.auth import Record
from mist.auth.registry import Registry
from mist.broker.usage import UsageAccounting
from mist.change import Change
from mist.errors import MistError
from mist.outage import Outage

__all__ = ["OtherNodes", "SideTables", "SideTablesPolicy"]

log = logging.getLogger("mist.archive")

_MINUTE: Final = 60_000_000  # microseconds
_PAGE: Final = 500  # tokens read between two checkpoints
_SWEEP: Final = 3600.0  # seconds
_OTHERS: Final = 3.0  # seconds for which other nodes' accounts are waited for
_LOOK: Final = 0.25  # seconds
_APART: Final = 300.0  # seconds that the clocks of nodes may be, at which tokens are made
_Batches = list[tuple[str, pa.RecordBatch]]


@attrs.frozen
class SideTablesPolicy:
    """When rows are written.

    Attributes:
        seconds: for which a row is buffered at most.
        rows: buffered of all tables at which they are written.
        most_rows: buffered while writing fails: some 100 bytes each.
    """

    seconds: float = 600.0
    rows: int = 200_000
    most_rows: int = 2_000_000


@attrs.frozen
class OtherNodes:
    """The nodes that share the archive.

    Attributes:
        seals: whether it is this one that seals it.
        ask: asks them to write what they have; see `SideTables.seal_soon`.
        accounted: the minute, since 1970, up to which all have written their accounts. May raise
            `MistError`.
    """

    seals: Callable[[], bool]
    ask: Callable[[], Awaitable[object]]
    accounted: Callable[[], Awaitable[int | None]]


class SideTables:
    """See the module.

    Args:
        archive: where the tables are; created where missing.
        accounts: of the broker; closed by this task alone.
        registry: of the tokens.
        policy: when rows are written.
        clock: Unix seconds.
        others: None where the archive is not shared.

    Attributes:
        accounted: the minute, since 1970, up to which this server's accounts are written.
        waiting: rows not written yet.
        lost: rows dropped since the start.
        failures: failed attempts to write since the start.
    """

    def __init__(
        self,
        archive: Archive,
        accounts: UsageAccounting,
        registry: Registry,
        policy: SideTablesPolicy | None = None,
        *,
        clock: Callable[[], float] = time.time,
        others: OtherNodes | None = None,
    ) -> None:
        self.waiting = 0
        self.lost = 0
        self.failures = 0
        self._archive = archive
        self._accounts = accounts
        self._registry = registry
        self._policy = policy or SideTablesPolicy()
        self._clock = clock
        self._others = others
        self._minute = self._now()
        self.accounted = self._minute // _MINUTE
        self._written = trio.current_time()
        self._swept = -math.inf
        self._batches: _Batches = []  # of which tables; oldest first
        self._outage = Outage(log, "accounts can't be written", "accounts can be written again")
        self._wanted = Change()
        self._full = False  # whether the period is to be closed before its minute ends
        self._soon = False
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._tokens: dict[str, tuple[str, ...]] = {}  # that have changed
        self._listed: date | None = None  # the day for which all tokens were added
        self._looked = 0.0, 0.0  # when the registry was last read, by the clock and by trio's
        self._changes = -1  # of the registry, by then
        accounts.on_full = self._close_early
        registry.watch(self._token_changed)

    async def run(self) -> None:
        """Collect and write rows each minute, until cancelled; then call `aclose`."""
        while True:
            await self._minute_ends()
            soon, self._soon = self._soon, False
            try:
                await self.collect()
                waited = trio.current_time() - self._written
                if soon or waited >= self._policy.seconds or self.waiting >= self._policy.rows:
                    await self.flush()
                    await self._note_all()
            except ArchiveError:
                pass  # logged; the rows wait for the next minute
            except Exception:  # a bug of ours must not stop the server
                log.exception("accounts could not be kept")
                self.failures += 1

    async def seal_now(self) -> None:
        """Write all that has been counted until now, at all nodes.

        Raises:
            ArchiveError: see `flush`.
        """
        if self._others is not None:
            with suppress(MistError):
                await self._others.ask()
        await self.collect()
        await self.flush()
        if self._others is not None:
            with trio.move_on_after(_OTHERS):
                while not await self._note_all():  # noqa: ASYNC110  # nobody tells
                    await trio.sleep(_LOOK)

    def seal_soon(self) -> None:
        """Have `run` write all that has been counted until now."""
        self._soon = True
        self._wanted.notify()

    async def aclose(self) -> None:
        """Write what is buffered, even when cancelled; what fails is logged, and lost."""
        with trio.CancelScope(shield=True):
            try:
                await self.collect()
                await self.flush()
                with trio.move_on_after(_OTHERS):
                    await self._note_all()
            except ArchiveError:
                log.warning("accounts are lost", extra={"rows": self.waiting})

    async def collect(self) -> None:
        """Buffer the accounts of the current minute, or of its part so far, as rows.

        Completes even when cancelled.
        """
        async with self._turn:
            with trio.CancelScope(shield=True):
                self._full = False
                minute, self._minute = self._minute, self._now()
                for delivered, changed in self._accounts.close():
                    self._add("deliveries", DELIVERIES, minute, delivered)
                    self._add("subscriptions", SUBSCRIPTIONS, minute, changed)
                    await trio.lowlevel.checkpoint()
                await self._collect_tokens(minute)

    async def flush(self) -> None:
        """Write what is buffered. Completes even when cancelled.

        Raises:
            ArchiveError: the disk is full, the directory is gone. What isn't written stays
                buffered.
        """
        async with self._turn:
            with trio.CancelScope(shield=True):
                batches, self._batches = self._batches, []
                sweep = trio.current_time() >= self._swept + _SWEEP
                upto = self._minute // _MINUTE
                left, error = await trio.to_thread.run_sync(
                    self._write, batches, sweep, upto, limiter=self._thread
                )
                self._batches = left + self._batches
                self.waiting = sum(batch.num_rows for _, batch in self._batches)
                self._written = trio.current_time()
                if error is None:
                    self.accounted = max(self.accounted, upto)
                if sweep:
                    self._swept = self._written
        if error is None:
            self._outage.end()
            return
        self.failures += 1
        self._outage.note(str(error))
        raise error

    async def _note_all(self) -> bool:
        """Note what all nodes have written. Returns whether they have as much as this one."""
        if self._others is None:
            return True
        try:
            minute = await self._others.accounted()
            if minute is not None:
                await trio.to_thread.run_sync(self._note_complete, minute, limiter=self._thread)
        except MistError:  # by another node then, or next time
            return False
        return minute is not None and minute >= self.accounted

    # minutes

    def _now(self) -> int:
        """The minute, in microseconds since 1970."""
        return math.floor(self._clock() / 60) * _MINUTE

    async def _minute_ends(self) -> None:
        with trio.move_on_after(60 - self._clock() % 60):
            while not (self._full or self._soon):
                await self._wanted.wait()

    def _close_early(self) -> None:
        self._full = True
        self._wanted.notify()

    # rows

    def _add(
        self,
        name: str,
        schema: pa.Schema,
        minute: int,
        rows: Sequence[tuple[object, ...]],
    ) -> None:
        if not rows:
            return
        columns: list[object] = [[minute] * len(rows), *zip(*rows, strict=True)]
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
        ]
        self._batches.append((name, pa.record_batch(arrays, schema)))
        self.waiting += len(rows)
        if self.waiting > self._policy.most_rows:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the oldest rows, down to nine tenths of the limit, to do so less often."""
        dropped = 0
        while self.waiting > 0.9 * self._policy.most_rows:
            _, batch = self._batches.pop(0)
            dropped += batch.num_rows
            self.waiting -= batch.num_rows
        self.lost += dropped
        log.warning("accounts are lost", extra={"rows": dropped})

    # tokens

    def _token_changed(self, old: Record, new: Record | None) -> None:
        self._tokens[old.id] = () if new is None else _tags(new)

    async def _collect_tokens(self, minute: int) -> None:
        """Add the tokens that were changed or registered; once a day, all."""
        tokens, self._tokens = self._tokens, {}
        if self._others is not None and not self._others.seals():
            self._listed = None  # once it seals: all
            return
        today, changes = day_of(minute), self._registry.statistics().changes
        if today != self._listed or changes != self._changes:
            # A registration calls no watcher, but is a change.
            since = -math.inf if today != self._listed else self._last_look()
            self._listed, self._changes = today, changes
            self._looked = self._clock(), trio.current_time()
            after = ""
            while page := self._registry.page(_PAGE, after):
                after = page[-1].id
                tokens.update((each.id, _tags(each)) for each in page if each.created >= since)
                if len(tokens) >= _PAGE:
                    self._add("tokens", TOKENS, minute, list(tokens.items()))
                    tokens = {}
                await trio.lowlevel.checkpoint()
        self._add("tokens", TOKENS, minute, list(tokens.items()))

    def _last_look(self) -> float:
        """When the registry was last read; by the clock as it was or is, whichever is earlier."""
        looked, then = self._looked
        looked = min(looked, self._clock() - (trio.current_time() - then))  # it may have been set
        return looked if self._others is None else looked - _APART

    # in a thread

    def _write(
        self, batches: _Batches, sweep: bool, minute: int
    ) -> tuple[_Batches, ArchiveError | None]:
        """Write a segment for each table and day, until one fails.

        Args:
            minute: since 1970, up to which all has been collected.

        Returns:
            What isn't written, and why.
        """
        parts: dict[tuple[str, date], _Batches] = {}
        for each in batches:
            day = day_of(each[1].column("minute")[0].cast(pa.int64()).as_py())
            parts.setdefault((each[0], day), []).append(each)
        left: _Batches = []
        failed: ArchiveError | None = None
        for (name, day), part in parts.items():
            table = self._archive.table(name)
            try:
                if failed is None:
                    self._write_segment(table, day, part)
                    continue
            except ArchiveError as error:
                failed = error
            left += part
        if sweep:
            for name in {name for name, _ in parts}:
                with suppress(ArchiveError):  # no row waits for it; the next sweep deletes more
                    self._archive.table(name).sweep()
        if failed is None and self._others is None:
            try:
                self._note_complete(minute)
            except ArchiveError as error:
                failed = error
        return left, failed

    def _note_complete(self, minute: int) -> None:
        table = self._archive.table("deliveries")
        if table.exists and table.current().sealed < minute:
            table.change(lambda manifest: msgspec.structs.replace(manifest, sealed=minute))

    def _write_segment(self, table: Table, day: date, part: _Batches) -> None:
        table.create()
        schema = TABLES[table.name]
        rows = pa.Table.from_batches([batch for _, batch in part], schema).combine_chunks()
        bounds = pc.min_max(rows.column("minute").cast(pa.int64())).as_py()
        segment = write_segment(
            table,
            rows,
            schema,
            bounds["min"] // _MINUTE,
            bounds["max"] // _MINUTE,
            day=day,
            part=f"-{secrets.token_hex(4)}",  # a minute may be in several segments
        )
        table.change(lambda manifest: manifest.plus(segment))


def _tags(record: Record) -> tuple[str, ...]:
    return tuple(sorted(record.tags))
