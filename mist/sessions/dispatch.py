"""A session whose peer sends commands: carried out in the order they came, each answered once.

A transport feeds it what it reads (`receive`). It knows neither the socket nor the dialect: the
same class serves a service on TCP and a browser on a WebSocket, told apart by two things only:
what authenticates it (`credential`), and how its protocol counts a repeated subscription.
"""

from enum import Enum
from typing import Final

import trio

from mist.commands import (
    AddTags,
    Auth,
    Bye,
    Command,
    Echo,
    Escape,
    Fetch,
    Hangup,
    Ids,
    Invalid,
    Last,
    ListSubscriptions,
    ListTags,
    Ping,
    Publish,
    Register,
    RemoveTags,
    Resume,
    SetAttributes,
    ShowAttributes,
    ShowTags,
    Store,
    Subscribe,
    SubscribeNamed,
    Unregister,
    Unsubscribe,
    UnsubscribeNamed,
    Who,
)
from mist.errors import (
    CommandError,
    HistoryOff,
    MistError,
    NotAllowed,
    NotGranted,
    RegistryUnavailable,
    Unauthorized,
)
from mist.protocols import Protocol
from mist.replies import (
    CaughtUp,
    Connections,
    Done,
    Failed,
    Newest,
    Reply,
    Stored,
    Subscriptions,
    Tags,
    TokenAttributes,
)
from mist.sessions.close_reason import DISCONNECTED, CloseReason
from mist.sessions.hub import Hub
from mist.sessions.sequencer import Publisher
from mist.sessions.session import Session

__all__ = ["CommandSession", "Credential"]

_MEASURED: Final = 16  # flushes; the chunk after as many is measured, at a cost not seen
_COMMAND_SLICE: Final = 200  # commands that aren't publishes between two checkpoints, some 5 ms

_RegistryChange = Register | Unregister | AddTags | RemoveTags | SetAttributes


class Credential(Enum):
    """What an `Auth` command of a session presents."""

    SECRET = "secret"  # a kind, not a secret
    TOKEN = "token"
    EITHER = "secret or token"


