"""Command dispatch: each command that a peer sends is handled, and answered once.

It knows neither the socket nor the dialect: the same class serves a service on TCP and a browser on
a WebSocket. They differ in two things only: what authenticates the peer (`credential`), and how the
protocol counts a repeated subscription.

One `match` handles every command, and states which right each needs. Which commands are to be
handled, and when, `receiving` says.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, assert_never

from mist.broker.named_subscriptions import NamedSubscription
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
    ListTokens,
    Pause,
    Ping,
    Publish,
    PublishOnce,
    Refused,
    Register,
    RegistryChange,
    RemoveTags,
    Resume,
    Revoke,
    RevokeIssued,
    SetAttributes,
    SetTerms,
    ShowAttributes,
    ShowTags,
    ShowToken,
    Subscribe,
    SubscribeNamed,
    Unregister,
    Unsubscribe,
    UnsubscribeNamed,
    UnwatchPresence,
    WatchPresence,
    Who,
)
from mist.engine.errors import EngineUnavailable, TooManyQuestions
from mist.errors import (
    CommandError,
    HistoryOff,
    NotAllowed,
    PresenceOff,
)
from mist.message import TagSet
from mist.protocols import Protocol
from mist.replies import (
    CaughtUp,
    Connections,
    Done,
    Failed,
    Newest,
    Reply,
    Tags,
    TokenAttributes,
    Tokens,
    TokenShown,
)
from mist.sessions.authenticating import AuthenticatingSession, Credential
from mist.sessions.close_reason import DISCONNECTED, CloseReason
from mist.sessions.hub import Hub
from mist.sessions.listing import Listing, list_subscriptions, list_tags
from mist.sessions.publishing_once import publish_once
from mist.sessions.token_list import token_of, token_page

__all__ = ["DispatchingSession"]

_NO_ROOM: Final = CloseReason(4008, "outbox can't take a reply")


class DispatchingSession(AuthenticatingSession):
    """See the module. Some changes are only noted here, and made by `receiving`.

    Args:
        hub: what all sessions share.
        protocol: the peer's dialect.
        credential: what `Auth` presents.
        transport, peer, auth_timeout: as for a `Session`.
    """

    __slots__ = ("_changes", "_leaving", "_queues_changed")

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
            protocol,
            transport=transport,
            peer=peer,
            credential=credential,
            auth_timeout=auth_timeout,
        )
        self._changes: list[RegistryChange] = []  # held back, in the order received
        self._queues_changed = False  # so that other nodes have to know
        self._leaving: list[NamedSubscription] = []  # queue groups, once they do

    async def dispatch(self, command: Command) -> None:
        """Handle one command and queue its reply.

        A change of the token registry is only held back here: `receive` has a run of them made
        at once, so that a script that registers a thousand tokens waits for the disk once.
        """
        try:
            if self.hub.subscription_callout is not None and not self.unauthenticated:
                await self.hub.subscription_callout.allow(self, _asked(command))
            reply = await self._handle(command)
        except CommandError as error:
            reply = None if self.ended is not None else Failed(error)
        if reply is not None:
            self._answer(command, reply)

    async def _handle(self, command: Command) -> Reply | None:
        """Handle a command: one `match` over all of them, grouped by the right that they need.

        Returns:
            The reply; None where it has been queued already, or will be.

        Raises:
            CommandError: the command was refused; it is the reply.
        """
        match command:
            # Right: none.
            case Ping():
                return Done()
            case Auth():
                return await self._authenticate(command)
            case Hangup(reason=reason, code=code):
                self._leave(CloseReason(code, reason))
            case Bye():
                self._leave(DISCONNECTED)
            case Pause():
                pass
            case _ if self.unauthenticated:
                await self._refuse(command)
            # Right: authenticated.
            case Publish():
                await self._publish(command)
            case PublishOnce():
                return await publish_once(self, command)
            case Subscribe(tags=tags):
                self.subscribe(tags)
                return Done()
            case Unsubscribe(tags=tags):
                self.subscriptions.remove(tags)
                return Done()
            case SubscribeNamed(tags=tags, name=name, form=form, queue=queue):
                self.subscribe_named(tags, name, form, queue)
                self._queues_changed |= bool(queue) and self.hub.nodes is not None
                return Done()
            case UnsubscribeNamed(name=name, most=most):
                self._unsubscribe_named(name, most)
                return Done()
            case Resume():
                return await self._resume(command)
            case Fetch():
                return await self._fetch(command)
            case Last():
                return await self._newest()
            case Ids(on=on):
                await self._send_ids(on)
                return Done()
            case Echo(on=on):
                self.outbox.echo = on
                return Done()
            case Escape(on=on):
                self.protocol.escape(on)
                await self._reshape()
                return Done()
            case ListSubscriptions():
                await self._list(
                    list_subscriptions(self.subscriptions, self.outbox, self.protocol, command)
                )
            case WatchPresence(tags=tags):
                if self.hub.presence is None:
                    raise PresenceOff
                return await self.hub.presence.watch(self, tags)
            case UnwatchPresence(tags=tags):
                if self.hub.presence is not None:
                    self.hub.presence.unwatch(self, tags)
                return Done()
            case Invalid(error=error):
                return Failed(error)
            case Refused(command=refused, error=error):
                self._answer(refused, Failed(error))
            # Right: not bound to a site, since what they tell is of all sites.
            case ListTags() | Who() if self.outbox.attributes.site:
                raise NotAllowed
            case ListTags():
                await self._list(await self._all_tags(command))
            case Who():
                return await self._count_sessions()
            # Right: administers the token registry.
            case _ if not self._administers:
                raise NotAllowed
            case (
                Register()
                | Unregister()
                | Revoke()
                | AddTags()
                | RemoveTags()
                | SetAttributes()
                | SetTerms()
                | RevokeIssued()
            ):
                self._changes.append(command)
            case ShowToken(token=token):
                await self._sync_registry()
                return TokenShown(token_of(self.hub.registry, token))
            case ListTokens(after=after):
                await self._sync_registry()
                return Tokens(token_page(self.hub.registry, after))
            case ShowTags(token=token):
                await self._sync_registry()
                return Tags(self.hub.registry.tags(token))
            case ShowAttributes(token=token):
                await self._sync_registry()
                return TokenAttributes(self.hub.registry.attributes(token))
            case _:
                assert_never(command)
        return None

    async def _sync_registry(self) -> None:
        """Have the registry know what other servers have changed."""
        self.hub.flush_scheduler.flush()  # nothing that was queued waits for its store
        await self.hub.registry.sync()

    def _unsubscribe_named(self, name: bytes, most: int | None) -> None:
        named = self.named_subscriptions.find(name)
        if most is None and named.queue is not None and self.hub.nodes is not None:
            self.hub.broker.withdraw(named)
            self._leaving.append(named)
            self._queues_changed = True
        else:
            self.named_subscriptions.remove(name, most)

    async def _resume(self, command: Resume) -> Reply | None:
        if command.since is None:
            self.subscribe_all(command.alternatives)
            return Done()
        self._check_contact()
        await self.resume(
            command.alternatives,
            command.since,
            lambda answer: self._answer(command, answer),
            lambda: self._answer(command, CaughtUp()),
            counted=command.counted,
        )
        return None

    async def _fetch(self, command: Fetch) -> Reply:
        self._check_contact()
        await self.fetch(
            command.tags,
            command.since,
            command.most,
            lambda answer: self._answer(command, answer),
        )
        return CaughtUp()

    def _check_contact(self) -> None:
        """Check that a token which replays is not one that may have been revoked elsewhere.

        Raises:
            RegistryUnavailable: it may have been.
        """
        if self.record is not None:
            self.hub.registry.check_contact()

    async def _newest(self) -> Reply:
        sequencer = self.hub.sequencer
        if sequencer is None:
            raise HistoryOff
        newest = await sequencer.latest()
        return Newest(sequencer.epoch, newest)

    async def _send_ids(self, on: bool) -> None:
        if self.hub.sequencer is None:
            raise HistoryOff
        self.protocol.ids(on)
        await self._reshape()

    async def _reshape(self) -> None:
        """Have deliveries come in the form that the protocol has now.

        Until this returns, they come in either.
        """

        def steps() -> Iterator[None]:
            for groups in self.subscriptions.slices():
                self.hub.broker.reshape(self.outbox, self.protocol.form, groups)
                yield

        self.outbox.form = self.protocol.form
        await self.hub.flush_scheduler.work(steps(), self.account, late=not self.live)

    async def _count_sessions(self) -> Connections:
        if self.hub.nodes is not None:
            return Connections(*await self.hub.nodes.count_sessions())
        return Connections(self.hub.sessions.connected, self.hub.sessions.lifetime)

    async def _all_tags(self, command: ListTags) -> Listing:
        """Every tag that anyone is subscribed to: at all nodes, where there are several.

        Of this one alone where the engine doesn't answer.
        """
        others = None
        if self.hub.nodes is not None:
            with suppress(EngineUnavailable, TooManyQuestions):
                others = await self.hub.nodes.tags.others()
        return list_tags(self.hub.broker, self.outbox, self.protocol, command, others)

    async def _list(self, listing: Listing) -> None:
        """Queue a list as the reply; where it doesn't fit, the session ends."""

        def steps() -> Iterator[None]:
            wire = yield from listing
            if wire is None:
                self.end(_NO_ROOM)
            else:
                self.outbox.reply(wire)

        await self.hub.flush_scheduler.work(steps(), self.account, late=not self.live)


def _asked(command: Command) -> Sequence[TagSet]:
    """The tag sets that a command wants to subscribe to, or to be replayed."""
    match command:
        case Subscribe(tags=tags) | SubscribeNamed(tags=tags) | Fetch(tags=tags):
            return [tags]
        case Resume(alternatives=alternatives):
            return alternatives
        case _:
            return ()
