"""Who is next: the queue behind `mist.turns`.

Those who wait are numbered by *start-time fair queueing* (SIGCOMM 1996) with turns as the unit:
each account's next turn is numbered one after its last, or by the turn that is being given now,
whichever is later; the lowest number is next, and equal ones in the order they came. So an account
that has hardly used the loop comes before one that has kept it busy, however many tasks or
connections the busy one has, and nobody waits for ever.

What is *late* is numbered by itself and comes behind: however much of it there is, of four turns
three are for what is live, if as much of that waits. It waits, too, while a thread does something
that all wait for (`ahead_of_late`): an event loop that goes on takes the interpreter from that
thread, many times over, and a processor where there are few.
"""

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Final
from weakref import WeakValueDictionary

import attrs
import trio

__all__ = ["Account", "Accounts", "Place", "TurnQueue"]

_LIVE: Final = 3  # turns in a row that are not late ones, where some of these wait

_HELD: Final = 0.01  # seconds for which what is late waits for a thread; a disk may be stuck


@attrs.define(eq=False, weakref_slot=True)
class Account:
    """Whom turns are charged to: a token, or a service's session.

    Attributes:
        cost: of each turn; half as much gives twice as many where there are too few.
        turns: the number that its next turn has at least.
    """

    cost: float = 1.0
    turns: float = 0.0


class Accounts:
    """Accounts by name. Nothing is kept of those that nobody has."""

    def __init__(self) -> None:
        self._accounts: WeakValueDictionary[str, Account] = WeakValueDictionary()

    def of(self, name: str) -> Account:
        """The account of this name: one for all who ask for it while any of them keeps it."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account()
        return account


@attrs.define(eq=False)
class Place:
    """The place in the queue of one task.

    Attributes:
        number: of its turn.
        order: in which places were taken.
        late: whether it comes behind what is live.
        woken: set when its turn has come. Made by who enters.
        left: whether it was cancelled, and waits no more.
        first: whether, of those woken in one pass of the event loop, it has its turn whatever the
            clock says.
    """

    number: float
    order: int
    late: bool
    woken: trio.Event = attrs.field(init=False)
    left: bool = False
    first: bool = False

    def __lt__(self, other: "Place") -> bool:
        return (self.number, self.order) < (other.number, other.order)


class TurnQueue:
    """See the module. For one event loop.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._live: list[Place] = []  # a heap
        self._late: list[Place] = []  # another
        self._row = 0  # turns given since the last late one
        self._orders = 0
        self._number = 0.0  # of the turn that was given last
        self._ahead = 0  # threads that late ones wait for
        self._held_until = 0.0  # by the clock
        self._owed = False  # whether one of them has ended since a late turn was given
        self._changed = trio.Event()  # set when somebody may be next though nobody was

    def __bool__(self) -> bool:
        """Whether anybody is in it, perhaps only who has left."""
        return bool(self._live or self._late)

    def __len__(self) -> int:
        """How many wait. O(n)."""
        return sum(not each.left for each in chain(self._live, self._late))

    def place(self, account: Account, *, late: bool) -> Place:
        """A place for the account's next turn, which is charged; not in the queue yet."""
        number = max(self._number, account.turns)
        account.turns = number + account.cost
        self._orders += 1
        return Place(number, self._orders, late)

    def enter(self, place: Place) -> None:
        """Put somebody in."""
        if place.late:
            heapq.heappush(self._late, place)
        else:
            heapq.heappush(self._live, place)
            self._changed.set()

    @contextmanager
    def ahead_of_late(self) -> Iterator[None]:
        """While a thread does what all wait for, give no late turn, but for 10 ms at most.

        Between two of these there is one, however soon the second begins.
        """
        self._ahead += 1
        self._held_until = self._clock() + _HELD
        try:
            yield
        finally:
            self._ahead -= 1
            self._owed = True
            self._changed.set()

    def pass_by(self, place: Place) -> bool:
        """Give a turn to who has not entered, if nobody is before it. Whether that was so."""
        if self or (place.late and self._late_held):
            return False
        self._number = place.number
        self._owed = self._owed and not place.late
        return True

    async def until_next(self) -> None:
        """Wait until somebody of those who are in it may be next. Mostly so: then no checkpoint."""
        if self._live or not self._late_held:
            return
        self._changed = trio.Event()
        with trio.move_on_after(max(self._held_until - self._clock(), 0.0)):
            await self._changed.wait()

    def take(self, count: int) -> list[Place]:
        """Take out those who are next, as many as may be and no more than `count`."""
        taken: list[Place] = []
        while len(taken) < count and (place := self._next()) is not None:
            if place.left:
                continue
            if not taken:
                self._number = max(self._number, place.number)
            if place.late:
                self._row, self._owed = 0, False
            else:
                self._row += 1
            taken.append(place)
        return taken

    def take_all(self) -> list[Place]:
        """Take everybody out."""
        everybody = [*self._live, *self._late]
        self._live.clear()
        self._late.clear()
        return everybody

    def _next(self) -> Place | None:
        if self._late and (not self._live or self._row >= _LIVE) and not self._late_held:
            return heapq.heappop(self._late)
        return heapq.heappop(self._live) if self._live else None

    @property
    def _late_held(self) -> bool:
        return bool(self._ahead) and not self._owed and self._clock() < self._held_until
