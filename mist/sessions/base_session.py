"""One connected peer: its grant, its outbox, what it is subscribed to; how its session ends.

A transport writes what the session's outbox holds. The session knows neither the socket nor
the dialect: the same class serves a service on TCP, a browser on a WebSocket and an event
stream over HTTP. What it may do with its subscriptions is in `mist.sessions.session`.

A session ends once, for one reason (`end`): deliveries stop at that moment, the transport's
scope is cancelled, and the transport closes the connection in its own way. The task that runs
the session calls `aclose` last.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import ClassVar, Final, TypeVar

import attrs
import trio

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.auth import Record
from mist.broker.groups import Group
from mist.broker.named_subscriptions import NamedSubscription
from mist.broker.outbox import Outbox
from mist.errors import ClientTaken, InvalidAudience
from mist.message import TagSet
from mist.replies import PresenceChanged, PresenceEnded, Present, Resumed, Revoked
from mist.sessions.client_ids import ClientClaim
from mist.sessions.close_reason import DISCONNECTED, TOKEN_EXPIRED, TOKEN_REVOKED, CloseReason
from mist.sessions.hub import Hub
from mist.sessions.recovery import Recovery
from mist.sessions.subscriptions import NamedSubscriptionSet, SubscriptionSet, named_tags
from mist.sessions.token_limits import SessionAllowance
from mist.turns import Account
from mist.wire import WireForm

__all__ = ["BaseSession", "Notice"]

Notice = Revoked | Resumed | Present | PresenceChanged | PresenceEnded
"""What a session tells its peer beside deliveries and answers."""

_T = TypeVar("_T")

_CLEANUP_STEP: Final = 10  # subscriptions removed without looking at the clock, some 0.1 ms


def _silent(notice: Notice) -> bytes:
    return b""


class BaseSession:
    """See the module.

    Args:
        hub: what all sessions share.
        form: how deliveries to this peer are written.
        notify: the wire form of a notice, empty where the dialect has none: that a
            subscription was revoked, that messages are missing from a replay, or of presence.
        transport: the listener's kind, for logs and counts: `tcp`, `ws`.
        peer: the peer's address, for logs.
        auth_timeout: seconds within which the peer has to authenticate; None where it needs not.
        counted: whether a subscription made twice has to be undone twice.

    Attributes:
        since: when the peer connected, Unix seconds.
        record: the token's registry record; None for services, which may do everything.
        allowed: tag sets that it may subscribe to though its grant doesn't say so; None for none.
        account: whom the event loop's time is charged to: the token, or the session itself.
        allowance: its part in the limits of its token; None where that has none.
        subscriptions, named_subscriptions: what it is subscribed to.
        live: whether the peer has authenticated, and is replayed nothing; else its turns come
            behind those of peers that are live.
        recovery: its replay from the history; None where there is no history.
        unauthenticated: whether the peer has yet to authenticate.
        outbox_type: of what its outbox is made.
        ended: why it ended; None while it lives.
        handling: whether it is at commands that its peer sent.
        scope: cancelled when the session ends; the transport reads inside it. Where it is
            cancelled by its own deadline, an unauthenticated peer took too long.
    """

    __slots__ = (
        "_client",
        "_notify",
        "account",
        "allowance",
        "allowed",
        "ended",
        "handling",
        "hub",
        "live",
        "name",
        "named_subscriptions",
        "outbox",
        "peer",
        "record",
        "recovery",
        "scope",
        "since",
        "subscriptions",
        "transport",
        "unauthenticated",
    )

    outbox_type: ClassVar[type[Outbox]] = Outbox

    def __init__(
        self,
        hub: Hub,
        form: WireForm,
        notify: Callable[[Notice], bytes],
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
        self.since = hub.now()
        self.unauthenticated = auth_timeout is not None
        self.record: Record | None = None
        self.allowed: set[TagSet] | None = None
        self.account = Account()
        self.allowance: SessionAllowance | None = None
        self.live = False
        self.ended: CloseReason | None = None
        self.handling = False
        self._notify = notify
        self._client = ClientClaim(hub.clients)
        if auth_timeout is None:
            self.scope = trio.CancelScope()
        else:
            self.scope = trio.CancelScope(deadline=trio.current_time() + auth_timeout)
            hub.sessions.add_pending(self)
        self.outbox = self.outbox_type(
            form,
            hub.outbox_limits,
            hub.broker.ready,
            on_dropping=lambda outbox: hub.note_dropping(self.name, outbox),
            on_overrun=lambda reason: self.end(CloseReason(4008, reason)),
            written=hub.written,
        )
        self.subscriptions = SubscriptionSet(
            hub.broker, self.outbox, hub.hub_limits.subscription_bytes, counted=counted
        )
        self.named_subscriptions = NamedSubscriptionSet(
            hub.broker, self.outbox, self.subscriptions.quota
        )
        self.recovery: Recovery | None = None
        if hub.sequencer is not None:
            self.recovery = Recovery(
                hub.sequencer,
                self.outbox,
                self.subscriptions,
                lambda gap: self.outbox.reply(self._notify(gap)),
                hub.turns,
                lambda: self.account,
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.peer}>"

    # life cycle

    def mark_authenticated(self) -> None:
        """The peer has authenticated: it is pending no more. Idempotent."""
        if self.unauthenticated:
            self.unauthenticated = False
            self.scope.deadline = math.inf
            self.hub.sessions.remove_pending(self)

    def end(self, reason: CloseReason) -> None:
        """End the session: no delivery after this. Idempotent; the first reason stays."""
        if self.ended is None:
            self._leave(reason)
            self.scope.cancel()

    def _leave(self, reason: CloseReason) -> None:
        """As `end`, without cancelling: for the session's own task, which then sees `ended`."""
        if self.ended is None:
            self.ended = reason
            self.hub.sessions.close_codes[reason.code] += 1
            self.outbox.mute()
            if self.hub.subscription_callout is not None:
                self.hub.subscription_callout.forget(self)
            if self.hub.presence is not None:
                self.hub.presence.drop(self)
            if self.hub.events is not None and self in self.hub.sessions:
                self.hub.events.disconnected(self)

    async def aclose(self) -> None:
        """Leave the hub and all groups. Finishes even where it is cancelled.

        A million subscriptions take seconds to remove, so others run in between; where the
        whole server ends, they are left to end with it.
        """
        self._leave(DISCONNECTED)
        self.outbox.discard()
        self.hub.broker.settle(self.outbox)
        self._client.release()
        if self.hub.turns.over:
            with trio.CancelScope(shield=True):
                await self.hub.turns.leave(self.account)
        named, subscriptions = self.named_subscriptions, self.subscriptions
        await self._drop_all(named.slices(), named.drop)
        if self.outbox.attributes is not NO_ATTRIBUTES:
            self.hub.broker.describe(self.outbox, NO_ATTRIBUTES, ())
        await self._drop_all(subscriptions.slices(), subscriptions.drop)
        self.hub.sessions.remove_pending(self)
        self.hub.sessions.detach(self)
        if self.record is not None and self.record.expires is not None:
            self.hub.expiry.remove(self)
        self.outbox.release()
        self.hub.broker.settle(self.outbox)
        # Both refer back to this session.
        self.recovery = None
        self._notify = _silent

    async def _drop_all(self, slices: Iterable[Sequence[_T]], drop: Callable[[_T], object]) -> None:
        turns = self.hub.turns
        for some in slices:
            for number, each in enumerate(some):
                if self.hub.ending:
                    return
                drop(each)
                if not number % _CLEANUP_STEP and turns.over:
                    with trio.CancelScope(shield=True):
                        await turns.wait(self.account, late=True)

    def tell_presence(self, told: Present | PresenceChanged | PresenceEnded) -> None:
        """Queue a notice of presence."""
        self.outbox.reply(self._notify(told))

    # the token

    def adopt(self, record: Record, *, narrowed: bool = False) -> None:
        """Give the session a token's grant, in place of any other. Without an await.

        Args:
            narrowed: whether what the token doesn't allow has ended before, see `narrow`.
        """
        presence = self.hub.presence
        if presence is not None:
            presence.moving(self)
        self.hub.sessions.detach_token(self)
        if self.record is not None and self.record.id != record.id:
            if self.hub.subscription_callout is not None:
                self.hub.subscription_callout.forget(self)
            self.allowed = None
        self._take(record)
        self.account = self.hub.turns.account(record.id)
        quota = self.hub.sessions.quota(record.id)
        self.subscriptions.charge(quota)
        self.named_subscriptions.charge(quota)
        self.hub.broker.assign(self.outbox, record.id, self.subscriptions, self.named_subscriptions)
        self._reclaim_client_id(record)
        self._describe()
        self.mark_authenticated()
        if self.ended is None or self in self.hub.sessions:  # else nobody would be told of its end
            self.hub.sessions.attach(self)
        if not narrowed:
            for _ in self._narrowing(record):
                pass
        if presence is not None:
            presence.moved(self)

    def _take(self, record: Record) -> None:
        """Have a record from now on, with its expiry and its limits."""
        before, self.record = self.record, record
        if record.expires is not None or (before is not None and before.expires is not None):
            self.hub.expiry.set(self, record.expires)
        if record.attributes.others or self.allowance is not None:
            self.allowance = self.hub.token_limits.session(record, self.allowance)

    def token_changed(self, record: Record | None) -> Iterator[None]:
        """This session's token has changed; None where it is revoked.

        The session has the new one, or has ended, with the first step. The others end
        subscriptions that it doesn't allow any more; see `mist.sessions.token_changes`.
        """
        if record is None or not record.tags:
            self.outbox.withdraw()
            expired = self.record is not None and self.record.expired(self.hub.now())
            self.end(TOKEN_EXPIRED if expired else TOKEN_REVOKED)
            return
        if self.ended is not None:
            return  # nobody would take back what it is given
        self._take(record)
        self._describe()
        if self.hub.presence is not None:
            self.hub.presence.recheck(self)
        yield
        for _ in self._narrowing(record):
            if self.record is not record or self.ended is not None:
                return  # it has another by now, and was looked at for that one, or will be
            yield

    async def narrow(self, record: Record) -> None:
        """End subscriptions that a token doesn't allow and say so, in steps; `adopt` follows."""
        steps = self._narrowing(record)
        await self.hub.flush_scheduler.work(steps, self.account, late=not self.live)

    def _narrowing(self, record: Record) -> Iterator[None]:
        for some in self.named_subscriptions.slices():
            for named in some:
                if named.group is not None and not self._allows(record, named_tags(named)):
                    self._revoke_named(named)
                yield
        for groups in self.subscriptions.slices():
            for group in groups:
                if not self._allows(record, group.tags):
                    self._revoke(group)
                yield

    def revoke(self, tags: TagSet) -> None:
        """End subscriptions to exactly this tag set, unless they are granted, and say so."""
        group = self.hub.broker.find(tags)
        if group is None or self.is_granted(tags):
            return
        for named in self.named_subscriptions.of(group):
            self._revoke_named(named)
        self._revoke(group)

    def is_subscribed(self, tags: TagSet) -> bool:
        """Whether it is subscribed to exactly this tag set."""
        group = self.hub.broker.find(tags)
        if group is None:
            return False
        return tags in self.subscriptions or bool(self.named_subscriptions.of(group))

    def _revoke(self, group: Group) -> None:
        if self.subscriptions.drop(group):
            self.outbox.reply(self._notify(Revoked(group.tags)))

    def _revoke_named(self, named: NamedSubscription) -> None:
        tags = named_tags(named)
        self.named_subscriptions.drop(named)
        self.outbox.reply(self._notify(Revoked(tags, named.name)))

    def is_granted(self, tags: TagSet) -> bool:
        """Whether this session may subscribe to a tag set."""
        return self.record is None or self._allows(self.record, tags)

    def _allows(self, record: Record, tags: TagSet) -> bool:
        """Whether a token allows a tag set, or the answer about this session's token did."""
        if record.grant.permits(tags, strict=self.hub.hub_limits.strict_grants):
            return True
        own = self.record is not None and self.record.id == record.id
        return own and self.allowed is not None and tags in self.allowed

    # attributes and client id

    @property
    def attributes(self) -> Attributes:
        """What an audience chooses by: the token's, with the client id that was chosen."""
        return self.outbox.attributes

    def set_client_id(self, client: str) -> None:
        """Take a client id, in place of any other.

        An unauthenticated peer gets it once its token is known; where it is another token's,
        the session ends then.

        Raises:
            ClientTaken: it is another token's.
            InvalidAudience: it isn't valid.
        """
        if self.unauthenticated:
            self._client.want(client)
            return
        self._client.claim(client, "" if self.record is None else self.record.id)
        self._describe()

    def _reclaim_client_id(self, record: Record) -> None:
        """Claim the client id for the token that the session has now."""
        try:
            self._client.reclaim(record.id)
        except ClientTaken:
            self.end(CloseReason(4409, "client id is taken"))

    def _describe(self) -> None:
        """Tell the broker the attributes: the token's, with the client id."""
        attributes = NO_ATTRIBUTES if self.record is None else self.record.attributes
        if self._client.id:
            # Attributes of a token that are as long as allowed leave no room for a client id.
            with suppress(InvalidAudience):
                attributes = attrs.evolve(attributes, client=self._client.id)
        if attributes is not self.outbox.attributes:
            named = list(self.named_subscriptions)
            self.hub.broker.describe(self.outbox, attributes, self.subscriptions, named)
