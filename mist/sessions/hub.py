"""The middle of a server: one broker, one token registry, every session.

It puts what is published in order and hands it to the broker, passes a change of a token on to
the token's sessions, checks the secret, and keeps the counts.

Everything here is synchronous but the registry's writes, so a session sees no half-made
change: a token is looked up and its session attached without an await between, so a change finds
the session, or the session has found the change.

A session knows its hub. The hub knows sessions only as the session table does.
"""

import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import attrs
import trio

from mist.auth import Record
from mist.auth.credentials import Credentials
from mist.auth.issued import IssuedRecord
from mist.auth.registry import Registry
from mist.auth.revocations import is_revoked
from mist.broker.backlog import Written
from mist.broker.broker import Broker, BrokerStatistics
from mist.broker.meters import Meters
from mist.broker.outbox import Outbox
from mist.broker.outbox_limits import OutboxLimits
from mist.certificate import Certificate
from mist.change import Change
from mist.history.idempotency import KeysInMemory
from mist.message import Limits
from mist.newcomers import Newcomers
from mist.sessions.client_filters import ClientFilters
from mist.sessions.client_ids import Clients
from mist.sessions.close_reason import CloseReason
from mist.sessions.expiry import SessionExpiry
from mist.sessions.flush_scheduler import FlushScheduler
from mist.sessions.inside import InsidePublisher
from mist.sessions.recorder import Recorder
from mist.sessions.sequencer import Sequencer
from mist.sessions.session_table import ConnectedSession, SessionTable
from mist.sessions.token_changes import TokenChanges
from mist.sessions.token_limits import TokenLimits
from mist.telemetry import Tracing
from mist.turns import Account, Turns

if TYPE_CHECKING:
    from mist.archive.sealer import Sealer  # needs pyarrow, which is an extra
    from mist.archive.sharing import SharedSealer
    from mist.archive.side_tables import SideTables
    from mist.sessions.events import EventService  # what follows is off in most servers
    from mist.sessions.nodes import Nodes
    from mist.sessions.presence import PresenceService
    from mist.sessions.subscription_callout import SubscriptionCallout  # needs httpx, likewise

__all__ = ["Hub", "HubLimits", "HubStatistics"]

log = logging.getLogger("mist.hub")

_ENDED_AT_ONCE: Final = 50  # sessions
# Seconds: a loop that stands still for longer is always noticed. Each step costs an idle server
# 0.03 % of a processor.
_LAG_STEP: Final = 0.25


@attrs.frozen
class HubLimits:
    """What sessions may do; see also `mist.message.Limits` and `mist.broker.outbox_limits`.

    Attributes:
        subscriptions: of a session without a token (a service on TCP).
        named_subscriptions: of a session, those of a NATS client. Each of them gets a message for
            itself, so all of them may be the recipients of one.
        token_subscriptions: of all sessions of a token (browsers) together.
        subscription_bytes: the canonical tag lists of one session's subscriptions, together;
            a million subscriptions of the longest tags would otherwise be 4 GB.
        strict_grants: whether every tag of a subscription must be granted, not just one.
        failed_auth_delay: seconds that a wrong secret is kept waiting for its answer.
        unauthenticated: sessions that have not authenticated, together.
    """

    subscriptions: int = 1_000_000
    named_subscriptions: int = 100_000
    token_subscriptions: int = 20_000
    subscription_bytes: int = 256 * 1024 * 1024
    strict_grants: bool = False
    failed_auth_delay: float = 1.0
    unauthenticated: int = 256


@attrs.frozen
class HubStatistics:
    """Counts since the start.

    Attributes:
        connected: sessions now.
        lifetime: sessions ever.
        delivered: messages wholly handed to the kernel, all sessions.
        delivered_bytes: likewise, replies included.
        failed_auths: wrong secrets and tokens, by transport.
        broker: what was published, matched and dropped.
    """

    connected: int
    lifetime: int
    delivered: int
    delivered_bytes: int
    failed_auths: dict[str, int]
    broker: BrokerStatistics


