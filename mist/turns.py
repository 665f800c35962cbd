"""Turns: how much of the event loop's time one peer may take before others have theirs.

An event loop is fair between tasks, not between peers: the one that has most to do keeps everyone
waiting. So work that can be long, such as a batch of a thousand messages or a list of a thousand
subscriptions, is done in steps, and asks between two steps whether it has had its turn:

    for _ in steps:
        if turns.over:
            await turns.wait(account)

One pass of the loop (every task that can run, once) has a budget of time, `_PASS`. When it is used
up, its turns are over: work that goes on waits. So does work that would begin, once the pass is
`crowded`: nobody knows yet whether it is long, and most is not. Those who wait are given further
turns in an order that is fair to accounts (`mist.turn_queue`). What is `late` anyway comes behind:
peers that connect, and replays. Nobody gains by being late.

A pass gives as many turns as fit its budget, and one at least. So what an attacker adds to
everyone's wait is one budget and one step, and what the server does in all is not less.

Refused: threads, which would be preempted, since everything that is worth being fair about changes
the state that they would share; more priorities for kinds of work, since a peer picks the kind.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeVar

import trio

from mist.turn_queue import Account, Accounts, Place, TurnQueue

__all__ = ["Account", "Turns", "emptying", "let_others_run", "outcome_of"]

T = TypeVar("T")

# Seconds. A checkpoint costs some 30 µs, so this is 6 % of overhead for what is long.
_PASS: Final = 0.0005

_CROWDED: Final = 0.004  # seconds, in which many tasks begin what is short

_SHORT: Final = 0.0002  # seconds of work that never waits once it has begun

_MOST: Final = 64  # turns in one pass, however short

_FREED: Final = 200  # items freed in a step, up to 1 ms where each is a message of 64 tags


async def let_others_run() -> None:
    """Let all tasks that can run do so. Two passes of the loop: in one, some come after this task.

    Checkpoints.
    """
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()


async def outcome_of(steps: Generator[object, None, T]) -> T:
    """What steps come to. A checkpoint between two of them, for what counts for no account."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        await trio.lowlevel.checkpoint()


def emptying(*lists: list[Any]) -> Iterator[None]:
    """Empty lists of the same length, in steps: to free very much at once takes long.

    Short ones, as nearly all are, are left alone: there is nothing to be done in steps.
    """
    return iter(()) if len(lists[0]) <= _FREED else _emptied(lists)


def _emptied(lists: Iterable[list[Any]]) -> Iterator[None]:
    while any(lists):
        for each in lists:
            del each[-_FREED:]
        yield


class Turns(trio.abc.Instrument):
    """The turns of one event loop.

    Until `run` has begun, and after it has ended, there is no budget, and `wait` is a checkpoint.

    Args:
        clock: seconds; monotonic.

    Attributes:
        given: turns that were waited for, since the start.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.given = 0
        self._clock = clock
        self._ends = float("inf")  # when this pass's turns are over
        self._queue = TurnQueue(clock)
        self._width = 1  # turns to be given in one pass
        self._alone = False  # whether somebody goes on after a checkpoint, as nobody else waits
        self._full = False  # whether the pass before used up its budget
        self._asked: trio.Event | None = None  # set when there is somebody to wake
        self._running = False
        self._accounts = Accounts()

    def account(self, name: str) -> Account:
        """The account of this name: one for all who ask for it while any of them keeps it."""
        return self._accounts.of(name)

    @property
    def over(self) -> bool:
        """Whether this pass's budget is used up. O(1): less than 100 ns."""
        return self._clock() > self._ends

    @property
    def now(self) -> float:
        """The clock, for `spent`."""
        return self._clock()

    def spent(self, began: float) -> bool:
        """Whether work has to wait between two steps: `over`, and it is not short.

        What is short has nearly always done its last step. To wait after that, and in each of the
        parts of a request, costs its peer many turns, and saves others nothing.

        Args:
            began: `now` when it began, whether or not it has waited since.
        """
        now = self._clock()
        return now > self._ends and now - began > _SHORT

    @property
    def waiting(self) -> int:
        """Tasks that wait for a turn."""
        return len(self._queue)

    def ahead_of_late(self) -> AbstractContextManager[None]:
        """See `TurnQueue`."""
        return self._queue.ahead_of_late()

    async def wait(self, account: Account, *, late: bool = False) -> None:
        """Wait for a turn, then do a step at least before asking again. A checkpoint.

        Cancellation gives the turn up.

        Args:
            late: whether it comes behind what is live.
        """
        if not self._running:
            await trio.lowlevel.checkpoint()
            return
        place = self._queue.place(account, late=late)
        if self._asked is not None and not self._alone and self._queue.pass_by(place):
            self._alone = True
            try:
                await trio.lowlevel.checkpoint()
            finally:
                self._alone = False
            self.given += 1
            return
        while True:
            self._enter(place)
            try:
                await place.woken.wait()
            except BaseException:
                place.left = True
                raise
            if place.first or not self.over:
                break
            # The others of this pass have used it up: the same turn, in the next one.
        self.given += 1

    async def begin(self, account: Account | None = None, *, late: bool = False) -> float:
        """Wait for a turn before something begins, where this pass is crowded; late, `over`.

        Args:
            account: whom it is charged to; None is nobody else's.
            late: as for `wait`.

        Returns:
            `now`, for `spent`.
        """
        now = self._clock()
        # Most of what begins late is part of a crowd.
        if now > (self._ends if late else self._ends + _CROWDED - _PASS):
            await self.wait(account or Account(), late=late)
            now = self._clock()
        return now

    async def leave(self, account: Account | None = None) -> None:
        """Wait for a turn before what a peer had ends: thousands may hang up in one moment."""
        await self.begin(account, late=True)

    async def drive(self, steps: Iterable[object], account: Account) -> None:
        """Do work in steps, in turns. No checkpoint where it all fits into this pass, or is short.

        Args:
            steps: does one as it is asked for the next item. Cancelled, it is left where it is.
        """
        began = self._clock()
        for _ in steps:
            if self.spent(began):
                await self.wait(account)

    def _enter(self, place: Place) -> None:
        place.woken = trio.Event()
        if not self._running:
            place.first = True
            place.woken.set()
            return
        self._queue.enter(place)
        if self._asked is not None:
            self._asked.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Give turns until cancelled. Tasks that wait then go on, each when it can."""
        with self._installed():
            task_status.started()
            while True:
                self._asked = trio.Event()
                if not self._queue:
                    await self._asked.wait()
                self._asked = None
                while self._queue:
                    await self._queue.until_next()
                    self._wake()
                    # Those who were woken wait again then, if they will, and it can be told who
                    # comes before whom.
                    await let_others_run()

    def _wake(self) -> None:
        # Tasks woken together run in no order, so while one fills a pass, one is woken.
        self._width = 1 if self._full else min(2 * self._width, _MOST)
        first = True
        for place in self._queue.take(self._width):
            place.first, first = first, False
            place.woken.set()

    @contextmanager
    def _installed(self) -> Iterator[None]:
        trio.lowlevel.add_instrument(self)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            self._ends = float("inf")
            trio.lowlevel.remove_instrument(self)
            for place in self._queue.take_all():
                place.first = True
                place.woken.set()

    def after_io_wait(self, timeout: float) -> None:
        """A pass of the loop begins; called by trio."""
        if self._running:
            now = self._clock()
            self._full = now > self._ends
            self._ends = now + _PASS
