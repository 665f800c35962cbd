"""The verifier: from the text of a token to a record, as if the token were registered.

`prepare` may wait, for a key that is not known yet; `find` never does, and may be called again as
long as the token is in use. So the caller acts on what it finds without an await, as on a
registry's `lookup`, and a revocation comes before both or after both.

What is verified is remembered by digest, bounded in number and in bytes, until other keys come:
a client that polls costs one signature, not one for each request. So is what was refused for good.

Cost: a signature takes 15 to 400 µs, all others that wait included; see `mist.auth.jwt.keys`.
"""

import binascii
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import msgspec

from mist.auth.credentials import Login
from mist.auth.issued import IssuedRecord, Rejected, SharedGrants
from mist.auth.jwt import LEEWAY
from mist.auth.jwt.claims import Claims, Expectations, read_claims
from mist.auth.jwt.key_set import KeySet
from mist.auth.registry import Registry
from mist.auth.revocations import is_revoked, jti_mark, owner_of, sub_mark
from mist.auth.web import Web
from mist.errors import RegistryUnavailable
from mist.message import MAX_CREDENTIAL

__all__ = ["Verifier", "is_jwt"]

_MOST: Final = 10_000  # tokens remembered
_MOST_BYTES: Final = 16 << 20  # of their texts
_MOST_REJECTED: Final = 1_000

# What begins with `{"`, or with a brace and white space.
_JWT: Final = re.compile(r"e[w-z][\w-]*\.[\w-]+\.[\w-]*", re.ASCII)
_OUTCOMES: Final = ("accepted", "expired", "revoked", "signature", "key", "unavailable")
_FOR_GOOD: Final = frozenset({"malformed", "header", "signature", "issuer", "audience", "grants"})


def is_jwt(text: str) -> bool:
    """Whether a text has the form of a JWT: three parts of base64url, of which the first may be a
    JSON object."""
    return text.startswith("e") and _JWT.fullmatch(text) is not None


@attrs.frozen
class _Verified:
    """A token that was verified.

    Attributes:
        claims: see there.
        record: what it grants, until `expires`.
        size: bytes of its text.
        generation: of the keys that it was verified with.
    """

    claims: Claims
    record: IssuedRecord
    size: int
    generation: int