class CommandSession(Session):
    """See the module.

    Args:
        hub: what all sessions share.
        protocol: the peer's dialect.
        credential: what `Auth` presents.
        transport, peer, auth_timeout: as for a `Session`. Of an unauthenticated peer only `Ping`
            and `Auth` are carried out, and anything else ends the session.
    """

    __slots__ = ("_credential", "_publisher", "protocol")

    def __init__(
        self,
        hub: Hub,
        protocol: Protocol,
        *,
        transport: str,
        peer: str = "",
        credential: Credential = Credential.SECRET,
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
        self._credential = credential
        self._publisher: Publisher | None = None
        if hub.sequencer is not None:
            self._publisher = Publisher(hub.sequencer, self.outbox)
        self.set_protocol(protocol)

    def set_protocol(self, protocol: Protocol) -> None:
        """Speak this dialect from now on. Only before the first command."""
        self.protocol = protocol
        self.outbox.form = protocol.form
        self.outbox.echo = protocol.echoes
        self.subscriptions.counted = protocol.counts_subscriptions
        self._notify = protocol.notice
        if protocol.keeps_up and self.recovery is not None:
            # Who is too slow is brought what it missed, and told so.
            self.recovery.announce = lambda notice: self.outbox.reply(self.protocol.notice(notice))
            self.outbox.on_behind = self._fell_behind

    def welcome(self) -> None:
        """As a `Session` does; the limits that its protocol had for unauthenticated peers end."""
        if self.unauthenticated:
            super().welcome()
            self.protocol.authenticated()

    async def receive(self, data: bytes) -> bool:
        """Carry out what has arrived; everyone it concerned is flushed afterwards.

        Stops where a command ends the session. Cancellation leaves the commands that came
        before it carried out.

        Returns:
            whether other sessions had their turn meanwhile; else whoever calls this in a
            loop has to give them one.
        """
        publisher = self._publisher
        changes: list[_RegistryChange] = []
        carried_out = 0
        began, published = 0.0, False
        # With a history others write what this publishes, and measure it.
        if not self.hub.broker.flushes % _MEASURED and publisher is None:
            began = self.hub.meters.clock()
        try:
            for command in self.protocol.receive(data):
                if isinstance(command, Publish) and not self.unauthenticated and not changes:
                    # Nearly always, and all that there is.
                    if publisher is None:
                        self._publish(command)
                        published = True
                    else:
                        await self._store(publisher, command)
                    continue
                await self._catch_up()
                if isinstance(command, _RegistryChange) and self._may_administer:
                    # Held back until something else comes, so that a script that registers
                    # a thousand tokens waits for the disk once, not a thousand times.
                    changes.append(command)
                    continue
                if changes:
                    await self._change_registry(changes)
                    changes = []
                await self.dispatch(command)
                carried_out += 1
                if carried_out % _COMMAND_SLICE == 0:
                    self.hub.broker.flush()
                    await trio.lowlevel.checkpoint()
                if self.ended is not None:
                    break
            else:
                if changes:
                    await self._change_registry(changes)
                if publisher is not None and publisher.full:
                    await publisher.settle()
        finally:
            rested = await self.hub.flush_scheduler.pause(self.name)
        if began and published:
            self.hub.meters.publish_to_write.end(began)
        return rested

    async def _catch_up(self) -> None:
        """Wait until all that stands before has taken effect, for the peer to see, too."""
        if self._publisher is not None and self._publisher.underway:
            await self._publisher.settle()
        if self.recovery is not None and self.recovery.behind:
            await self.recovery.caught_up()

    @property
    def _may_administer(self) -> bool:
        return (
            self._credential is Credential.SECRET
            and self.record is None
            and not self.unauthenticated
        )

    async def dispatch(self, command: Command) -> None:
        """Carry out one command and queue its reply."""
        if isinstance(command, Publish) and not self.unauthenticated:
            if self._publisher is None:
                self._publish(command)
            else:
                await self._store(self._publisher, command)
        elif isinstance(command, Hangup):
            self.end(CloseReason(command.code, command.reason))
        elif isinstance(command, Bye):
            self.end(DISCONNECTED)
        elif isinstance(command, Auth):
            await self._authenticate(command)
        elif self.unauthenticated and not isinstance(command, Ping):
            await self._refuse(command)
        elif isinstance(command, Resume):
            await self._resume(command)
        elif isinstance(command, Fetch):
            await self._fetch(command)
        else:
            self._answer(command, self._execute(command))

    def _execute(self, command: Command) -> Reply:
        try:
            match command:
                case Ping():
                    return Done()
                case Subscribe(tags=tags):
                    self.subscribe(tags)
                    return Done()
                case Unsubscribe(tags=tags):
                    self.subscriptions.remove(tags)
                    return Done()
                case SubscribeNamed(tags=tags, name=name, form=form, queue=queue):
                    self.subscribe_named(tags, name, form, queue)
                    return Done()
                case UnsubscribeNamed(name=name, most=most):
                    self.unsubscribe_named(name, most)
                    return Done()
                case ListSubscriptions():
                    return self._list()
                case ListTags():
                    return self._list_tags()
                case Last() if self.hub.sequencer is not None:
                    return Newest(self.hub.sequencer.epoch, self.hub.sequencer.newest)
                case Ids(on=on) if self.hub.sequencer is not None:
                    self.protocol.ids(on)
                    self.hub.broker.reshape(self.outbox, self.protocol.form, self.subscriptions)
                    return Done()
                case Last() | Ids():
                    return Failed(HistoryOff())
                case Who():
                    return Connections(self.hub.sessions.connected, self.hub.sessions.lifetime)
                case Echo(on=on):
                    self.outbox.echo = on
                    return Done()
                case Escape(on=on):
                    self.protocol.escape(on)
                    self.hub.broker.reshape(self.outbox, self.protocol.form, self.subscriptions)
                    return Done()
                case ShowTags(token=token) if self._may_administer:
                    return Tags(self.hub.registry.tags(token))
                case ShowAttributes(token=token) if self._may_administer:
                    return TokenAttributes(self.hub.registry.attributes(token))
                case Invalid(error=error):
                    return Failed(error)
                case _:
                    return Failed(NotAllowed())
        except CommandError as error:
            return Failed(error)

    def _answer(self, command: Command, reply: Reply) -> None:
        self.outbox.reply(self.protocol.reply(command, reply))

    def _publish(self, command: Publish) -> None:
        def answer(error: MistError) -> None:
            self._answer(command, Failed(error))

        if isinstance(command, Store):
            answer(HistoryOff())
        elif self.may_publish(command.batch):
            self.hub.broker.publish(self.enveloped(command.batch), self.outbox, answer)
        else:
            answer(NotGranted())

    async def _store(self, publisher: Publisher, command: Publish) -> None:
        """Publish by way of the history."""
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

    async def _resume(self, command: Resume) -> None:
        try:
            if command.since is None:
                self.subscribe_all(command.alternatives)
                self._answer(command, Done())
                return
            await self.resume(
                command.alternatives,
                command.since,
                lambda answer: self._answer(command, answer),
                lambda: self._answer(command, CaughtUp()),
                counted=command.counted,
            )
        except CommandError as error:
            if self.ended is None:
                self._answer(command, Failed(error))

    async def _fetch(self, command: Fetch) -> None:
        try:
            await self.fetch(
                command.tags,
                command.since,
                command.most,
                lambda answer: self._answer(command, answer),
            )
            self._answer(command, CaughtUp())
        except CommandError as error:
            if self.ended is None:
                self._answer(command, Failed(error))

    def _list(self) -> Reply:
        # Looked at before it is built: a list that can't be queued shouldn't be built either.
        size = self.subscriptions.list_bytes + 3 * len(self.subscriptions)
        if not self.outbox.has_room_for_reply(size):
            self.end(CloseReason(4008, "outbox can't take a reply"))
            return Subscriptions(())
        return Subscriptions([group.tag_list for group in self.subscriptions])

    def _list_tags(self) -> Reply:
        tags = self.hub.broker.tags()
        if not self.outbox.has_room_for_reply(sum(map(len, tags)) + 3 * len(tags)):
            self.end(CloseReason(4008, "outbox can't take a reply"))
            return Tags(frozenset())
        return Tags(tags)

    # authentication and the registry

    async def _authenticate(self, command: Auth) -> None:
        secret_will_do = self._credential is not Credential.TOKEN and self._is_service(command)
        if self._credential is not Credential.SECRET and not secret_will_do:
            # Lookup and adoption without an await between: a revocation comes before both or
            # finds the session attached.
            record = self.hub.registry.lookup(command.credential)
            if record is not None and record.tags:
                self.adopt(record)
                self._answer(command, Done())
                return
        elif secret_will_do:
            self.welcome()
            self._answer(command, Done())
            return
        await self._refuse(command)

    def _is_service(self, command: Auth) -> bool:
        """Whether an `auth` presents the secret, or there is none that it would have to."""
        if not self.hub.needs_secret:
            return self._credential is Credential.SECRET or not command.credential
        return self.hub.is_secret(command.credential)

    async def _refuse(self, command: Command) -> None:
        """Answer an unauthenticated peer's wrong word, slowly, and end the session."""
        self.hub.note_failed_auth(self.transport, self._credential.value)
        self.hub.broker.flush()
        await trio.sleep(self.hub.hub_limits.failed_auth_delay)
        self._answer(command, Failed(Unauthorized()))
        self.end(CloseReason(4401, "unauthorized"))

    async def _change_registry(self, changes: list[_RegistryChange]) -> None:
        self.hub.broker.flush()  # deliveries shall not wait for the registry's disk
        try:
            outcomes = await self.hub.registry.execute(changes)
        except RegistryUnavailable as error:
            for command in changes:
                self._answer(command, Failed(error))
            return
        for command, outcome in zip(changes, outcomes, strict=True):
            reply = Failed(outcome) if isinstance(outcome, MistError) else Done()
            self._answer(command, reply)
