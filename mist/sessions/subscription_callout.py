"""`--auth-url-subscribe`: another server is asked about subscriptions that a grant doesn't allow.

    POST {"token": "9f86d081884c7d65", "attributes": {"user": "7"}, "endpoint": "ws",
          "address": "192.0.2.7", "tags": ["room:1", "urgent"]}
    200  {"allow": true, "ttl": 60}

`token` is the id of the token, as logs have it, and the same for all tokens of a user that were
issued elsewhere. What a grant allows is not asked about, nor what no token may have: everything
(`*`), and tags that begin with `mist:`.

An answer is remembered for its time, for all sessions of that token. A subscription goes on when
the time is over: shortly before, it is asked about again. Where the answer is no, or none comes in
time, the subscription ends, and its subscriber is told so as of any that was revoked.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

import trio

from mist.addresses import EVERYTHING
from mist.attributes import Attributes
from mist.auth.callout.questions import Questions, Unanswered
from mist.auth.record import Record
from mist.errors import RegistryUnavailable, TooManySubscriptions
from mist.message import EVENTS, TagSet, format_tags
from mist.schedule import Schedule
from mist.sessions.close_reason import CloseReason

__all__ = ["AskingSession", "SubscriptionCallout"]

_MOST: Final = 20_000  # answers remembered
_MOST_OF_SESSION: Final = 1_000  # tag sets that one session may be allowed beside its grant
_AT_ONCE: Final = 1_000
_AHEAD: Final = 0.2  # of its time, at which an answer is asked for again
_RETRY: Final = 0.5  # seconds
_OUTCOMES: Final = ("accepted", "denied", "timeout", "status", "connection")  # from zero on


class AskingSession(Protocol):
    """A session, as it is asked about.

    Attributes:
        transport, peer, record, ended, allowed: see `mist.sessions.base_session.BaseSession`.
    """

    transport: str
    peer: str
    record: Record | None
    ended: CloseReason | None
    allowed: set[TagSet] | None

    @property
    def attributes(self) -> Attributes:
        """What an audience chooses by."""

    def is_granted(self, tags: TagSet) -> bool:
        """Whether it may subscribe to a tag set."""

    def is_subscribed(self, tags: TagSet) -> bool:
        """Whether it is subscribed to exactly this tag set."""

    def revoke(self, tags: TagSet) -> None:
        """End subscriptions to exactly this tag set, unless they are granted."""


_Asked = tuple[AskingSession, TagSet]


class SubscriptionCallout:
    """See the module.

    Args:
        questions: how it is asked.
        derive: see `Registry.derive`.
        flush: sends what was queued for sessions.
        clock: seconds; one that is never set.
    """

    def __init__(
        self,
        questions: Questions,
        derive: Callable[[str, str], bytes],
        flush: Callable[[], object],
        clock: Callable[[], float],
    ) -> None:
        self._questions = questions
        self._derive = derive
        self._flush = flush
        self._clock = clock
        self._outcomes: Counter[str] = Counter()
        self._answers: dict[bytes, tuple[bool, float, float]] = {}  # yes or no, renewed, until
        self._due = Schedule[_Asked](clock)
        self._until: dict[_Asked, float] = {}

    @property
    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Subscriptions by outcome."""
        found = self._outcomes + self._questions.failures
        return {"callout_subscribe": dict.fromkeys(_OUTCOMES, 0) | found}

    async def allow(self, session: AskingSession, tag_sets: Iterable[TagSet]) -> None:
        """Ask about those tag sets that the session's grant doesn't allow, and have it allow those
        that it may subscribe to.

        Raises:
            RegistryUnavailable: it can't be told now. Some of them may be allowed.
            TooManySubscriptions: it is allowed too many already.
        """
        for tags in tag_sets:
            record = session.record
            if record is None or session.is_granted(tags) or not _may_be_asked(tags):
                continue
            if session.allowed is not None and len(session.allowed) >= _MOST_OF_SESSION:
                raise TooManySubscriptions
            self._flush()  # nothing that was queued waits for the answer
            is_yes, renew, until = await self._answer(_asker(session, record), tags)
            self._outcomes["accepted" if is_yes else "denied"] += 1
            if not is_yes or session.record is None or session.record.id != record.id:
                continue
            if session.allowed is None:
                session.allowed = set()
            session.allowed.add(tags)
            if session.ended is None:
                self._until[session, tags] = until
                self._due.set((session, tags), renew)

    def forget(self, session: AskingSession) -> None:
        """A session has ended, or is about to get another token: nothing is asked again for it."""
        for tags in session.allowed or ():
            self._until.pop((session, tags), None)
            self._due.remove((session, tags))

    @property
    def watched(self) -> int:
        """Subscriptions that are asked about again."""
        return len(self._until)

    async def permits(self, record: Record, endpoint: str, address: str, tags: TagSet) -> bool:
        """Whether a request may read what carries these tags now, which its token doesn't grant.

        Args:
            record: of its token.
            address: that it came from.

        Raises:
            RegistryUnavailable: it can't be told now.
        """
        if not _may_be_asked(tags):
            return False
        asker = _Asker(record.id, record.attributes, endpoint, address)
        is_yes, _, _ = await self._answer(asker, tags)
        self._outcomes["accepted" if is_yes else "denied"] += 1
        return is_yes

    async def _answer(
        self, asker: "_Asker", tags: TagSet, *, anew: bool = False
    ) -> tuple[bool, float, float]:
        said = {
            "token": asker.token,
            "attributes": asker.attributes.as_json(),
            "endpoint": asker.endpoint,
            "address": asker.address,
            "tags": sorted(tags),
        }
        where = f"{asker.token}\0{asker.attributes.text}\0{asker.endpoint}\0{asker.address}"
        key = self._derive("callout subscribe", f"{where}\0{format_tags(tags)}")
        known = self._answers.get(key)
        if known is not None and self._clock() < (known[1] if anew else known[2]):
            return known
        try:
            answer = await self._questions.ask(key, said, asker=asker.token)
        except Unanswered:
            raise RegistryUnavailable from None
        is_yes = answer.says is not None and answer.says.get("allow") is True
        ttl = answer.ttl if is_yes else answer.ttl_of_no
        until = self._clock() + ttl
        found = is_yes, until - _AHEAD * ttl, until
        self._answers.pop(key, None)
        self._answers[key] = found
        if len(self._answers) > _MOST:
            del self._answers[next(iter(self._answers))]
        return found

    async def run(self) -> None:
        """Ask again about subscriptions whose time is soon over, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._questions.run)
            while True:
                for session, tags in await self._due.due(_AT_ONCE):
                    until = self._until.pop((session, tags))
                    if session.ended is None and session.is_subscribed(tags):
                        nursery.start_soon(self._ask_again, session, tags, until)
                    elif session.allowed is not None:
                        session.allowed.discard(tags)

    async def _ask_again(self, session: AskingSession, tags: TagSet, until: float) -> None:
        record = session.record
        while record is not None and session.ended is None:
            try:
                is_yes, renew, until = await self._answer(_asker(session, record), tags, anew=True)
            except RegistryUnavailable:
                if self._clock() < until:
                    await trio.sleep(_RETRY)
                    continue
                is_yes = False
            if session.ended is not None or session.record is None:
                return
            if session.record.id != record.id:  # what this one may not, has ended with it
                return
            if is_yes:
                self._until[session, tags] = until
                self._due.set((session, tags), renew)
            elif session.allowed is not None:
                session.allowed.discard(tags)
                session.revoke(tags)
                self._flush()
            return


class _Asker(NamedTuple):
    """Whom a question is about. The answer holds for all who are alike.

    Attributes:
        token: its id.
    """

    token: str
    attributes: Attributes
    endpoint: str
    address: str


def _asker(session: AskingSession, record: Record) -> _Asker:
    return _Asker(record.id, session.attributes, session.transport, session.peer)


def _may_be_asked(tags: TagSet) -> bool:
    return bool(tags) and tags != EVERYTHING and not any(tag.startswith(EVENTS) for tag in tags)