class Hub(InsidePublisher):
    """See the module.

    Args:
        registry: who may subscribe to what.
        secret: demanded from services; None where there is none.
        limits, outbox_limits, hub_limits: bounds of what peers send, of what is queued for
            each, and of what each may do.

    Attributes:
        sessions: which there are.
        credentials: which texts are good as tokens; only registered tokens, unless it is set before
            the first session.
        subscription_callout: who is asked about subscriptions that a grant doesn't allow; None for
            nobody.
        turns: bounds the time that each peer takes from the others.
        ending: whether the server shuts down: nothing more is read from peers that send
            commands, and sessions that end need no cleanup.
        is_full: whether connections wait that can't be accepted, as no file can be opened.
        sequencer: the way through the history; None where there is none. Set before the
            first session.
        nodes: those of the engine; None where there is none. Set likewise.
        presence: tells who is subscribed; None where it is off. Set likewise.
        events: tells services and hooks what happens; None where it is off. Set likewise.
        sealer: what moves the history into the archive; None where there is none.
        side_tables: keeps the archive's other tables; None likewise.
        keys_in_memory: idempotency keys, where there is no history.
        token_changes: those that have yet to reach all sessions of a token.
        expiry: ends sessions whose token expires.
        token_limits: what tokens with limits may do.
        clients: which client ids are taken.
        client_filters: which messages of channels clients are given, by `mist.bus`.
        meters: what is measured, by samples.
        written: delivered to all sessions since the start, those that are gone included.
        recorder: counters over the last ten minutes.
        certificate: of TLS listeners; None where there is none.
        tracing: begins spans; None where there is no telemetry. Set before the first session.
        failed_auths, failed_auth_reasons: wrong credentials, by transport, and by what was
            wrong.
        recoveries: sessions that resumed, by how that went: `recovered`, `lost` (part of what
            they asked for was gone), `failed`.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        secret: bytes | None = None,
        limits: Limits | None = None,
        outbox_limits: OutboxLimits | None = None,
        hub_limits: HubLimits | None = None,
    ) -> None:
        self.registry = registry
        self.credentials = Credentials(registry)
        self.meters = Meters(time.perf_counter)
        self.written = Written()
        self.broker = Broker(limits, self.meters)
        self.subscription_callout: SubscriptionCallout | None = None
        self.turns = Turns()
        self.newcomers = Newcomers()
        self.flush_scheduler = FlushScheduler(self.broker, self.turns)
        self.token_changes = TokenChanges(self.flush_scheduler)
        self.limits = self.broker.limits
        self.outbox_limits = outbox_limits or OutboxLimits()
        self.hub_limits = hub_limits or HubLimits()
        self.sessions = SessionTable(self.hub_limits.unauthenticated)
        self.recorder = Recorder(self.broker, self.sessions, self.written, self.meters)
        self.ending = False
        self.is_full: Callable[[], bool] = lambda: False
        self.sequencer: Sequencer | None = None
        self.nodes: Nodes | None = None
        self.presence: PresenceService | None = None
        self.events: EventService | None = None
        self.sealer: Sealer | SharedSealer | None = None
        self.side_tables: SideTables | None = None
        self.keys_in_memory = KeysInMemory()
        self.expiry = SessionExpiry(self.now, self.flush_scheduler.flush)
        self.token_limits = TokenLimits()
        self.clients = Clients()
        self.client_filters = ClientFilters()
        self.failed_auths: Counter[str] = Counter()
        self.failed_auth_reasons: Counter[str] = Counter()
        self.recoveries: Counter[str] = Counter()
        self.certificate: Certificate | None = None
        self.tracing: Tracing | None = None
        self._secret = secret
        self._dropping: list[tuple[str, Outbox, int]] = []
        registry.now = self.now
        registry.watch(self._token_changed)
        registry.watch_withheld(self._token_withheld)

    # credentials

    def set_secret(self, secret: bytes | None) -> None:
        """Change what services must present from now on. Those that did stay."""
        self._secret = secret

    @property
    def needs_secret(self) -> bool:
        """Whether services must authenticate."""
        return self._secret is not None

    def is_secret(self, credential: str) -> bool:
        """Whether `credential` is the secret, compared in constant time."""
        return self._secret is not None and hmac.compare_digest(
            credential.encode("utf-8", "replace"), self._secret
        )

    def _token_changed(self, old: Record, new: Record | None) -> None:
        # Those that have come since had the new record from the start, or a still newer one.
        self.token_changes.give(
            old.id,
            self.sessions.of_token(old.id),
            lambda session: session.record is not None and session.record.id == old.id,
            lambda: self.registry.find(old.id),
        )

    def _token_withheld(self, withheld: Record) -> None:
        def concerned(session: ConnectedSession) -> bool:
            record = session.record
            return isinstance(record, IssuedRecord) and is_revoked(self.registry, record)

        sessions = self.sessions.marked(withheld.digest)
        self.token_changes.give(withheld.id, sessions, concerned, lambda: None)

    # housekeeping

    def now(self) -> float:
        """Unix seconds; at a node by the engine's clock."""
        return time.time() if self.sequencer is None else self.sequencer.now()

    async def end_subscribers(self, reason: CloseReason) -> None:
        """End every session that has subscribed; those that only publish stay."""
        for number, session in enumerate(self.sessions):
            if len(session.subscriptions):
                session.end(reason)
            if number % _ENDED_AT_ONCE == _ENDED_AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
        self.flush_scheduler.flush()

    def note_dropping(self, name: str, outbox: Outbox) -> None:
        """A session's outbox has begun to drop; `report_drops` logs it with the rest."""
        self._dropping.append((name, outbox, outbox.dropped_full - 1))

    async def free_matches(self) -> None:
        """Free what matches have found and no longer need, in turns, until cancelled."""
        freed, account, changed = self.broker.freed, Account(), Change()
        with freed.taking(changed.notify):
            while True:
                while not freed:
                    await changed.wait()
                await self.turns.drive(freed.steps(), account)

    async def report_drops(self, interval: float = 1.0) -> None:
        """Log what outboxes dropped, at most once an `interval` (seconds) for a session.

        In between it sleeps and measures by how much it oversleeps: the loop's lag. A line takes
        30 µs, and each of thousands of sessions may have one, so they are written in turns.
        """
        account = Account()
        while True:
            await self._rest(interval)
            await self.turns.drive(self._log_drops(), account)

    def _log_drops(self) -> Iterator[None]:
        dropping, self._dropping = self._dropping, []
        for name, outbox, before in dropping:
            log.warning(
                "slow consumer: messages dropped",
                extra={"session": name, "dropped": outbox.dropped_full - before},
            )
            outbox.noted_drops()
            yield

    async def _rest(self, seconds: float) -> None:
        until = trio.current_time() + seconds
        while (now := trio.current_time()) < until:
            due = min(now + _LAG_STEP, until)
            await trio.sleep_until(due)
            self.meters.note_lag(trio.current_time() - due)

    def note_failed_auth(self, transport: str, reason: str) -> None:
        """Count a wrong credential.

        Args:
            reason: what was wrong: `secret`, `token`, `secret or token` (NATS), `ticket`.
        """
        self.failed_auths[transport] += 1
        self.failed_auth_reasons[reason] += 1

    def statistics(self) -> HubStatistics:
        """A frozen copy of the counts. O(sessions)."""
        delivered, delivered_bytes = self.sessions.delivered()
        return HubStatistics(
            connected=self.sessions.connected,
            lifetime=self.sessions.lifetime,
            delivered=delivered,
            delivered_bytes=delivered_bytes,
            failed_auths=dict(self.failed_auths),
            broker=self.broker.statistics(),
        )
