"""What nodes ask each other of presence, and how a node answers.

    since    at which tag sets something has changed since an answer before
    at       who is at some tag sets

Nobody is asked who is there but for tag sets that have changed, or that were not watched before: so
what watching costs the nodes is one short answer a second, and one for each change.
"""

from typing import Final

import msgspec
import trio

from mist.broker.presence import NOBODY, Identity, Presence, PresenceLog, Seen
from mist.engine.members import MAX_ANSWER
from mist.message import TagSet
from mist.sessions.presence_rooms import RoomKey
from mist.turns import outcome_of

__all__ = [
    "PresenceAt",
    "PresenceSince",
    "answer_presence",
    "ask_at",
    "ask_since",
    "read_at",
    "read_since",
]

_MOST_CHANGES: Final = 5_000  # tag sets in an answer; where there are more, all may have changed
_ROOM: Final = 64  # bytes of an answer for what is around


class PresenceSince(msgspec.Struct, frozen=True, array_like=True, tag="presence-since"):
    """What has changed since. The versions are those of each node's last answer."""

    versions: dict[str, int]


class PresenceAt(msgspec.Struct, frozen=True, array_like=True, tag="presence-at"):
    """Who is there.

    Attributes:
        number: another one for each question: what was answered a moment ago is too old.
        rooms: tags, and the site whose sessions are meant; empty for all.
    """

    number: str
    rooms: list[tuple[list[str], str]]


class _Changes(msgspec.Struct, frozen=True, array_like=True):
    version: int
    changed: list[list[str]] | None  # None: whatever is watched may have


class _There(msgspec.Struct, frozen=True, array_like=True):
    sessions: int
    since: list[tuple[Identity, float]] | None

    @property
    def seen(self) -> Seen:
        return Seen(self.sessions, None if self.since is None else dict(self.since))


_encode = msgspec.msgpack.Encoder().encode
_read_changes = msgspec.msgpack.Decoder(_Changes).decode
_read_there = msgspec.msgpack.Decoder(list[_There]).decode


def ask_since(versions: dict[str, int]) -> bytes:
    """The question `PresenceSince`."""
    return _encode(PresenceSince(versions))


def ask_at(number: str, rooms: list[RoomKey], most: int) -> tuple[bytes, int]:
    """The question `PresenceAt`, for as many rooms as fit into `most` bytes; and how many do."""
    asked = [(sorted(tags), site) for tags, site in rooms]
    while len(body := _encode(PresenceAt(number, asked))) > most and len(asked) > 1:
        asked = asked[: len(asked) // 2]
    return body, len(asked)


def read_since(answer: bytes) -> tuple[int, list[TagSet] | None] | None:
    """A version, and what has changed; None for what is no answer."""
    try:
        changes = _read_changes(answer)
    except msgspec.MsgspecError:
        return None
    if changes.changed is None:
        return changes.version, None
    return changes.version, list(map(frozenset, changes.changed))


def read_at(answer: bytes) -> list[Seen]:
    """Who is in the first of the rooms that were asked for; none where it is no answer."""
    try:
        return [each.seen for each in _read_there(answer)]
    except msgspec.MsgspecError:
        return []


async def answer_presence(
    presence: Presence | None, node: str, question: PresenceSince | PresenceAt
) -> bytes:
    """The answer of a node, at which nobody is where presence is off."""
    await trio.lowlevel.checkpoint()
    if isinstance(question, PresenceSince):
        return _encode(_changes(presence, question.versions.get(node, 0)))
    there: list[bytes] = []
    left = MAX_ANSWER - _ROOM
    for tags, site in question.rooms:
        seen = (
            NOBODY if presence is None else await outcome_of(presence.look(frozenset(tags), site))
        )
        since = None if seen.since is None else list(seen.since.items())
        body = _encode(_There(seen.sessions, since))
        left -= len(body)
        if left < 0:
            break
        there.append(body)
    return _encode([msgspec.Raw(each) for each in there])


def _changes(presence: Presence | None, version: int) -> _Changes:
    if presence is None:
        return _Changes(1, [] if version else None)
    if presence.log is None:
        presence.log = PresenceLog()
    changed = presence.log.since(version)
    if changed is None or len(changed) > _MOST_CHANGES:
        return _Changes(presence.log.version, None)
    answer = _Changes(presence.log.version, list(map(sorted, changed)))
    return answer if len(_encode(answer)) <= MAX_ANSWER else _Changes(presence.log.version, None)
