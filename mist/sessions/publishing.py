"""A session with a dialect: what its peer publishes, and the replies that it gets.

Without a history a batch goes to the broker at once. With one it goes to the sequencer, which
stores it first; the session goes on meanwhile, and the replies come in the order of the log.
"""

from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

import attrs

from mist.auth import Record
from mist.broker.attribute_index import for_site
from mist.commands import Command, Publish, Store
from mist.errors import CommandError, HistoryOff, MistError, NotGranted
from mist.message import Envelope, parse_tag_list
from mist.protocols import Protocol
from mist.replies import Failed, Reply, Stored
from mist.sessions.hub import Hub
from mist.sessions.publisher import Publisher
from mist.sessions.session import Session
from mist.wire import Batch, Run, records, split_run

__all__ = ["PublishingSession"]

_PUBLISHABLE: Final = 1_000  # tag lists remembered, with whether they may be published
_STEP: Final = 64  # tag lists judged in a step: up to 0.7 ms, where none is remembered


class PublishingSession(Session):
    """See the module.

    Args:
        hub: what all sessions share.
        protocol: the peer's dialect.
        transport, peer, auth_timeout: as for a `Session`.
    """

    __slots__ = ("_asked", "_publishable", "_publisher", "protocol")

    def __init__(
        self,
        hub: Hub,
        protocol: Protocol,
        *,
        transport: str,
        peer: str = "",
        auth_timeout: float | None = None,
    ) -> None:
        super().__init__(
            hub,
            protocol.form,
            protocol.notice,
            transport=transport,
            peer=peer,
            auth_timeout=auth_timeout,
            counted=protocol.counts_subscriptions,
        )
        self._asked: Record | None = None  # whose grant was asked about these tag lists:
        self._publishable: dict[bytes, bool] = {}
        self._publisher: Publisher | None = None
        if hub.sequencer is not None:
            self._publisher = Publisher(hub.sequencer, self.outbox, hub.turns)
        self.set_protocol(protocol)

    def set_protocol(self, protocol: Protocol) -> None:
        """Use this dialect from now on. Only before the first command."""
        self.protocol = protocol
        self.outbox.form = protocol.form
        self.outbox.echo = protocol.echoes
        self.subscriptions.counted = protocol.counts_subscriptions
        self._notify = protocol.notice
        if protocol.keeps_up and self.recovery is not None:
            # A slow consumer is replayed what it missed, and told so.
            self.recovery.announce = lambda notice: self.outbox.reply(self.protocol.notice(notice))
            self.outbox.on_behind = self._fell_behind

    def mark_authenticated(self) -> None:
        """As a `Session` does; the protocol's limits for unauthenticated peers end, too."""
        if self.unauthenticated:
            super().mark_authenticated()
            self.protocol.authenticated()

    def _answer(self, command: Command, reply: Reply) -> None:
        self.outbox.reply(self.protocol.reply(command, reply))

    async def _catch_up(self, publisher: Publisher) -> None:
        """Wait until the commands before have taken effect, and the peer can see that they have."""
        if publisher.in_flight:
            await publisher.settle()
        if self.recovery is not None and self.recovery.behind:
            await self.recovery.caught_up()

    def may_publish(self, batch: Batch) -> bool:
        """Whether this session may publish with all of a batch's tag lists.

        One that isn't valid passes: the broker's validation rejects it, with a better error.
        """
        return self.record is None or all(map(self._may, set(batch.tag_lists)))

    async def _is_allowed(self, batch: Batch) -> bool:
        """As `may_publish`, in turns where there are many tag lists."""
        if self.record is None:
            return True
        lists = set(batch.tag_lists)
        if len(lists) <= _STEP:
            return all(map(self._may, lists))
        while True:
            record = self.record
            refused: list[bytes] = []
            steps = self._judge(list(lists), refused)
            await self.hub.flush_scheduler.work(steps, self.account, late=not self.live)
            if self.record is record:  # else the token has changed meanwhile
                return not refused

    def _judge(self, lists: Sequence[bytes], refused: list[bytes]) -> Iterator[None]:
        """Look for a tag list that this session may not publish with, in steps."""
        for start in range(0, len(lists), _STEP):
            for tag_list in lists[start : start + _STEP]:
                if not self._may(tag_list):
                    refused.append(tag_list)
                    return
            yield

    def _may(self, tag_list: bytes) -> bool:
        record = self.record
        if record is None:  # since a moment ago
            return True
        known = self._publishable
        if record is not self._asked:  # another token, or the token has changed
            self._asked = record
            known.clear()
        verdict = known.get(tag_list)
        if verdict is None:
            try:
                tags = parse_tag_list(tag_list, self.hub.limits.message_tags)
                verdict = record.grant.may_publish(tags)
            except CommandError:
                verdict = True
            if len(known) >= _PUBLISHABLE:
                known.clear()
            known[tag_list] = verdict
        return verdict

    def _parts(self, command: Publish) -> Iterator[Publish]:
        """What a command publishes, by neighbours of one tag list: what came in one read must make
        no difference to what of it is refused."""
        batch = command.batch
        for _, runs in groupby(batch.runs, key=itemgetter(0)):
            part = Batch.of_runs(list(runs), framable=batch.framable, envelope=batch.envelope)
            yield attrs.evolve(command, batch=part)

    async def _publish_parts(self, command: Publish) -> None:
        """Publish what a session may of a batch of several tag lists, and refuse the rest."""
        began = self.hub.turns.now
        for part in self._parts(command):
            await self._publish(part)
            if self.hub.turns.spent(began):
                await self.hub.flush_scheduler.rest(self.account, late=not self.live)
            if self.ended is not None:
                return

    def enveloped(self, batch: Batch) -> Batch:
        """A batch as this session publishes it: for its own site only, where it has one."""
        site = self.outbox.attributes.site
        if site:
            envelope = batch.envelope or Envelope()
            batch.envelope = attrs.evolve(envelope, audience=for_site(envelope.audience, site))
        return batch

    async def _publish(self, command: Publish) -> None:
        """Publish a batch, and queue the replies; where it is stored first, they follow later."""
        if self._publisher is None:
            await self._publish_live(command)
        else:
            await self._publish_stored(self._publisher, command)

    async def _publish_live(self, command: Publish) -> None:
        """Publish where there is no history: deliveries are queued at once, in turns."""

        refused = 0

        def answer(error: MistError) -> None:
            nonlocal refused
            refused += 1
            self._answer(command, Failed(error))

        if isinstance(command, Store):
            answer(HistoryOff())
        elif not await self._is_allowed(command.batch):
            if len(set(command.batch.tag_lists)) > 1:
                await self._publish_parts(command)
            else:
                answer(NotGranted())
        else:
            batch = self.enveloped(command.batch)
            steps = self.hub.broker.publish_in_steps(batch, self.outbox, answer)
            if not isinstance(steps, tuple):  # which is done, as nearly always
                published: list[int] = []
                await self.hub.flush_scheduler.work(
                    self._granted(steps, batch, published), self.account, late=not self.live
                )
                if published and (runs := _runs_behind(batch, published[0] + refused)):
                    rest = Batch.of_runs(runs, framable=batch.framable, envelope=batch.envelope)
                    await self._publish_live(attrs.evolve(command, batch=rest))

    def _granted(
        self, steps: Iterable[int | None], batch: Batch, published: list[int]
    ) -> Iterator[None]:
        """Steps of publishing a batch, for as long as the session may; its token may change.

        Args:
            published: where they end early, the number of messages that all have been given.
        """
        record = self.record
        for done in steps:
            yield
            # What some have been given, others get, too.
            if self.record is not record and done is not None:
                record = self.record
                if not self.may_publish(batch):
                    published.append(done)
                    return

    async def _publish_stored(self, publisher: Publisher, command: Publish) -> None:
        """Publish by way of the history: the messages are delivered once they are stored."""
        recovery = self.recovery
        assert recovery is not None
        if recovery.owes:
            # Publishing doesn't wait for this peer to read; asking for answers does.
            await recovery.caught_up()

        def answer(error: MistError) -> None:
            recovery.in_turn(lambda: self._answer(command, Failed(error)))

        def confirm(first: int) -> None:
            recovery.in_turn(lambda: self._answer(command, Stored(first)))

        if not await self._is_allowed(command.batch):
            if len(set(command.batch.tag_lists)) > 1:
                await self._publish_parts(command)
                return
            await publisher.settle()  # what was published before is answered before
            answer(NotGranted())
            return
        name = "" if self.record is None else self.record.id
        confirmed = confirm if isinstance(command, Store) else None
        batch, record = self.enveloped(command.batch), self.record

        def judge(part: Batch) -> Awaitable[None] | None:
            if self.record is record:
                return None
            return self._publish_parts(attrs.evolve(command, batch=part))

        await publisher.publish(
            batch, self.account, name, answer, confirmed, late=not self.live, judge=judge
        )


def _runs_behind(batch: Batch, place: int) -> list[Run]:
    """The messages of a batch behind so many."""
    found: list[Run] = []
    for tag_list, wire, count in batch.runs:
        skipped = min(place, count)
        place -= skipped
        if not skipped:
            found.append((tag_list, wire, count))
        elif skipped < count:
            datas = split_run(tag_list, wire, count)[skipped:]
            found.append((tag_list, records([tag_list] * len(datas), datas), len(datas)))
    return found
