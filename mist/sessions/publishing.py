"""A session with a dialect: what its peer publishes, and the replies that it gets.

Without a history a batch goes to the broker at once. With one it goes to the sequencer, which
stores it first; the session goes on meanwhile, and the replies come in the order of the log.
"""

from mist.commands import Command, Publish, Store
from mist.errors import HistoryOff, MistError, NotGranted
from mist.protocols import Protocol
from mist.replies import Failed, Reply, Stored
from mist.sessions.hub import Hub
from mist.sessions.sequencer import Publisher
from mist.sessions.session import Session

__all__ = ["PublishingSession"]


class PublishingSession(Session):
    """See the module.

    Args:
        hub: what all sessions share.
        protocol: the peer's dialect.
        transport, peer, auth_timeout: as for a `Session`.
    """

    __slots__ = ("_publisher", "protocol")

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
        self._publisher: Publisher | None = None
        if hub.sequencer is not None:
            self._publisher = Publisher(hub.sequencer, self.outbox)
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

    async def _catch_up(self) -> None:
        """Wait until the commands before have taken effect, and the peer can see that they have."""
        if self._publisher is not None and self._publisher.underway:
            await self._publisher.settle()
        if self.recovery is not None and self.recovery.behind:
            await self.recovery.caught_up()

    async def _publish(self, command: Publish) -> None:
        """Publish a batch, and queue the replies; where it is stored first, they follow later."""
        if self._publisher is None:
            self._publish_live(command)
        else:
            await self._publish_stored(self._publisher, command)

    def _publish_live(self, command: Publish) -> None:
        """Publish where there is no history: deliveries are queued at once."""

        def answer(error: MistError) -> None:
            self._answer(command, Failed(error))

        if isinstance(command, Store):
            answer(HistoryOff())
        elif self.may_publish(command.batch):
            self.hub.broker.publish(self.enveloped(command.batch), self.outbox, answer)
        else:
            answer(NotGranted())

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

        if not self.may_publish(command.batch):
            await publisher.settle()  # what was published before is answered before
            answer(NotGranted())
            return
        name = "" if self.record is None else self.record.id
        confirmed = confirm if isinstance(command, Store) else None
        await publisher.publish(self.enveloped(command.batch), name, answer, confirmed)
