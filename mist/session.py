"""One connected peer: its protocol, its grant, its outbox, its subscriptions.

A transport feeds a session what it reads (`receive`) and writes what the session's outbox
holds. A session carries commands out in the order they came and answers each once. It knows
neither the socket nor the dialect: the same class serves a service on TCP and a browser on a
WebSocket, told apart by two things only: what authenticates it (`credential`), and how its
protocol counts a repeated subscription.

A session ends once, for one reason (`end`): deliveries stop at that moment, the transport's
scope is cancelled, and the transport says goodbye in its own way. Whoever runs the session
calls `aclose` last.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

import attrs
import trio

from mist.auth import Record
from mist.commands import (
    AddTags,
    Auth,
    Bye,
    Command,
    Connections,
    Done,
    Echo,
    Escape,
    Failed,
    Hangup,
    Ids,
    Invalid,
    Last,
    ListSubscriptions,
    ListTags,
    Newest,
    Ping,
    Publish,
    Register,
    RemoveTags,
    Reply,
    Resume,
    Revoked,
    ShowTags,
    Store,
    Stored,
    Subscribe,
    Subscriptions,
    Tags,
    Unregister,
    Unsubscribe,
    Who,
)
from mist.errors import (
    CommandError,
    HistoryOff,
    HistoryUnavailable,
    MistError,
    NotAllowed,
    NotGranted,
    RegistryUnavailable,
    Unauthorized,
)
from mist.message import TagSet
from mist.outbox import Outbox
from mist.protocols import Protocol
from mist.reading import Reading
from mist.sequencer import Publisher
from mist.subscriptions import SubscriptionSet

if TYPE_CHECKING:
    from mist.hub import Hub

__all__ = ["GONE", "Credential", "Ending", "Session"]

_CLEANUP_SLICE: Final = 500  # subscriptions removed between two checkpoints, some 5 ms
_COMMAND_SLICE: Final = 200  # commands that aren't publishes, likewise

_RegistryChange = Register | Unregister | AddTags | RemoveTags


class Credential(Enum):
    """What an `Auth` command of a session presents."""

    SECRET = "secret"  # a kind, not a secret
    TOKEN = "token"


@attrs.frozen
class Ending:
    """Why a session ended.

    Attributes:
        code: a WebSocket close code (RFC 6455, 7.4; 4400 to 4499 are ours, read like HTTP's).
        reason: for the log and the close frame; no token, no peer's text.
        grace: seconds that the peer has to take what is queued for it.
    """

    code: int
    reason: str
    grace: float = 1.0


GONE: Final = Ending(1006, "peer gone", grace=10.0)
"""The peer closed its side, or the connection broke. It may still be reading: `nc` is, after
the end of its input."""


_HISTORY_LOST: Final = Ending(1011, "history is unavailable")


class Session:
    """See the module.

    Args:
        hub: what all sessions share.
        protocol: the peer's dialect.
        transport: the listener's kind, for logs and counts: `tcp`, `ws`.
        peer: the peer's address, for logs.
        credential: what `Auth` presents.
        patience: seconds within which the peer has to authenticate; None where it needs not.
            Until then it is a stranger: only `Ping` and `Auth` are carried out, and anything
            else ends the session.

    Attributes:
        record: the token's registry record; None for services, which may do everything.
        ended: None while the session lives.
        scope: cancelled when the session ends; the transport reads inside it. Where it is
            cancelled by its own deadline, a stranger took too long.
    """

    __slots__ = (
        "_credential",
        "_publisher",
        "_reading",
        "ended",
        "hub",
        "name",
        "outbox",
        "peer",
        "protocol",
        "record",
        "scope",
        "stranger",
        "subscriptions",
        "transport",
    )

    def __init__(
        self,
        hub: "Hub",
        protocol: Protocol,
        *,
        transport: str,
        peer: str = "",
        credential: Credential = Credential.SECRET,
        patience: float | None = None,
    ) -> None:
        self.hub = hub
        self.protocol = protocol
        self.transport = transport
        self.peer = peer
        self.name = hub.name_session(transport)
        self.stranger = patience is not None
        self.record: Record | None = None
        self.ended: Ending | None = None
        self.scope = trio.CancelScope()
        if patience is not None:
            self.scope.deadline = trio.current_time() + patience
            hub.meet(self)
        self._credential = credential
        self.outbox = Outbox(
            protocol.form,
            hub.outbox_limits,
            hub.broker.ready,
            on_dropping=lambda outbox: hub.note_dropping(self.name, outbox),
            on_overrun=lambda reason: self.end(Ending(4008, reason)),
        )
        self.subscriptions = SubscriptionSet(
            hub.broker,
            self.outbox,
            hub.hub_limits.subscription_bytes,
            counted=protocol.counts_subscriptions,
        )
        self._publisher: Publisher | None = None
        self._reading: Reading | None = None
        if hub.sequencer is not None:
            self._publisher = Publisher(hub.sequencer, self.outbox)
            self._reading = Reading(
                hub.sequencer,
                self.outbox,
                self.subscriptions,
                lambda gap: self.outbox.reply(self.protocol.notice(gap)),
            )

    def __repr__(self) -> str:
        return f"<Session {self.name} {self.peer}>"

    # life

    def adopt(self, record: Record) -> None:
        """Give the session a token's grant, in the place of any other. Without an await."""
        self.hub.forget_token(self)
        self.record = record
        self._known()
        self.hub.attach(self)
        self._recheck()

    def _known(self) -> None:
        if self.stranger:
            self.stranger = False
            self.scope.deadline = math.inf
            self.protocol.authenticated()
            self.hub.introduce(self)

    def turn_away(self) -> None:
        """End a stranger's session to make room for others."""
        self.hub.introduce(self)
        self.end(Ending(4429, "too many unauthenticated connections"))

    def end(self, ending: Ending) -> None:
        """End the session: no delivery after this. Idempotent; the first reason stays."""
        if self.ended is None:
            self.ended = ending
            self.outbox.mute()
            self.scope.cancel()

    async def aclose(self) -> None:
        """Leave the hub and all groups. Finishes even where it is cancelled.

        A million subscriptions take seconds to remove, so others run in between; where the
        whole server ends, they are left to end with it.
        """
        self.end(GONE)
        self.outbox.close()
        with trio.CancelScope(shield=True):
            while self.subscriptions and not self.hub.ending:
                for group in list(itertools.islice(self.subscriptions, _CLEANUP_SLICE)):
                    self.subscriptions.drop(group)
                await trio.lowlevel.checkpoint()
        self.hub.introduce(self)
        self.hub.detach(self)
        self.outbox.release()
        self._reading = None  # it knows this session, too

    def token_changed(self, record: Record | None) -> None:
        """The registry has changed this session's token; None where it is gone."""
        if record is None or not record.tags:
            self.end(Ending(4401, "token revoked"))
            return
        self.record = record
        self._recheck()

    def _recheck(self) -> None:
        """End subscriptions that the grant doesn't allow any more, and say so."""
        for group in list(self.subscriptions):
            tags = group.tags
            if not self._granted(tags):
                self.subscriptions.drop(group)
                self.outbox.reply(self.protocol.notice(Revoked(tags)))

    # commands

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
        try:
            for command in self.protocol.receive(data):
                if isinstance(command, Publish) and not self.stranger and not changes:
                    # Nearly always, and all that there is.
                    if publisher is None:
                        self._publish(command)
                    else:
                        await self._store(publisher, command)
                    continue
                if publisher is not None and publisher.underway:
                    await publisher.settle()
                if isinstance(command, _RegistryChange) and self._may_administer:
                    # Held back until something else comes, so that a script that registers
                    # a thousand tokens waits for the disk once, not a thousand times.
                    changes.append(command)
                    continue
                if changes:
                    await self._change_registry(changes)
                    changes = []
                await self.carry_out(command)
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
            rested = await self.hub.pacer.pause(self.name)
        return rested

    @property
    def _may_administer(self) -> bool:
        return self._credential is Credential.SECRET and not self.stranger

    async def carry_out(self, command: Command) -> None:
        """Carry out one command and queue its reply."""
        if isinstance(command, Publish) and not self.stranger:
            if self._publisher is None:
                self._publish(command)
            else:
                await self._store(self._publisher, command)
        elif isinstance(command, Hangup):
            self.end(Ending(command.code, command.reason))
        elif isinstance(command, Bye):
            self.end(GONE)
        elif isinstance(command, Auth):
            await self._authenticate(command)
        elif self.stranger and not isinstance(command, Ping):
            await self._refuse(command)
        elif isinstance(command, Resume):
            await self._resume(command)
        else:
            self._answer(command, self._execute(command))

    def _execute(self, command: Command) -> Reply:
        try:
            match command:
                case Ping():
                    return Done()
                case Subscribe(tags=tags):
                    self._subscribe(tags)
                    return Done()
                case Unsubscribe(tags=tags):
                    self.subscriptions.remove(tags)
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
                    return Connections(self.hub.connected, self.hub.lifetime)
                case Echo(on=on):
                    self.outbox.echo = on
                    return Done()
                case Escape(on=on):
                    self.protocol.escape(on)
                    self.hub.broker.reshape(self.outbox, self.protocol.form, self.subscriptions)
                    return Done()
                case ShowTags(token=token) if self._may_administer:
                    return Tags(self.hub.registry.tags(token))
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
        else:
            self.hub.broker.publish(command.batch, self.outbox, answer)

    async def _store(self, publisher: Publisher, command: Publish) -> None:
        """Publish by way of the history."""

        def answer(error: MistError) -> None:
            self._answer(command, Failed(error))

        def confirm(first: int) -> None:
            self._answer(command, Stored(first))

        name = "" if self.record is None else self.record.id
        confirmed = confirm if isinstance(command, Store) else None
        await publisher.publish(command.batch, name, answer, confirmed)

    # subscriptions

    def _granted(self, tags: TagSet) -> bool:
        if self.record is None:
            return True
        return self.record.grant.permits(tags, strict=self.hub.hub_limits.strict_grants)

    @property
    def _most(self) -> int:
        limits = self.hub.hub_limits
        return limits.subscriptions if self.record is None else limits.token_subscriptions

    def _subscribe(self, tags: TagSet) -> None:
        if not self._granted(tags):
            raise NotGranted
        self.subscriptions.add(tags, self._most)

    def _subscribe_all(self, tag_sets: Sequence[TagSet]) -> list[TagSet]:
        """Subscribe to all or none; those that there is something to undo of."""
        if not all(map(self._granted, tag_sets)):
            raise NotGranted
        return self.subscriptions.add_all(tag_sets, self._most)

    async def _resume(self, command: Resume) -> None:
        reading, since = self._reading, command.since
        made: list[TagSet] = []

        def subscribe() -> Iterable[TagSet]:
            made.extend(self._subscribe_all(command.alternatives))
            return command.alternatives

        try:
            if since is None:
                self._subscribe_all(command.alternatives)
                self._answer(command, Done())
                return
            if reading is None:
                raise HistoryOff
            await reading.resume(
                since,
                subscribe,
                lambda answer: self._answer(command, answer),
            )
        except HistoryUnavailable as error:
            if self.outbox.muted:
                self.end(_HISTORY_LOST)
                return
            self.subscriptions.remove_all(made)
            self._answer(command, Failed(error))
        except CommandError as error:
            self._answer(command, Failed(error))
        else:
            # Whoever asks for what was would rather be late than miss something.
            self.outbox.on_behind = self._fell_behind

    def _fell_behind(self, after: int) -> None:
        reading = self._reading
        assert reading is not None
        assert self.hub.sequencer is not None

        async def catch_up() -> None:
            try:
                await reading.catch_up(after)
            except HistoryUnavailable:
                self.end(_HISTORY_LOST)

        self.hub.sequencer.start_soon(catch_up)

    def _list(self) -> Reply:
        # Looked at before it is built: a list that can't be queued shouldn't be built either.
        size = self.subscriptions.list_bytes + 3 * len(self.subscriptions)
        if not self.outbox.has_room_for_reply(size):
            self.end(Ending(4008, "outbox can't take a reply"))
            return Subscriptions(())
        return Subscriptions([group.tag_list for group in self.subscriptions])

    def _list_tags(self) -> Reply:
        tags = self.hub.broker.tags()
        if not self.outbox.has_room_for_reply(sum(map(len, tags)) + 3 * len(tags)):
            self.end(Ending(4008, "outbox can't take a reply"))
            return Tags(frozenset())
        return Tags(tags)

    # authentication and the registry

    async def _authenticate(self, command: Auth) -> None:
        if self._credential is Credential.TOKEN:
            # Lookup and adoption without an await between: a revocation comes before both or
            # finds the session attached.
            record = self.hub.registry.lookup(command.credential)
            if record is not None and record.tags:
                self.adopt(record)
                self._answer(command, Done())
                return
        elif not self.hub.needs_secret or self.hub.is_secret(command.credential):
            self._known()
            self._answer(command, Done())
            return
        await self._refuse(command)

    async def _refuse(self, command: Command) -> None:
        """Answer a stranger's wrong word, slowly, and end the session."""
        self.hub.failed_auths[self.transport] += 1
        self.hub.broker.flush()
        await trio.sleep(self.hub.hub_limits.failed_auth_delay)
        self._answer(command, Failed(Unauthorized()))
        self.end(Ending(4401, "unauthorized"))

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
