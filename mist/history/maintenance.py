"""The task that looks after a log: retention now and then, housekeeping as it comes up."""

import logging
import time
from collections.abc import Callable
from typing import Final

import attrs
import trio

from mist.errors import HistoryUnavailable
from mist.history import History, Policy
from mist.history.idempotency import KEY_SECONDS, MAX_KEYS, MAX_KEYS_OF_OWNER

__all__ = ["keep"]

log = logging.getLogger("mist.history")

_TIDY: Final = 0.25  # seconds; at 50 MB/s, a dozen megabytes of SQLite's log to bring home
_STEPS: Final = 50  # of housekeeping in a row


async def keep(
    history: History,
    policy: Policy,
    *,
    interval: float = 10.0,
    sweep_interval: float = 600.0,
    clock: Callable[[], float] = time.time,
    sealed: Callable[[], int] | None = None,
) -> None:
    """Look after a log for as long as it is open. Runs until cancelled.

    A failure is logged, once until it is over, and tried again: a full disk may have room
    tomorrow, and trimming is what makes some.

    Args:
        interval: seconds between two passes of retention.
        sweep_interval: seconds between two that also go over what rules have kept.
        clock: Unix seconds.
        sealed: see `Policy.sealed`; None where there is no archive.
    """
    failing = False
    tidied = -1  # the newest id when nothing was left to tidy
    next_trim = next_sweep = trio.current_time()
    while True:
        try:
            trimming = trio.current_time() >= next_trim
            if trimming:
                next_trim = trio.current_time() + interval
                if sealed is not None:
                    policy = attrs.evolve(policy, sealed=sealed())
                sweep = trio.current_time() >= next_sweep
                if await _trim(history, policy, clock, sweep=sweep):
                    tidied = -1  # there is space to give back
                while await history.forget_keys(clock() - KEY_SECONDS, MAX_KEYS, MAX_KEYS_OF_OWNER):
                    pass
                if sweep:
                    next_sweep = trio.current_time() + sweep_interval
            newest = (await history.position()).newest
            if newest != tidied and await _tidy(history):
                tidied = newest
            # Both have worked, so whichever failed is over it.
            failing = failing and not trimming
        except HistoryUnavailable as error:
            if not failing:
                log.warning("history can't be looked after", extra={"reason": str(error)})
            failing = True
        await trio.sleep(_TIDY)


async def _trim(
    history: History, policy: Policy, clock: Callable[[], float], *, sweep: bool
) -> int:
    """Retention to its end; how many messages went."""
    removed = 0
    more = True
    while more:
        step = await history.trim(policy, clock(), sweep=sweep)
        removed += step.messages
        more = step.more
    if removed:
        log.info("history trimmed", extra={"messages": removed})
    return removed


async def _tidy(history: History) -> bool:
    """Some housekeeping; whether nothing is left to do."""
    for _ in range(_STEPS):
        if not await history.tidy():
            return True
    return False
