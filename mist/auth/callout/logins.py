"""`--auth-url`: what a credential grants that the registry doesn't know.

    POST {"credential": "…", "endpoint": "ws", "address": "192.0.2.7", "client": "tab-1",
          "origin": "https://app.example", "tags": ["room:1"]}
    200  {"tags": ["room:1"], "attributes": {"user": "7"}, "ttl": 60}

What is asked, and so what is remembered, is all of it: the same credential from another address or
page, or with other tags, is another question, since the answer may depend on any of that. Without
the tags in the cache key, a yes for some tags would let a client have others. No tags, 401 or 403
is a no. While it can't be told, peers are told so, and not that their credential is bad.

A session goes on when its time is over: shortly before, the question is asked again. It ends where
the answer is no, or grants another user something, and where there was no answer in time.
"""

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio

from mist.auth.callout.questions import Answer, Questions, Unanswered
from mist.auth.credentials import Login
from mist.auth.issued import IssuedRecord, Rejected, SharedGrants, check_grants
from mist.auth.registry import Registry
from mist.auth.revocations import is_revoked, owner_of, sub_mark
from mist.errors import RegistryUnavailable
from mist.message import MAX_CREDENTIAL
from mist.origins import origin_of
from mist.schedule import Schedule

__all__ = ["LoginCallout"]

log = logging.getLogger("mist.auth.callout")

_MOST: Final = 10_000  # answers remembered
_AT_ONCE: Final = 1_000  # answers whose time is soon over
_RETRY: Final = 0.5  # seconds until it is asked again where there was no answer
_AHEAD: Final = 0.2  # of its time, at which an answer is asked for again
_SET_BACK: Final = 1.0  # seconds that a record outlasts its answer where the clock was set back
_NOWHERE: Final = Login()
_OUTCOMES: Final = ("accepted", "cached", "denied", "revoked", "timeout", "status", "connection")


@attrs.define(eq=False)
class _Known:
    """An answer.

    Attributes:
        answer: as it came.
        text, login: that it is about; only where it was a yes, which may be asked for again.
        record: what it grants; None where it was a no.
        until: when it is over, by the steady clock.
        renew: when it is asked for again, if it is in use.
        why: why it was a no.
        is_asked_again: whether a task asks for it again.
    """

    answer: Answer
    text: str = attrs.field(repr=False)
    login: Login
    record: IssuedRecord | None
    until: float
    renew: float
    why: str = ""
    is_asked_again: bool = False


