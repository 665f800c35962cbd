"""The maintenance task of a log: retention at intervals, compaction when it is due."""

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from mist.errors import HistoryUnavailable
from mist.history import History, Policy
from mist.history.idempotency import KEY_SECONDS, MAX_KEYS, MAX_KEYS_OF_OWNER
from mist.history.layout import MICROSECONDS
from mist.history.leaps import Reading, boot_id, read_clock
from mist.outage import Outage

__all__ = ["run_maintenance"]

log = logging.getLogger("mist.history")

_INTERVAL: Final = 0.25  # seconds; at 50 MB/s, a dozen megabytes of SQLite's WAL to checkpoint
_IDLE: Final = 0.5  # seconds, while nothing is appended
_STEPS: Final = 50  # of compaction in a row


async def run_maintenance(
    history: History,
    policy: Policy | Callable[[], Policy],
    *,
    interval: float = 10.0,
    sweep_interval: float = 600.0,
    clock: Callable[[], float] = time.time,
    sealed: Callable[[], int] | None = None,
    forget_keys: Callable[[float, int, int], Awaitable[bool]] | None = None,
) -> None:
    """Maintain a log while it is open. Runs until cancelled.

    A failure is logged once until it is over, and retried: a full disk may have space later, and
    retention is what frees some.

    Args:
        policy: of retention; or what tells the one that holds now.
        interval: seconds between two passes of retention.
        sweep_interval: seconds between two passes that also check again what rules have kept.
        clock: Unix seconds.
        sealed: see `Policy.sealed`; None where there is no archive.
        forget_keys: in the place of the history's own.
    """
    forget = forget_keys or history.forget_keys
    outage = Outage(log, "history maintenance failed", "history maintenance works again")
    is_idle = False
    boot = boot_id() or secrets.token_hex(8)  # of this process, where nothing else is known
    compacted = -1  # the newest id when nothing was left to compact
    next_trim = next_sweep = trio.current_time()
    while True:
        try:
            trimming = trio.current_time() >= next_trim
            if trimming:
                next_trim = trio.current_time() + interval
                current = policy if isinstance(policy, Policy) else policy()
                if sealed is not None:
                    current = attrs.evolve(current, sealed=sealed())
                sweep = trio.current_time() >= next_sweep
                now = clock()  # once, or a leap between two looks at it would not be noticed
                await _note_clock(history, read_clock(now, boot))
                if await _trim(history, current, now, sweep=sweep):
                    compacted = -1  # there is free space to return
                while await forget(clock() - KEY_SECONDS, MAX_KEYS, MAX_KEYS_OF_OWNER):
                    pass
                if sweep:
                    next_sweep = trio.current_time() + sweep_interval
            newest = (await history.position()).newest
            is_idle = newest == compacted
            if not is_idle and await _compact(history):
                compacted = newest
            # Both have worked, so a failure of either is over.
            if trimming:
                outage.end()
        except HistoryUnavailable as error:
            outage.note(str(error))
        await trio.sleep(_IDLE if is_idle else _INTERVAL)


async def _note_clock(history: History, reading: Reading) -> None:
    leap = await history.note_clock(reading)
    if leap is not None:
        log.warning(
            "the clock is ahead of the time that has passed, and messages don't expire for that: "
            "check it; if so much time did pass, stop the server and run `mist history trim`",
            extra={"days": round(leap.by / MICROSECONDS / 86_400, 1)},
        )


async def _trim(history: History, policy: Policy, now: float, *, sweep: bool) -> int:
    """Run retention until nothing is left to do. Returns how many messages were removed."""
    removed = 0
    more = True
    while more:
        step = await history.trim(policy, now, sweep=sweep)
        removed += step.messages
        more = step.more
    if removed:
        log.info("history trimmed", extra={"messages": removed})
    return removed


async def _compact(history: History) -> bool:
    """Run some steps of compaction. Returns whether nothing is left to do."""
    for _ in range(_STEPS):
        if not await history.compact():
            return True
    return False
