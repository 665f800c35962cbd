"""Occasions: what a server tells services and programs that embed it, beside messages.

    connected      a session began
    disconnected   it ended
    occupied       the first session is present at a tag, at any node
    vacated        the last one has left it, some seconds ago
    restarted      a server has started

As a message an occasion is JSON, tagged `mist:connected` and so on. The tag that it is about stands
beside that as `mist:tag:room:7`, never as `room:7` itself: what may subscribe to `room:7` would get
the event then, and no token may. No grant covers what begins with `mist:`.
"""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Final

import attrs
import msgspec

from mist.message import EVENTS, MAX_TAG, TagSet

__all__ = ["Hook", "Kind", "Occasion", "event_tags", "tags_about"]

_TAG: Final = f"{EVENTS}tag:"


class Kind(StrEnum):
    """Kinds of occasions."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    OCCUPIED = "occupied"
    VACATED = "vacated"
    RESTARTED = "restarted"


@attrs.frozen
class Occasion:
    """Something that has happened.

    Attributes:
        at: when, Unix seconds.
        node: the server's name; see `--node`.
        session: the name of the session, as `/v1/connections` has it; empty where it is none.
        token: registry id of its token; empty for services.
        user, client: its attributes then.
        endpoint: the listener's kind: `tcp`, `ws`, `sse`.
        reason: why it ended.
        code: the close code.
        tag: that was occupied or vacated.
        version: of a server that has started.
    """

    kind: Kind
    at: float
    node: str
    session: str = ""
    token: str = ""
    user: str = ""
    client: str = ""
    endpoint: str = ""
    reason: str = ""
    code: int = 0
    tag: str = ""
    version: str = ""

    @property
    def tags(self) -> TagSet:
        """Those of its message. A tag that is too long with its mark stands in the data only."""
        return event_tags(self.kind, self.tag)

    @property
    def data(self) -> bytes:
        """Its message: what is known of it, as JSON."""
        fields: dict[str, Any] = {"event": self.kind.value, "at": round(self.at, 3)}
        for name in _FIELDS:
            value = getattr(self, name)
            if value:
                fields[name] = value
        if self.tag:
            fields["tags"] = [self.tag]
        return msgspec.json.encode(fields)


_FIELDS: Final = (
    "node",
    "session",
    "token",
    "user",
    "client",
    "endpoint",
    "reason",
    "code",
    "version",
)

Hook = Callable[[Occasion], Awaitable[None] | None]
"""Called with each occasion, in order; may be async."""


def event_tags(kind: Kind, tag: str = "") -> TagSet:
    """The tags of the messages of a kind, about a tag."""
    about = f"{_TAG}{tag}"
    kinds = f"{EVENTS}{kind.value}"
    return frozenset({kinds, about} if tag and len(about.encode()) <= MAX_TAG else {kinds})


def tags_about(tags: TagSet) -> list[str]:
    """The tags that an event is about, from those of its message."""
    return [tag[len(_TAG) :] for tag in tags if tag.startswith(_TAG)]