class LoginCallout:
    """See the module. One of the authorities of `mist.auth.credentials`.

    Args:
        questions: how it is asked.
        registry: where revocations are.
        max_tags: that an answer may grant.
        clock: Unix seconds.
        steady: seconds, by a clock that is never set: how long an answer holds.
        in_use: whether any session has a record.
        replace: called with a record that sessions may have and the one in its place, None where
            there is none.
    """

    def __init__(
        self,
        questions: Questions,
        registry: Registry,
        max_tags: int,
        clock: Callable[[], float],
        *,
        steady: Callable[[], float],
        in_use: Callable[[IssuedRecord], bool],
        replace: Callable[[IssuedRecord, IssuedRecord | None], None],
    ) -> None:
        self._in_use = in_use
        self._replace = replace
        self._questions = questions
        self._registry = registry
        self._max_tags = max_tags
        self._clock = clock
        self._steady = steady
        # by key, when an answer is asked for again or forgotten
        self._due = Schedule[bytes](steady)
        self._known: dict[bytes, _Known] = {}  # the one asked longest ago first
        self._grants = SharedGrants()
        self._outcomes: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Credentials by outcome."""
        return {"callout": dict.fromkeys(_OUTCOMES, 0) | self._outcomes + self._questions.failures}

    def takes(self, text: str) -> bool:
        """Whether a text is asked about at all."""
        return 0 < len(text) <= MAX_CREDENTIAL

    async def prepare(self, text: str, login: Login) -> None:
        """See `Authority.prepare`."""
        if not self.takes(text):
            return
        key = self._key(text, login)
        known = self._known.get(key)
        outcome = "cached"
        if known is not None and known.renew <= self._steady() < known.until:
            self._due.set(key, self._steady())  # a session may have it in a moment
        if known is None or self._is_over(known) or self._is_revoked(known):
            known = await self._ask(key, text, login)
            outcome = "denied" if known.record is None else "accepted"
        self._outcomes[outcome] += 1

    def find(self, text: str, login: Login) -> IssuedRecord | None:
        """See `Authority.find`."""
        known = self._known.get(self._key(text, login))
        if known is None or self._is_over(known) or self._is_revoked(known):
            return None
        return known.record

    def _is_over(self, known: _Known) -> bool:
        """Whether an answer holds no longer. Sessions end by the clock, so that counts, too."""
        record = known.record
        is_expired = record is not None and record.expired(self._clock())
        return is_expired or known.until <= self._steady()

    def _is_revoked(self, known: _Known) -> bool:
        return known.record is not None and is_revoked(self._registry, known.record)

    def explain(self, text: str, login: Login) -> str:
        """See `Authority.explain`."""
        known = self._known.get(self._key(text, login))
        return "no such token" if known is None else known.why or "the token was revoked"

    def renew(self) -> None:
        """See `Authority`; nothing is fetched ahead."""

    def limit_tags(self, max_tags: int) -> None:
        """See `Authority`."""
        self._max_tags = max_tags

    async def run(self) -> None:
        """See `Authority.run`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._questions.run)
            while True:
                for key in await self._due.due(_AT_ONCE):
                    self._renew(key, nursery)

    def _renew(self, key: bytes, nursery: trio.Nursery) -> None:
        known = self._known[key]
        record = known.record
        if known.until <= self._steady():
            del self._known[key]  # what sessions have of it ends by itself
            if record is not None and not record.expired(self._clock() + _SET_BACK):
                # But where the clock was set back: they end in a moment.
                self._replace(record, attrs.evolve(record, expires=self._clock()))
        elif known.is_asked_again:
            pass  # by a task, which each login would add another to
        elif record is not None and self._in_use(record):
            known.is_asked_again = True
            nursery.start_soon(self._ask_again, key, known)
        else:
            self._due.set(key, known.until)

    async def _ask_again(self, key: bytes, known: _Known) -> None:
        # Where there is no answer in time, the sessions end by themselves.
        while self._known.get(key) is known and self._steady() < known.until:
            try:
                await self._ask(key, known.text, known.login)
            except RegistryUnavailable:
                await trio.sleep(_RETRY)
            except Exception:  # a mistake of ours; the sessions end in time
                log.exception("a session could not be given another record")
                break
        known.is_asked_again = False
        if self._known.get(key) is known:
            self._due.set(key, known.until)

    async def _ask(self, key: bytes, text: str, login: Login) -> _Known:
        """Ask, and remember the answer.

        Raises:
            RegistryUnavailable: there is none that can be used.
        """
        tags = login.tags.split(",") if login.tags else []
        said = {"credential": text, **login._asdict(), "tags": tags}
        try:
            answer = await self._questions.ask(key, said, asker=origin_of(login.address))
        except Unanswered:
            raise RegistryUnavailable from None
        now = self._clock()
        known = self._known.get(key)
        if known is not None and known.answer is answer:
            return known  # another task waited for the same
        try:
            record = self._record(key, text, login, answer, now)
        except Rejected as error:
            self._outcomes[error.reason] += 1
            log.warning("an answer of --auth-url can't be used: %s", error)
            raise RegistryUnavailable from None
        until = self._steady() + (answer.ttl_of_no if record is None else answer.ttl)
        known = _Known(
            answer=answer,
            text="" if record is None else text,
            login=_NOWHERE if record is None else login,
            record=record,
            until=until,
            renew=until if record is None else until - _AHEAD * answer.ttl,
            why="the token is not accepted" if record is None else "",
        )
        before = self._known.pop(key, None)
        self._known[key] = known
        self._due.set(key, known.renew)
        if before is not None and before.record is not None:
            self._replace(before.record, record)
        self._forget()
        return known

    def _forget(self) -> None:
        """Forget the oldest answers that no session has; those that one has are as many at most as
        there are connections."""
        for key in list(itertools.islice(self._known, max(0, len(self._known) - _MOST))):
            known = self._known[key]
            if known.record is None or not self._in_use(known.record):
                del self._known[key]
                self._due.remove(key)

    def _record(
        self, key: bytes, text: str, login: Login, answer: Answer, now: float
    ) -> IssuedRecord | None:
        says = answer.says
        if says is None or says.get("tags") == []:
            return None
        grant, attributes = check_grants(says, "the answer", "", self._max_tags, self._grants)
        user = attributes.user
        mark = sub_mark(self._registry, user) if user else b""
        # Not by what a client chooses freely: with other tags it would have limits of its own
        # each time, and its client id would be taken, by itself.
        owner = mark or self._key(text, login._replace(client=None, tags=""))
        return IssuedRecord(
            id=owner_of(owner, ""),
            digest=key,
            tags=grant.tags,
            shared=grant,
            created=now,
            attributes=attributes,
            expires=now + answer.ttl,
            issued=now,
            user_mark=mark,
            is_renewed=True,
        )

    def _key(self, text: str, login: Login) -> bytes:
        # JSON, rather than joined by a character: a client's id in a query may have any.
        return self._registry.derive("callout", json.dumps([*login, text]))
