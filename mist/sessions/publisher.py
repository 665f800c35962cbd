"""One session's publishes on their way through the history, with backpressure.

A session doesn't wait for the disk after each publish. It stops reading from its peer at its
share of what may be in flight, and earlier where all sessions together have too much.
"""

from collections.abc import Callable
from typing import Final

from mist.broker.outbox import Outbox
from mist.broker.validation import Rejected
from mist.change import Change
from mist.errors import HistoryUnavailable, MistError
from mist.sessions.sequencer import Sequencer
from mist.sessions.submission import Submission
from mist.wire import Batch

__all__ = ["Publisher"]

_SHARE: Final = 262_144  # bytes in flight of one session


class Publisher:
    """See the module.

    Args:
        sequencer: where they go.
        outbox: the session's own.

    Attributes:
        in_flight: bytes published and not yet settled.
    """

    __slots__ = ("_outbox", "_sequencer", "_settled", "in_flight")

    def __init__(self, sequencer: Sequencer, outbox: Outbox) -> None:
        self.in_flight = 0
        self._sequencer = sequencer
        self._outbox = outbox
        self._settled = Change()

    @property
    def full(self) -> bool:
        """Whether to publish no more before what was published is settled."""
        in_flight = self.in_flight
        return in_flight > _SHARE or (in_flight > 0 and self._sequencer.congested)

    async def publish(
        self,
        batch: Batch,
        name: str,
        on_error: Callable[[MistError], None],
        on_stored: Callable[[int], None] | None = None,
    ) -> None:
        """Have a batch stored and delivered. Waits only where part of it is refused.

        Args:
            name: as in `mist.history.Publication`.
            on_error: called for each message that is refused for its tags, after what stands
                before it was delivered; and for each that could not be stored.
            on_stored: called with the first message's id when all are delivered.
        """

        def settled(submission: Submission, outcome: int | HistoryUnavailable) -> None:
            self.in_flight -= submission.size
            if not self.in_flight:
                self._settled.notify()
            if isinstance(outcome, HistoryUnavailable):
                for _ in range(submission.count):
                    on_error(outcome)
            elif on_stored is not None:
                on_stored(outcome)

        for part in self._sequencer.broker.validate(batch):
            if isinstance(part, Rejected):
                await self.settle()
                for _ in range(part.count):
                    on_error(part.error)
                continue
            submission = Submission([part], settled, self._outbox, name)
            try:
                self._sequencer.submit(submission)
            except HistoryUnavailable as error:
                for _ in range(submission.count):
                    on_error(error)
            else:
                self.in_flight += submission.size

    async def settle(self) -> None:
        """Wait until all that was published is durable and delivered, or refused.

        Cancellation leaves it all on its way.
        """
        while self.in_flight:
            self._sequencer.broker.flush()
            await self._settled.wait()
