"""Publishing from inside the process: by a program that embeds mist, and by HTTP requests.

A peer's messages come through its session, which batches and checks them as they arrive. These
come as a list, and are checked as a whole before any of them is published: all at once in the
caller's own call (`publish_all`, `store_all`), or in turns, where they are a peer's:

    with Checked(hub.broker) as checked:
        await hub.check(checked, messages, account)
        await hub.publish_checked(checked, envelopes, account)      or `store_checked`
        await hub.let_go(checked, account)
"""

from collections.abc import Iterator, Sequence

import trio

from mist.broker.broker import Broker
from mist.errors import HistoryOff, MistError
from mist.history import Key
from mist.message import Envelope, TagSet
from mist.sessions.batching import Checked
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.sequencer import Sequencer
from mist.sessions.submission import Submission
from mist.turns import Account

__all__ = ["InsidePublisher"]


class InsidePublisher:
    """See the module. What a hub is derived from.

    Attributes:
        broker: publishes to subscribers.
        flush_scheduler: gives turns.
        sequencer: the way through the history; None where there is none. Set before the
            first session.
    """

    broker: Broker
    flush_scheduler: FlushScheduler
    sequencer: Sequencer | None

    def publish(self, tags: TagSet, data: bytes) -> int:
        """Publish one message from inside the process, and flush.

        With a history it is stored first, in its turn, and nobody says when or whether: see
        `store`, which also keeps a fast publisher from filling the memory.

        Returns:
            1. (The number of messages accepted, as everywhere.)

        Raises:
            EmptyTag, InvalidTag, TooManyTags, HistoryUnavailable, TypeError: nothing was
                published.
        """
        return self.publish_all([(tags, data)])

    def publish_all(
        self,
        messages: Sequence[tuple[TagSet, bytes]],
        publisher: str = "",
        envelopes: Sequence[Envelope | None] = (),
    ) -> int:
        """Publish messages from inside the process, all or none, and flush; see `publish`.

        Args:
            messages: tags and data of each, in order; at least one.
            publisher: as in `mist.history.Publication`.
            envelopes: what each of them has beside tags and data; empty where none has.

        Returns:
            How many they are.

        Raises:
            EmptyTag, InvalidTag, TooManyTags: nothing was published.
            HistoryUnavailable: nor then; the server is stopping.
            TypeError, ValueError: nor then; the arguments are not what they should be.
        """
        _check_publisher(publisher)
        with Checked(self.broker) as checked:
            _do(checked.check(messages))
            batches = checked.batches(envelopes)
            if self.sequencer is None:
                for part in batches:
                    self.broker.publish(part.batch)
                self.broker.flush()
            else:
                # Nobody waits for it here, and what is prepared is for when it is delivered.
                held, checked.prepared = checked.prepared, []
                self.sequencer.submit(
                    Submission(
                        batches,
                        lambda _, outcome: self.broker.release(held),
                        publisher=publisher,
                    )
                )
        return len(messages)

    async def check(
        self, checked: Checked, messages: Sequence[tuple[bytes, bytes]], account: Account
    ) -> None:
        """Check messages in turns, for `publish_checked` or `store_checked`.

        Args:
            checked: takes them in; with nothing in it.
            messages: of each the tags, as a record has them, and data, in order; at least one.
            account: whom the turns are charged to.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, TooManyMatches: a message's tags break the rules.
        """
        await self.flush_scheduler.work(checked.check_lists(messages), account)

    async def publish_checked(
        self, checked: Checked, envelopes: Sequence[Envelope | None], account: Account
    ) -> None:
        """Publish messages where there is no history, all or none, in turns, and flush.

        Once it has begun it is not cancelled.
        """
        for part in checked.batches(envelopes):
            steps = self.broker.publish_in_steps(part.batch, slices=part.slices)
            await self.flush_scheduler.work(steps, account, shielded=True)
        self.flush_scheduler.flush()

    async def let_go(self, checked: Checked, account: Account) -> None:
        """Free in turns what was published."""
        await self.flush_scheduler.work(checked.let_go(), account)

    async def store_checked(
        self,
        checked: Checked,
        publisher: str,
        key: Key | None,
        envelopes: Sequence[Envelope | None],
    ) -> int:
        """Publish messages durably, all or none. They are on their way before this first waits.

        Returns:
            The id of the first; the others' follow it.

        Raises:
            HistoryOff, HistoryUnavailable: nothing was published; as for `store`.
            KeyUsed: nor then; see there.
        """
        if self.sequencer is None:
            raise HistoryOff
        outcomes: list[int | MistError] = []
        settled = trio.Event()

        def settle(submission: Submission, outcome: int | MistError) -> None:
            outcomes.append(outcome)
            settled.set()

        batches = checked.batches(envelopes)
        self.sequencer.submit(Submission(batches, settle, publisher=publisher, key=key))
        await settled.wait()
        if isinstance(outcomes[0], MistError):
            raise outcomes[0]
        return outcomes[0]

    async def store(self, tags: TagSet, data: bytes) -> int:
        """Publish one message from inside the process, durably.

        Returns:
            Its id. Everyone who is there has it queued.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, HistoryOff, HistoryUnavailable, TypeError: nothing
                was published. Where this is cancelled, or the server stops meanwhile, it may
                have been stored.
        """
        return await self.store_all([(tags, data)])

    async def store_all(
        self,
        messages: Sequence[tuple[TagSet, bytes]],
        publisher: str = "",
        key: Key | None = None,
        envelopes: Sequence[Envelope | None] = (),
    ) -> int:
        """Publish messages from inside the process, durably, all or none; see `store`.

        They are on their way before this first waits: what was looked at just before the call,
        such as a token, still holds.

        Args:
            messages, publisher, envelopes: as for `publish_all`. Up to `mist.history.MAX_GROUP`
                keep nobody waiting for long.
            key: stored with them; `Sequencer.keys_in_flight` asks for it.

        Returns:
            The id of the first; the others' follow it.

        Raises:
            ValueError: as for `publish_all`; and what `store` raises.
        """
        if not isinstance(key, Key | None):
            raise TypeError("a key must be Key or None")
        _check_publisher(publisher)
        with Checked(self.broker) as checked:
            _do(checked.check(messages))
            return await self.store_checked(checked, publisher, key, envelopes)


def _check_publisher(publisher: str) -> None:
    if not isinstance(publisher, str):
        raise TypeError(f"publisher must be str, not {type(publisher).__name__}")


def _do(steps: Iterator[None]) -> None:
    for _ in steps:
        pass
