"""Planning: what changes of tokens come to, before anything is stored or changed."""

import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, assert_never

import attrs

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.auth.changes import Amend, ById, Change, Discard, Enroll, Outcome, Remove
from mist.auth.digests import Digests
from mist.auth.limits import check_limits
from mist.auth.record import Record
from mist.commands import (
    AddTags,
    Register,
    RemoveTags,
    Revoke,
    RevokeIssued,
    SetAttributes,
    SetTerms,
    Unregister,
)
from mist.errors import (
    CommandError,
    InvalidAudience,
    InvalidExpiry,
    InvalidToken,
    TokenExists,
    TokenNotFound,
    TooManyTags,
)
from mist.message import TagSet
from mist.terms import MAX_NAME, UNCHANGED, Terms

__all__ = ["MAX_TAGS", "Planner", "Step", "net_changes"]

TakesId = AddTags | RemoveTags | SetAttributes | SetTerms | Revoke
"""Commands whose token may be named by its id as well."""

MAX_TAGS: Final = 1_000  # tags that one token may have in all


@attrs.frozen
class Step:
    """One change that changes something."""

    digest: bytes
    old: Record | None
    new: Record | None


@attrs.frozen
class Planner:
    """See the module.

    Attributes:
        digests: of the registry's tokens.
        max_tags: most tags that one token may get.
        clock: the time for `Record.created`, Unix seconds.
        revocation_life: seconds for which the revocation of what was issued elsewhere is kept.
    """

    digests: Digests
    max_tags: int = MAX_TAGS
    clock: Callable[[], float] = time.time
    revocation_life: float = 30 * 86_400.0

    def plan(
        self,
        changes: Sequence[Change],
        records: Mapping[bytes, Record],
        ids: Mapping[str, bytes],
        now: float,
    ) -> tuple[list[Outcome], list[Step]]:
        """Work out changes, in order, each on top of those before it.

        Args:
            records: by digest, as they are now.
            ids: digests by the records' ids.
            now: the time by which tokens expire, Unix seconds.

        Returns:
            an outcome for each change, and the steps of those that change something.
        """
        outcomes: list[Outcome] = []
        steps: list[Step] = []
        planned: dict[bytes, Record | None] = {}
        unknown: CommandError
        for change in changes:
            digest: bytes | None
            if isinstance(change, RevokeIssued):
                digest, unknown = self.digests.derive(change.kind, change.value), InvalidToken()
            elif isinstance(change, ById):
                digest, unknown = ids.get(change.id), TokenNotFound()
            else:
                digest, unknown = self.digests.of(change.token), InvalidToken()
            if digest is None:
                outcomes.append(unknown)
                continue
            old = planned[digest] if digest in planned else records.get(digest)
            if old is None and isinstance(change, TakesId) and change.token in ids:
                digest = ids[change.token]
                old = planned[digest] if digest in planned else records[digest]
                if old is not None and old.id != change.token:
                    old = None
            if isinstance(change, ById) and old is not None and old.id != change.id:
                old = None  # unregistered and registered anew before it
            if old is not None and isinstance(change, Register | Enroll) and old.expired(now):
                # Nobody can use it any more; it only waits to be removed.
                planned[digest] = None
                steps.append(Step(digest, old, None))
                old = None
            outcome = self._outcome(change, digest, old, now)
            outcomes.append(outcome)
            if not isinstance(outcome, CommandError) and outcome != old:
                planned[digest] = outcome
                steps.append(Step(digest, old, outcome))
        return outcomes, steps

    # Errors are returned rather than raised and caught: a raised one keeps its frames, and
    # they hold the token's text.
    def _outcome(self, change: Change, digest: bytes, old: Record | None, now: float) -> Outcome:
        match change:
            case Unregister():
                return None
            case Register(tags=tags, terms=terms):
                given = NO_ATTRIBUTES
                return self._new(digest, tags, given, terms, now) if old is None else TokenExists()
            case Enroll(tags=tags, attributes=given, terms=terms):
                return self._new(digest, tags, given, terms, now) if old is None else TokenExists()
            case Revoke():
                return TokenNotFound() if old is None else None
            case AddTags(tags=tags):
                return TokenNotFound() if old is None else self._retagged(old, old.tags | tags)
            case RemoveTags(tags=tags):
                return TokenNotFound() if old is None else self._retagged(old, old.tags - tags)
            case SetAttributes(attributes=given, unset=unset):
                return TokenNotFound() if old is None else _amended(old, given, unset)
            case SetTerms(terms=terms):
                return TokenNotFound() if old is None else _with_terms(old, terms, now)
            case Amend(add=add, remove=remove, attributes=given, unset=unset, terms=terms):
                if old is None:
                    return TokenNotFound()
                new = self._retagged(old, (old.tags | add) - remove)
                if isinstance(new, Record):
                    new = _amended(new, given, unset)
                return _with_terms(new, terms, now) if isinstance(new, Record) else new
            case Remove():
                return TokenNotFound() if old is None else None
            case RevokeIssued():
                return self._revocation(change, digest, old, now)
            case Discard():
                return None if old is None or old.expired(now) else old
            case _:
                assert_never(change)

    def _new(
        self, digest: bytes, tags: TagSet, attributes: Attributes, terms: Terms, now: float
    ) -> Outcome:
        if len(tags) > self.max_tags:
            return TooManyTags(self.max_tags)
        if attributes.others:
            try:
                check_limits(attributes)
            except InvalidAudience as error:
                return error.with_traceback(None)
        new = Record(secrets.token_hex(8), digest, tags, self.clock(), attributes)
        return new if terms is UNCHANGED else _with_terms(new, terms, now)

    def _revocation(
        self, change: RevokeIssued, digest: bytes, old: Record | None, now: float
    ) -> Record:
        expires = now + self.revocation_life
        if old is not None:
            return attrs.evolve(old, tags=frozenset(), created=now, expires=expires)
        name = f"revoked: {change.kind} {change.value}"[:MAX_NAME].strip()
        return Record(
            secrets.token_hex(8),
            digest,
            frozenset(),
            now,
            expires=expires,
            name=name if name.isprintable() else f"revoked: {change.kind}",
        )

    def _retagged(self, old: Record, tags: TagSet) -> Outcome:
        # Only growth is refused: where the limit was lowered, a token that is over it can
        # still lose tags, and be given again those it has.
        if len(tags) > max(self.max_tags, len(old.tags)):
            return TooManyTags(self.max_tags)
        return attrs.evolve(old, tags=tags)


def _amended(old: Record, given: Attributes, unset: frozenset[str]) -> Outcome:
    try:
        if given.others:
            check_limits(given)
        return attrs.evolve(old, attributes=old.attributes.amended(given, unset))
    except InvalidAudience as error:
        return error.with_traceback(None)


def _with_terms(old: Record, terms: Terms, now: float) -> Outcome:
    expires = old.expires if terms.expires is None else terms.expires
    if expires == math.inf:
        expires = None
    elif terms.expires is not None and terms.expires <= now:
        return InvalidExpiry(f"{InvalidExpiry.message}: it has passed")
    name = old.name if terms.name is None else terms.name
    return attrs.evolve(old, expires=expires, name=name)


def net_changes(
    steps: Iterable[Step], records: Mapping[bytes, Record]
) -> dict[bytes, Record | None]:
    """What steps come to, token by token; nothing for a token that is in the end as it was."""
    after = {step.digest: step.new for step in steps}  # the last step on a token counts
    return {digest: record for digest, record in after.items() if record != records.get(digest)}
