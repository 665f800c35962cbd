"""What publishers hand to the sequencer, and how they hear what became of it.

Submission          messages of one publisher, stored with those of others (group commit)
BulkSubmission      a writer's batch, perhaps of millions, stored by itself
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import attrs
import trio

from mist.broker.outbox import Outbox
from mist.broker.validation import Accepted
from mist.errors import HistoryUnavailable, MistError
from mist.history import Bulk, Commit, Key, Mark, Publication
from mist.message import Envelope
from mist.telemetry import Origin

__all__ = ["BulkSubmission", "Settled", "Submission", "publications_of"]

_STEP: Final = 1_000  # publications, some 5 ms
_PLAIN: Final = Envelope()


@attrs.define
class Submission:
    """Batches on their way through the history together: all are stored, or none.

    Attributes:
        accepted: what they are, in order.
        settled: called once with the id of the first message, when all are delivered; or with
            the error, `HistoryUnavailable` or, of what has a key, `KeyUsed`, when nobody gets
            them. Unless the server was stopping, or an engine did not answer, nothing was stored
            then either. What it raises is contained.
        source: the publisher's own outbox.
        publisher, key, time: as in `mist.history.Publication`.
        origin: the span that it was submitted in; None where there is none.
        count, size: messages, and bytes.

    Raises:
        ValueError: there is no message.
    """

    accepted: Sequence[Accepted]
    settled: "Settled"
    source: Outbox | None = None
    publisher: str = ""
    key: Key | None = None
    time: float = attrs.field(init=False, factory=time.time)
    origin: Origin | None = attrs.field(init=False, default=None)
    count: int = attrs.field(init=False)
    size: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.count = sum([part.batch.count for part in self.accepted])
        self.size = sum([part.batch.size for part in self.accepted])
        if self.count < 1:
            raise ValueError("a submission has at least one message")

    def publications(self) -> Iterator[Publication]:
        """What the history is to append."""
        key = self.key
        for part in self.accepted:
            envelope = part.batch.envelope or _PLAIN
            yield Publication(
                part.batch,
                self.time,
                self.publisher,
                None if envelope.audience is None else envelope.audience.text,
                envelope.meta,
                key=key,
            )
            key = None  # which stands for all of it, and for the first message's id


async def publications_of(group: Iterable[Submission]) -> list[Publication]:
    """What the history is to append of some submissions. Checkpoints where that is much."""
    found: list[Publication] = []
    for submission in group:
        for each in submission.publications():
            found.append(each)
            if not len(found) % _STEP:
                await trio.lowlevel.checkpoint()
    return found


Settled = Callable[[Submission, int | MistError], None]


@attrs.define(eq=False)
class BulkSubmission:
    """A writer's batch on its way.

    Attributes:
        bulk, mark: as in `History.commit`; `bulk` may have no message.
        time: when it came, Unix seconds.
        origin: as of a `Submission`.
        done: set when there is an outcome.
        outcome: what `History.commit` returned, or why there is nothing to return.

    Raises:
        TypeError, ValueError: it can't be a batch.
    """

    bulk: Bulk
    mark: Mark
    time: float = attrs.field(init=False, factory=time.time)
    origin: Origin | None = attrs.field(init=False, default=None)
    done: trio.Event = attrs.field(init=False, factory=trio.Event)
    outcome: tuple[Commit, bool] | Exception = attrs.field(init=False, factory=HistoryUnavailable)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.bulk, Bulk) or not isinstance(self.mark, Mark):
            raise TypeError("a batch is a Bulk with its Mark")
        if self.bulk.count < 0:
            raise ValueError("a batch can't have less than no messages")
