"""The way of records to an engine: appended one after another, each once, and known until back.

Where the engine doesn't answer, a record is appended again under its number: so it is there once,
whichever answers were lost. After a bounded wait it is refused, and so are those that come later,
after one attempt each, until the engine is back.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from mist.broker.meters import Meters
from mist.engine.contract import EngineUnavailable, Forked, NotEntered, Record
from mist.engine.node import Node, random_name
from mist.errors import HistoryUnavailable
from mist.sessions.submission import BulkSubmission, Submission

__all__ = ["REFUSED", "STOPPED", "Appender", "Sent"]

REFUSED: Final = "History is unavailable"
STOPPED: Final = "the server is stopping"

_FIRST_DELAY: Final = 0.02  # seconds between two attempts; then twice as long each time, up to:
_LAST_DELAY: Final = 0.5


@attrs.define(eq=False)
class Sent:
    """What is on its way to the engine and back.

    Attributes:
        pieces: the submissions of each piece.
        bulk: a writer's batch, in their place.
        arrived: set once it is back, or refused.
        offset: of the record, where it is back.
        stored: when the engine had it, by trio's clock.
    """

    pieces: Sequence[Sequence[Submission]] = ()
    bulk: BulkSubmission | None = None
    arrived: trio.Event | None = None
    offset: int = 0
    stored: float = math.inf


class Appender:
    """See the module.

    Args:
        node: whose engine it is, and under whose name records are appended.
        timeout: seconds for which the engine is asked before a record is refused.
        refuse: called with what is refused, each once, in order.
        failed, worked: called when a record could not be appended, and when one was.
        forked: called when the log is found to be in another epoch.
        meters: what is measured; None measures nothing.

    Attributes:
        epoch: in which the log is taken to be.
        timeout: as given.
    """

    def __init__(
        self,
        node: Node,
        timeout: float,
        *,
        refuse: Callable[[Sent, HistoryUnavailable], None],
        failed: Callable[[HistoryUnavailable], None],
        worked: Callable[[], None],
        forked: Callable[[], None],
        meters: Meters | None = None,
    ) -> None:
        self.epoch = node.standing.epoch
        self.timeout = timeout
        self._node = node
        self._engine = node.engine
        self._refuse = refuse
        self._failed = failed
        self._worked = worked
        self._forked = forked
        self._meters = meters
        self._name = node.name
        self._serial = 0
        self._sent: dict[int, Sent] = {}
        self._turn = trio.Lock()
        self._unanswered_since: float | None = None

    def __bool__(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._sent)

    async def append(self, sent: Sent, body: bytes, count: int) -> bool:
        """Have a record appended. What is `sent` with it is taken when it is back, or refused.

        Args:
            body, count: see `mist.engine.contract.Engine.append`.

        Returns:
            Whether there is time for what waits behind it. Not where it was refused after all of
            the time: what has come meanwhile has waited for most of it, too.
        """
        try:
            await self._turn.acquire()
        except BaseException:  # cancelled
            self._refuse(sent, HistoryUnavailable(STOPPED))
            raise
        self._serial += 1
        serial = self._serial
        self._sent[serial] = sent
        is_first = self._unanswered_since is None
        began = 0.0 if self._meters is None else self._meters.append.begin()
        try:
            await self._insist(serial, body, count)
        except (EngineUnavailable, Forked, NotEntered) as error:
            if serial in self._sent:  # or else it is back already, whatever the answer was
                self._failed(HistoryUnavailable(str(error)))
                self._refuse_upto(serial)
            if isinstance(error, NotEntered):
                await self._enter_again()
            return not (is_first and isinstance(error, EngineUnavailable))
        except BaseException:  # cancelled: what has publishers is refused with all else
            if not sent.pieces and sent.bulk is None:
                self._sent.pop(serial, None)  # if it was appended, it is as if by others
            raise
        else:
            sent.stored = trio.current_time()
            self._unanswered_since = None
            self._worked()
            if self._meters is not None:
                self._meters.append.end(began)
            return True
        finally:
            self._turn.release()

    async def _insist(self, serial: int, body: bytes, count: int) -> None:
        """Append a record, again and again where the engine doesn't answer, for a bounded time."""
        delay = _FIRST_DELAY
        give_up = math.inf  # the first attempt may take as long as the engine lets it
        error = EngineUnavailable()
        while True:
            asked = trio.current_time()
            try:
                with trio.move_on_at(give_up):
                    await self._engine.append(self._name, serial, body, count, self.epoch)
                    return
            except EngineUnavailable as problem:
                error = problem
            if self._unanswered_since is None:
                self._unanswered_since = asked
            if serial not in self._sent:
                return
            give_up = self._unanswered_since + self.timeout
            if trio.current_time() + delay > give_up:
                raise error
            await trio.sleep(delay)
            delay = min(2 * delay, _LAST_DELAY)
            if serial not in self._sent:
                # The node has entered anew meanwhile, and this was refused. Under its new name the
                # number would be that of another record, which were then taken for stored.
                return

    async def _enter_again(self) -> None:
        name = random_name()
        try:
            standing = await self._engine.enter(name)
        except EngineUnavailable as error:
            self._failed(HistoryUnavailable(str(error)))
        else:
            if standing.epoch == self.epoch:
                # Heartbeats bear the name, too, from now on: an engine that is restarted waits for
                # the votes of those that have sent some, and this node votes under the name.
                self._node.name = self._name = name
                self._serial = 0
            else:
                self._forked()

    def take(self, record: Record) -> Sent | None:
        """What was sent with a record that is back; None where others have appended it, or where
        it was refused meanwhile.
        """
        return self._sent.pop(record.serial, None) if record.node == self._name else None

    def enter(self, node: Node) -> None:
        """The node has entered the engine anew: what is on its way is refused."""
        self.refuse_all()
        if node.name != self._name:  # or else the follower entered before this did, under the name
            self._name, self._serial = node.name, 0
        self.epoch = node.standing.epoch

    def refuse_overdue(self, why: str) -> None:
        """Refuse what is stored, and was not taken in time."""
        before = trio.current_time() - self.timeout
        overdue = [serial for serial, sent in self._sent.items() if sent.stored < before]
        if overdue:
            self._failed(HistoryUnavailable(why))
            self._refuse_upto(overdue[-1])

    def refuse_all(self, why: str = REFUSED) -> None:
        """Refuse all that is on its way. Some of it may have been stored, and be back later: then
        it is delivered as what others have published.
        """
        self._refuse_upto(self._serial, why)

    def _refuse_upto(self, serial: int, why: str = REFUSED) -> None:
        for each in [each for each in self._sent if each <= serial]:
            self._refuse(self._sent.pop(each), HistoryUnavailable(why))
