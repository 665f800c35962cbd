"""One connected peer: its grant, its outbox, its subscriptions.

A transport writes what the session's outbox holds. The session knows neither the socket nor
the dialect: the same class serves a service on TCP, a browser on a WebSocket and an event
stream over HTTP. Peers that send commands have a `mist.sessions.dispatch.CommandSession`, which is
a session and handles them.

A session ends once, for one reason (`end`): deliveries stop at that moment, the transport's
scope is cancelled, and the transport says goodbye in its own way. Whoever runs the session
calls `aclose` last.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.auth import Record
from mist.broker.attribute_index import for_site
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.commands import Since
from mist.errors import (
    ClientTaken,
    CommandError,
    HistoryOff,
    HistoryUnavailable,
    InvalidAudience,
    NotGranted,
    TooManySubscriptions,
)
from mist.message import Envelope, TagSet, parse_tag_list
from mist.replies import Fetched, Resumed, Revoked
from mist.sessions.close_reason import DISCONNECTED, HISTORY_LOST, CloseReason
from mist.sessions.hub import Hub
from mist.sessions.recovery import Recovery
from mist.sessions.subscriptions import SubscriptionSet
from mist.wire import Batch, WireForm

__all__ = ["Session"]

_CLEANUP_SLICE: Final = 500  # subscriptions removed between two checkpoints, some 5 ms
_PUBLISHABLE: Final = 1_000  # tag lists remembered, with whether they may be published


def _nothing() -> None:
    pass


class Session:
    """See the module.

    Args:
        hub: what all sessions share.
        form: how deliveries to this peer are written.
        notify: the wire form of what nobody asked for, empty where there is none: a
            subscription that was revoked, a gap in what is being replayed.
        transport: the listener's kind, for logs and counts: `tcp`, `ws`.
        peer: the peer's address, for logs.
        auth_timeout: seconds within which the peer has to authenticate; None where it needs not.
            Until then it is an unauthenticated peer.
        counted: whether a subscription made twice has to be undone twice.

    Attributes:
        record: the token's registry record; None for services, which may do everything.
        ended: None while the session lives.
        scope: cancelled when the session ends; the transport reads inside it. Where it is
            cancelled by its own deadline, an unauthenticated peer took too long.
    """

    __slots__ = (
        "_client",
        "_lane_bytes",
        "_named",
        "_notify",
        "_publishable",
        "_wanted_client",
        "ended",
        "hub",
        "name",
        "outbox",
        "peer",
        "record",
        "recovery",
        "scope",
        "subscriptions",
        "transport",
        "unauthenticated",
    )

    def __init__(
        self,
        hub: Hub,
        form: WireForm,
        notify: Callable[[Revoked | Resumed], bytes],
        *,
        transport: str,
        peer: str = "",
        auth_timeout: float | None = None,
        counted: bool = False,
    ) -> None:
        self.hub = hub
        self.transport = transport
        self.peer = peer
        self.name = hub.sessions.new_name(transport)
        self.unauthenticated = auth_timeout is not None
        self.record: Record | None = None
        self.ended: CloseReason | None = None
        self.scope = trio.CancelScope()
        self._notify = notify
        self._named: dict[bytes, NamedSubscription] = {}
        self._lane_bytes = 0  # of their names and tag lists
        self._client: tuple[str, str] | None = None  # the id, and who claimed it
        self._wanted_client = ""  # until the token is known
        self._publishable: dict[bytes, bool] = {}  # tag lists that the token was asked about
        if auth_timeout is not None:
            self.scope.deadline = trio.current_time() + auth_timeout
            hub.sessions.add_pending(self)
        self.outbox = Outbox(
            form,
            hub.outbox_limits,
            hub.broker.ready,
            on_dropping=lambda outbox: hub.note_dropping(self.name, outbox),
            on_overrun=lambda reason: self.end(CloseReason(4008, reason)),
        )
        self.subscriptions = SubscriptionSet(
            hub.broker, self.outbox, hub.hub_limits.subscription_bytes, counted=counted
        )
        self.recovery: Recovery | None = None
        if hub.sequencer is not None:
            self.recovery = Recovery(
                hub.sequencer,
                self.outbox,
                self.subscriptions,
                lambda gap: self.outbox.reply(self._notify(gap)),
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.peer}>"

    # life

    def adopt(self, record: Record) -> None:
        """Give the session a token's grant, in the place of any other. Without an await."""
        self.hub.sessions.detach_token(self)
        self.record = record
        self._publishable.clear()
        self.hub.broker.assign(self.outbox, record.id, self.subscriptions)
        self._describe()
        self._keep_client()
        self.mark_authenticated()
        self.hub.sessions.attach(self)
        self._recheck()

    def mark_authenticated(self) -> None:
        """The peer has authenticated: it is pending no more. Idempotent."""
        if self.unauthenticated:
            self.unauthenticated = False
            self.scope.deadline = math.inf
            self.hub.sessions.remove_pending(self)

    def end(self, reason: CloseReason) -> None:
        """End the session: no delivery after this. Idempotent; the first reason stays."""
        if self.ended is None:
            self.ended = reason
            self.hub.sessions.close_codes[reason.code] += 1
            self.outbox.mute()
            self.scope.cancel()

    async def aclose(self) -> None:
        """Leave the hub and all groups. Finishes even where it is cancelled.

        A million subscriptions take seconds to remove, so others run in between; where the
        whole server ends, they are left to end with it.
        """
        self.end(DISCONNECTED)
        self.outbox.close()
        if self._client is not None:
            self.hub.clients.release(*self._client)
            self._client = None
        with trio.CancelScope(shield=True):
            while self._named and not self.hub.ending:
                for named in list(itertools.islice(self._named.values(), _CLEANUP_SLICE)):
                    self._end_lane(named)
                await trio.lowlevel.checkpoint()
            self.hub.broker.describe(self.outbox, NO_ATTRIBUTES, ())
            while self.subscriptions and not self.hub.ending:
                for group in list(itertools.islice(self.subscriptions, _CLEANUP_SLICE)):
                    self.subscriptions.drop(group)
                await trio.lowlevel.checkpoint()
        self.hub.sessions.remove_pending(self)
        self.hub.sessions.detach(self)
        self.outbox.release()
        self.recovery = None  # it knows this session, too

    def token_changed(self, record: Record | None) -> None:
        """The registry has changed this session's token; None where it is gone."""
        if record is None or not record.tags:
            self.end(CloseReason(4401, "token revoked"))
            return
        self.record = record
        self._publishable.clear()
        self._describe()
        self._recheck()

    def _recheck(self) -> None:
        """End subscriptions that the grant doesn't allow any more, and say so."""
        for named in list(self._named.values()):
            tags = self._tags_of(named)
            if not self.is_granted(tags):
                self._end_lane(named)
                self.outbox.reply(self._notify(Revoked(tags, named.name)))
        for group in list(self.subscriptions):
            tags = group.tags
            if not self.is_granted(tags):
                self.subscriptions.drop(group)
                self.outbox.reply(self._notify(Revoked(tags)))

    # who it is

    @property
    def attributes(self) -> Attributes:
        """What an audience chooses by: the token's, with the client id that was chosen."""
        return self.outbox.attributes

    def be_client(self, client: str) -> None:
        """Take a client id, in the place of any other.

        An unauthenticated peer has it from the moment that its token is known, or its session ends
        then.

        Raises:
            ClientTaken: it is another token's.
            InvalidAudience: it can't be one.
        """
        if self.unauthenticated:
            self._wanted_client = Attributes(client=client).client
            return
        owner = "" if self.record is None else self.record.id
        self.hub.clients.claim(client, owner)
        if self._client is not None:
            self.hub.clients.release(*self._client)
        self._client = client, owner
        self._describe()

    def _keep_client(self) -> None:
        """Have a client id be the token's that the session has now."""
        wanted = self._wanted_client or (self._client[0] if self._client else "")
        self._wanted_client = ""
        if self._client is not None:
            self.hub.clients.release(*self._client)
            self._client = None
        if wanted and self.record is not None:
            try:
                self.hub.clients.claim(wanted, self.record.id)
            except ClientTaken:
                self.end(CloseReason(4409, "client id is taken"))
                return
            self._client = wanted, self.record.id
            self._describe()

    def _describe(self) -> None:
        attributes = NO_ATTRIBUTES if self.record is None else self.record.attributes
        if self._client is not None:
            # A token that is at the bound of what attributes may be has none for a client.
            with suppress(InvalidAudience):
                attributes = attrs.evolve(attributes, client=self._client[0])
        named_subscriptions = list(self._named.values())
        self.hub.broker.describe(self.outbox, attributes, self.subscriptions, named_subscriptions)

    # publishing

    def may_publish(self, batch: Batch) -> bool:
        """Whether this session may publish with all of a batch's tag lists.

        What can't be a tag list may be published: it is refused for that, further on.
        """
        record = self.record
        if record is None:
            return True
        known = self._publishable
        for tag_list in set(batch.tag_lists):
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
            if not verdict:
                return False
        return True

    def enveloped(self, batch: Batch) -> Batch:
        """A batch as this session publishes it: for its own site, where it is bound to one."""
        site = self.outbox.attributes.site
        if site:
            envelope = batch.envelope or Envelope()
            batch.envelope = attrs.evolve(envelope, audience=for_site(envelope.audience, site))
        return batch

    # subscriptions

    def is_granted(self, tags: TagSet) -> bool:
        """Whether this session may subscribe to a tag set."""
        if self.record is None:
            return True
        return self.record.grant.permits(tags, strict=self.hub.hub_limits.strict_grants)

    @property
    def _most(self) -> int:
        limits = self.hub.hub_limits
        return limits.subscriptions if self.record is None else limits.token_subscriptions

    def subscribe(self, tags: TagSet) -> None:
        """Receive what carries all of `tags`, from now on.

        Raises:
            NotGranted, TooManySubscriptions: nothing has changed.
        """
        if not self.is_granted(tags):
            raise NotGranted
        self.subscriptions.add(tags, self._most)

    def subscribe_named(self, tags: TagSet, name: bytes, form: WireForm, queue: str) -> None:
        """As `subscribe`, by a name and besides all others; see `mist.commands.SubscribeNamed`.

        Raises:
            NotGranted, TooManySubscriptions: nothing has changed.
        """
        if not self.is_granted(tags):
            raise NotGranted
        if name in self._named:
            return
        size = self.subscriptions.list_bytes + self._lane_bytes
        if (
            len(self.subscriptions) + len(self._named) >= self._most
            or size >= self.hub.hub_limits.subscription_bytes
        ):
            raise TooManySubscriptions
        named = NamedSubscription(self.outbox, form, name)
        self._named[name] = named
        self.hub.broker.add_named(named, tags, queue)
        self._lane_bytes += _size(named)

    def unsubscribe_named(self, name: bytes, most: int | None) -> None:
        """Undo that now, or after so many messages. Nothing happens where there is no such one."""
        named = self._named.get(name)
        if named is None:
            return
        if most is None or named.taken >= most:
            self._end_lane(named)
        else:
            named.end_after(most, lambda: self._end_lane(named))

    def named(self) -> Iterator[tuple[bytes, TagSet]]:
        """Subscriptions with names of their own, in the order made."""
        return ((name, self._tags_of(named)) for name, named in self._named.items())

    def _tags_of(self, named: NamedSubscription) -> TagSet:
        assert named.group is not None
        return named.group.tags

    def _end_lane(self, named: NamedSubscription) -> None:
        if self._named.pop(named.name, None) is not None:
            self._lane_bytes -= _size(named)
            self.hub.broker.remove_named(named)

    def subscribe_all(self, tag_sets: Sequence[TagSet]) -> list[TagSet]:
        """Subscribe to all of these or to none, from now on.

        Returns:
            Those that there is something to undo of.

        Raises:
            NotGranted, TooManySubscriptions: nothing has changed.
        """
        if not all(map(self.is_granted, tag_sets)):
            raise NotGranted
        return self.subscriptions.add_all(tag_sets, self._most)

    async def resume(
        self,
        tag_sets: Sequence[TagSet],
        since: Since,
        answer: Callable[[Resumed], None],
        caught_up: Callable[[], None] = _nothing,
        *,
        counted: bool = False,
    ) -> None:
        """Subscribe to all of these or to none: first what was, then what comes.

        Returns when it is live. From then on the session is moved back to the history when it
        falls behind: whoever asks for what was would rather be late than miss something.

        Args:
            answer: called before the first message.
            caught_up: called behind all that was, before what is live.
            counted: whether the answer is to say how many come from the history.

        Raises:
            NotGranted, TooManySubscriptions, HistoryOff, HistoryUnavailable: nothing has
                changed; or, where the history was lost on the way, the session has ended.
        """
        if self.recovery is None:
            raise HistoryOff
        made: list[TagSet] = []

        def subscribe() -> Sequence[TagSet]:
            made.extend(self.subscribe_all(tag_sets))
            return tag_sets

        def tell(resumed: Resumed) -> None:
            self.hub.recoveries["recovered" if resumed.recovered else "lost"] += 1
            answer(resumed)

        try:
            await self.recovery.resume(since, subscribe, tell, caught_up, counted=counted)
        except HistoryUnavailable:
            self.hub.recoveries["failed"] += 1
            if self.outbox.muted:
                self.end(HISTORY_LOST)
            else:
                self.subscriptions.remove_all(made)
            raise
        self.outbox.on_behind = self._fell_behind

    async def fetch(
        self, tags: TagSet, since: Since, most: int | None, answer: Callable[[Fetched], None]
    ) -> None:
        """Bring what was, without subscribing; see `mist.commands.Fetch`.

        Raises:
            NotGranted, HistoryOff, HistoryUnavailable: nothing more is brought.
        """
        if self.recovery is None:
            raise HistoryOff
        if not self.is_granted(tags):
            raise NotGranted
        await self.recovery.fetch(since, most, tags, lambda: self.is_granted(tags), answer)

    def _fell_behind(self, after: int) -> None:
        recovery = self.recovery
        assert recovery is not None
        assert self.hub.sequencer is not None

        async def catch_up() -> None:
            try:
                await recovery.catch_up(after)
            except HistoryUnavailable:
                self.end(HISTORY_LOST)

        self.hub.sequencer.start_soon(catch_up)


def _size(named: NamedSubscription) -> int:
    assert named.group is not None
    return len(named.name) + len(named.group.tag_list)