class Verifier:
    """See the module. One of the authorities of `mist.auth.credentials`.

    Args:
        keys: of all issuers.
        web: with which they are fetched; closed by `run`.
        registry: where revocations are.
        expected: what tokens have to say.
        clock: Unix seconds.

    Attributes:
        outcomes: tokens that peers presented, by what came of it: `accepted`, `revoked`,
            `unavailable`, or the reason of `Rejected`.
    """

    def __init__(
        self,
        keys: KeySet,
        web: Web,
        registry: Registry,
        expected: Expectations,
        clock: Callable[[], float],
    ) -> None:
        self.keys = keys
        self._web = web
        self.outcomes: Counter[str] = Counter()
        self._registry = registry
        self._expected = expected
        self._clock = clock
        self._verified: dict[bytes, _Verified] = {}  # the one verified longest ago first
        self._bytes = 0
        self._last = "", b""  # the text looked at last, and its digest
        self._rejected: dict[bytes, tuple[Rejected, int]] = {}
        self._grants = SharedGrants()

    @property
    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Tokens, and fetches of keys, by outcome."""
        outcomes = dict.fromkeys(_OUTCOMES, 0) | self.outcomes
        fetches = dict.fromkeys(("changed", "unchanged", "failed"), 0) | self.keys.fetches
        return {"jwt": outcomes, "jwks": fetches}

    def takes(self, text: str) -> bool:
        """Whether a text has the form of a JWT."""
        return is_jwt(text)

    def renew(self) -> None:
        """See `Authority`."""
        self.keys.renew()

    def limit_tags(self, max_tags: int) -> None:
        """See `Authority`."""
        self._expected = attrs.evolve(self._expected, max_tags=max_tags)
        self._rejected.clear()  # some for what they grant

    async def run(self) -> None:
        """See `KeySet.run`."""
        async with self._web:
            await self.keys.run()

    async def prepare(self, text: str, login: Login) -> None:
        """Call it before `find` for a login: it counts the outcome, and has keys fetched that are
        not known.

        Raises:
            RegistryUnavailable: it can't be told now whether the token is good.
        """
        digest = self._digest(text)
        try:
            found = await self._check_again(text, digest)
        except Rejected as error:
            if error.reason == "key" and not self.keys.complete:
                self.outcomes["unavailable"] += 1
                raise RegistryUnavailable from None
            self.outcomes[error.reason] += 1
            return
        self.outcomes["revoked" if is_revoked(self._registry, found) else "accepted"] += 1

    async def _check_again(self, text: str, digest: bytes) -> IssuedRecord:
        """As `_check`, and once more where the key is not known and may be by then."""
        try:
            return self._check(text, digest)
        except Rejected as error:
            if error.reason != "key":
                raise
        header = _read_header(text)
        await self.keys.look_for(header.kid, header.alg)
        return self._check(text, digest)

    def find(self, text: str, login: Login) -> IssuedRecord | None:
        """What a token grants; None where it isn't good.

        Raises:
            RegistryUnavailable: it may have been revoked elsewhere; see `Registry.check_contact`.
        """
        self._registry.check_contact()
        try:
            record = self._check(text, self._digest(text))
        except Rejected:
            return None
        return None if is_revoked(self._registry, record) else record

    def explain(self, text: str, login: Login) -> str:
        """Why a token isn't good, for the client."""
        try:
            self._check(text, self._digest(text))
        except Rejected as error:
            return str(error)
        return "the token was revoked"

    def _digest(self, text: str) -> bytes:
        # `find` comes right behind `prepare`, with the same text.
        if text is not self._last[0]:
            self._last = text, self._registry.derive("jwt", text)
        return self._last[1]

    def _check(self, text: str, digest: bytes) -> IssuedRecord:
        now = self._clock()
        found = self._verified.get(digest)
        if found is not None and found.generation == self.keys.generation:
            if not found.record.expired(now):
                return found.record
        elif (known := self._rejected.get(digest)) and known[1] == self.keys.generation:
            raise known[0]
        try:
            return self._remember(digest, self._verify(text, now), len(text), now)
        except Rejected as error:
            if error.reason in _FOR_GOOD:
                self._rejected[digest] = error.with_traceback(None), self.keys.generation
                if len(self._rejected) > _MOST_REJECTED:
                    del self._rejected[next(iter(self._rejected))]
            raise

    def _verify(self, text: str, now: float) -> Claims:
        """The claims of a token that is good now. The signature comes first."""
        header = _read_header(text)
        signed, _, signature = text.rpartition(".")
        keys = self.keys.find(header.kid, header.alg)
        if not keys:
            raise Rejected("key", "the key of the token is not known (kid), or not for its alg")
        raw = _decode(signature)
        if not any(key.verifies(header.alg, signed.encode(), raw) for key in keys):
            raise Rejected("signature", "the signature of the token is wrong")
        return read_claims(_decode(signed.partition(".")[2]), self._expected, now, self._grants)

    def _remember(self, digest: bytes, claims: Claims, size: int, now: float) -> IssuedRecord:
        user_mark = sub_mark(self._registry, claims.subject) if claims.subject else b""
        record = IssuedRecord(
            id=owner_of(user_mark or digest, claims.issuer),
            digest=digest,
            tags=claims.grant.tags,
            shared=claims.grant,
            created=claims.issued,
            attributes=claims.attributes,
            # Within the leeway of a clock that differs, the token still has that leeway.
            expires=claims.expires if now < claims.expires else claims.expires + LEEWAY,
            issued=claims.issued,
            token_mark=jti_mark(self._registry, claims.token) if claims.token else b"",
            user_mark=user_mark,
        )
        self._forget(digest)
        self._verified[digest] = _Verified(claims, record, size, self.keys.generation)
        self._bytes += size
        while len(self._verified) > _MOST or self._bytes > _MOST_BYTES:
            self._forget(next(iter(self._verified)))
        return record

    def _forget(self, digest: bytes) -> None:
        found = self._verified.pop(digest, None)
        if found is not None:
            self._bytes -= found.size


class _Header(msgspec.Struct):
    """What counts of a header. `alg` and `kid` are hints, which the key decides on."""

    alg: str
    kid: str = ""
    crit: Any = None
    b64: bool = True


_decode_header: Final = msgspec.json.Decoder(_Header).decode


def _read_header(text: str) -> _Header:
    if len(text) > MAX_CREDENTIAL:
        raise Rejected("malformed", f"the token has more than {MAX_CREDENTIAL:,} bytes")
    try:
        header = _decode_header(_decode(text.partition(".")[0]))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise Rejected("malformed", "the header of the token is no JSON object with alg") from None
    if header.crit is not None or not header.b64:
        raise Rejected("header", "the header of the token asks for what is not supported (crit)")
    return header


def _decode(part: str) -> bytes:
    standard = part.replace("-", "+").replace("_", "/")
    try:
        # Of base64url alone: `is_jwt` has looked.
        raw = binascii.a2b_base64(standard + "==")
    except (binascii.Error, ValueError):
        raise Rejected("malformed", "the token is not base64url") from None
    # The last letter may have bits to spare: with others, the same token would count as another.
    if binascii.b2a_base64(raw, newline=False).rstrip(b"=") != standard.encode():
        raise Rejected("malformed", "the token is not base64url as it is written")
    return raw
