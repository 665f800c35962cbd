"""One session's publishes on their way through the history, with backpressure.

A session doesn't wait for the disk after each publish. It stops reading from its peer at its
share of what may be in flight, and earlier where all sessions together have too much.

Tag lists are checked in the session's own turns, and what takes long to match is matched there,
too (`Broker.validate`): once its messages are in the order of the log, those of others would wait
behind it.
"""

from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Final

from mist.broker.outbox import Outbox
from mist.broker.validation import Accepted, Rejected
from mist.change import Change
from mist.errors import HistoryUnavailable, MistError
from mist.sessions.sequencer import Sequencer
from mist.sessions.submission import Submission
from mist.turns import Account, Turns
from mist.wire import Batch

__all__ = ["Publisher"]

_SHARE: Final = 262_144  # bytes in flight of one session

OnError = Callable[[MistError], None]
OnStored = Callable[[int], None]
Judge = Callable[[Batch], Awaitable[None] | None]


class Publisher:
    """See the module.

    Args:
        sequencer: where they go.
        outbox: the session's own.
        turns: of the event loop.

    Attributes:
        in_flight: bytes published and not yet settled.
    """

    __slots__ = ("_outbox", "_sequencer", "_settled", "_turns", "in_flight")

    def __init__(self, sequencer: Sequencer, outbox: Outbox, turns: Turns) -> None:
        self.in_flight = 0
        self._sequencer = sequencer
        self._outbox = outbox
        self._turns = turns
        self._settled = Change()

    @property
    def full(self) -> bool:
        """Whether to publish no more before what was published is settled."""
        in_flight = self.in_flight
        return in_flight > _SHARE or (in_flight > 0 and self._sequencer.congested)

    async def publish(
        self,
        batch: Batch,
        account: Account,
        name: str,
        on_error: OnError,
        on_stored: OnStored | None = None,
        *,
        late: bool = False,
        judge: Judge | None = None,
    ) -> None:
        """Have a batch stored and delivered. Waits for turns, and where part of it is refused.

        Args:
            account, late: as for `Turns.wait`.
            name: as in `mist.history.Publication`.
            on_error: called for each message that is refused for its tags, after what stands
                before it was delivered; and for each that could not be stored.
            on_stored: called with the first message's id when all are delivered.
            judge: where the session's token has changed since the batch was allowed, publishes or
                refuses a part of it; None where it has not. Called before each part.
        """
        turns = self._turns
        began = turns.now
        with closing(self._sequencer.broker.validate(batch)) as parts:
            for part in parts:
                if isinstance(part, Accepted):
                    if judge is not None and (anew := judge(part.batch)) is not None:
                        self._sequencer.broker.release(part.prepared)
                        await anew
                        continue
                    self._submit(part, name, on_error, on_stored)
                    if part.prepared:  # which takes memory until it is delivered
                        await self.settle()
                elif isinstance(part, Rejected):
                    await self.settle()
                    for _ in range(part.count):
                        on_error(part.error)
                if turns.spent(began):
                    await turns.wait(account, late=late)

    def _submit(
        self, part: Accepted, name: str, on_error: OnError, on_stored: OnStored | None
    ) -> None:
        def settled(submission: Submission, outcome: int | MistError) -> None:
            self.in_flight -= submission.size
            if not self.in_flight:
                self._settled.notify()
            self._sequencer.broker.release(part.prepared)
            if isinstance(outcome, MistError):
                for _ in range(submission.count):
                    on_error(outcome)
            elif on_stored is not None:
                on_stored(outcome)

        submission = Submission([part], settled, self._outbox, name)
        self.in_flight += submission.size
        try:
            self._sequencer.submit(submission)
        except HistoryUnavailable as error:
            settled(submission, error)

    async def settle(self) -> None:
        """Wait until all that was published is durable and delivered, or refused.

        Cancellation leaves it all on its way.
        """
        while self.in_flight:
            self._sequencer.delivery.flush()
            await self._settled.wait()
