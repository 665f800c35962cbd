"""Tickets: one-time credentials that a page puts into a URL instead of its token.

`new EventSource(url)` and `new WebSocket(url)` can't set headers, and a token in a URL would
end up in logs and stay valid. A ticket is valid once, for half a minute, on pages of the origin
that asked for it, and no longer than its token. At a node of an engine it is valid once at all of
them: a load balancer may send the page's next request to another.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs
import msgspec
import trio

from mist.auth import Record
from mist.auth.issued import IssuedRecord
from mist.auth.issued_codec import decode_issued, encode_issued
from mist.auth.registry import Registry
from mist.auth.revocations import is_revoked
from mist.config.addresses import parse_origin

if TYPE_CHECKING:
    from mist.engine.contract import Engine

__all__ = ["LIFETIME", "Pages", "Tickets", "pages_of"]

_TEXT: Final = re.compile(r"[\w-]{43}", re.ASCII)
LIFETIME: Final = 30.0  # seconds
_MOST: Final = 20_000  # tickets: one for each connection allowed
_MOST_OF_TOKEN: Final = 2_000  # more than its request rate allows within a lifetime

Pages = frozenset[str]
"""The origin of a requesting page, in each spelling it may have; see `pages_of`."""


@attrs.frozen(eq=False)
class _Ticket:
    """A ticket that has not been used.

    Attributes:
        digest: its key here; the text of the ticket is not kept.
        token: the registry's id of its token.
        pages: where it may be used.
        expires: by the clock, seconds.
        issued: the record, where the token was issued elsewhere: another token of the same user may
            grant more. None where the registry has it.
    """

    digest: bytes = attrs.field(repr=False)
    token: str
    pages: Pages
    expires: float
    issued: IssuedRecord | None = None


class _Shared(msgspec.Struct, array_like=True):
    """A ticket as the engine has it, until a node redeems it.

    Attributes:
        token, pages: as of a `_Ticket`.
        issued: the record, see `mist.auth.issued_codec`; empty where the registry has it.
    """

    token: str
    pages: list[str]
    issued: bytes = b""


class Tickets:
    """The tickets of a server, in memory; of a node, in its engine, until they are redeemed.

    Args:
        registry: of the tokens that they stand for.
        engine: for nodes, since any of them may be given a ticket of another one.
        clock: any origin, seconds.
        most, most_of_token: tickets at a time, in all and of one token. Beyond these the oldest
            is dropped, so that a client that asks for many can't keep others from theirs.
    """

    def __init__(
        self,
        registry: Registry,
        clock: Callable[[], float] = trio.current_time,
        *,
        engine: "Engine | None" = None,
        most: int = _MOST,
        most_of_token: int = _MOST_OF_TOKEN,
    ) -> None:
        self._registry = registry
        self._engine = engine
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._most = most
        self._most_of_token = most_of_token
        self._tickets: dict[bytes, _Ticket] = {}  # the oldest first
        self._records: dict[str, Record] = {}  # of tokens that have tickets
        self._by_token: dict[str, dict[bytes, None]] = {}
        registry.watch(self._token_changed)

    def __len__(self) -> int:
        """How many there are, expired ones that are not yet removed included."""
        return len(self._tickets)

    def issue(self, record: Record, pages: Pages) -> str:
        """Issue a ticket. Call it without an await since the lookup of the token.

        Args:
            record: the token's.
            pages: where it may be used.
        """
        self._forget_expired()
        own = self._by_token.setdefault(record.id, {})
        if len(own) >= self._most_of_token:
            self._forget(self._tickets[next(iter(own))])
        elif len(self._tickets) >= self._most:
            self._forget(next(iter(self._tickets.values())))
        text = secrets.token_urlsafe(32)
        self._enter(self._digest(text), record, pages)
        return text

    def _enter(self, digest: bytes, record: Record, pages: Pages) -> None:
        issued = record if isinstance(record, IssuedRecord) else None
        until = self._clock() + LIFETIME
        self._tickets[digest] = _Ticket(digest, record.id, pages, until, issued)
        self._records[record.id] = record
        self._by_token.setdefault(record.id, {})[digest] = None

    async def share(self, ticket: str) -> None:
        """Let any node redeem a ticket that was issued here.

        Raises:
            EngineUnavailable: it is not valid.
        """
        found = self._tickets.get(self._digest(ticket))
        if self._engine is None or found is None:
            await trio.lowlevel.checkpoint()
            return
        record = self._records[found.token]
        self._forget(found)
        shared: list[object] = [record.id, sorted(found.pages)]
        if found.issued is not None:
            shared.append(encode_issued(self._registry, found.issued, _name(ticket)))
        value = msgspec.json.encode(shared)
        await self._engine.put_once(_name(ticket), value, LIFETIME)

    async def bring(self, ticket: str) -> None:
        """Have a ticket of another node here, to `redeem` it; only one node has it then.

        Raises:
            EngineUnavailable: whether it is valid is not known.
        """
        if self._engine is None or not _TEXT.fullmatch(ticket):  # nobody has the engine asked
            return
        value = await self._engine.take(_name(ticket))
        if value is None:
            return
        shared = msgspec.json.decode(value, type=_Shared)
        record: Record | None = None
        if not shared.issued:
            record = self._registry.find(shared.token)
        else:
            with suppress(ValueError):  # made with another key
                record = decode_issued(self._registry, shared.issued, _name(ticket))
        if record is not None:  # or else it was revoked
            self._enter(self._digest(ticket), record, frozenset(shared.pages))

    def redeem(self, ticket: str, pages: Pages) -> Record | None:
        """Use up a ticket; also from the wrong page, where it must have been stolen.

        Returns:
            Its token's record, as of now; None where it is not valid. As for
            `Registry.lookup`, act on it without an await.

        Raises:
            RegistryUnavailable: the token may have been revoked since, elsewhere; the ticket stays
                valid. See `Registry.check_contact`.
        """
        self._registry.check_contact()
        digest = self._digest(ticket)
        found = self._tickets.get(digest)
        # As with tokens: the dict's comparison leaks nothing, since the key is secret; the one
        # in constant time keeps it so should the lookup change.
        if found is None or not hmac.compare_digest(found.digest, digest):
            return None
        record = found.issued or self._records[found.token]
        self._forget(found)
        if found.issued is not None and is_revoked(self._registry, found.issued):
            return None
        if found.expires <= self._clock() or found.pages.isdisjoint(pages):
            return None
        if record.expired(self._registry.now()):
            return None
        return record

    def redeem_from(self, ticket: str, origin: str | None) -> Record | None:
        """As `redeem`, where only the request's Origin is known."""
        return self.redeem(ticket, pages_of({} if origin is None else {"origin": origin}))

    def _digest(self, ticket: str) -> bytes:
        return hmac.digest(self._key, ticket.encode("utf-8", "replace"), "sha256")

    def _forget(self, ticket: _Ticket) -> None:
        del self._tickets[ticket.digest]
        own = self._by_token[ticket.token]
        del own[ticket.digest]
        if not own:
            del self._by_token[ticket.token]
            del self._records[ticket.token]

    def _forget_expired(self) -> None:
        now = self._clock()
        while self._tickets:
            oldest = next(iter(self._tickets.values()))
            if oldest.expires > now:
                return
            self._forget(oldest)

    def _token_changed(self, old: Record, new: Record | None) -> None:
        if old.id not in self._records:
            return
        if new is not None and new.tags:
            self._records[old.id] = new
            return
        for digest in list(self._by_token[old.id]):
            self._forget(self._tickets[digest])


def _name(ticket: str) -> str:
    """What it is kept under in the engine. It is random, so nothing can be guessed of it."""
    return f"ticket-{hashlib.sha256(ticket.encode('utf-8', 'replace')).hexdigest()}"


def pages_of(headers: Mapping[str, str], host: str | None = None) -> Pages:
    """The origin of the page that a request comes from.

    A browser omits the Origin of a same-origin GET and sends `Sec-Fetch-Site: same-origin`
    instead, which no script can set. Then it is the Host, under either scheme: behind a proxy
    that terminates TLS the scheme is not known here.

    Args:
        headers: names in lower case; one Origin at most.
        host: the request's; None where it was not checked to be a name of this server.

    Returns:
        A set of just the empty text for a client that is no page, such as a program; an empty
        set for an invalid origin, such as `null`.
    """
    origin = headers.get("origin")
    if origin is not None:
        return _origins(origin)
    if host is not None and headers.get("sec-fetch-site") == "same-origin":
        return _origins(f"http://{host}") | _origins(f"https://{host}")
    return frozenset({""})


def _origins(text: str) -> Pages:
    try:
        return frozenset({parse_origin(text)})
    except ValueError:
        return frozenset()
