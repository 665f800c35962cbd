"""What those who watch a tag set's presence are told: a list, then who joins and leaves.

    first look                      the list, or above `MOST_LISTED` sessions how many there are
    somebody new                    joined
    somebody is gone for `LINGER`   left; who is back before is not told of
    more than `MOST_LISTED`         from then on only how many, without a list
    at most `RELISTED` again        the list, which replaces what was known

Time is an argument, so nothing here waits.
"""

from typing import Final

from mist.broker.presence import MOST_LISTED, Identity, Seen
from mist.message import TagSet
from mist.replies import Attendee, PresenceChanged, Present

__all__ = ["LINGER", "RELISTED", "PresenceView"]

LINGER: Final = 5.0
"""Seconds for which somebody who is gone is still shown."""

_MOST_SHOWN: Final = 2 * MOST_LISTED  # attendees, those among them who are gone for a moment

RELISTED: Final = 900
"""Sessions at which those who are only counted are listed again: fewer than at which that ended,
so that a list isn't sent again and again while their number goes to and fro."""


class PresenceView:
    """See the module.

    Attributes:
        tags, site: of what; see `Presence.look`.
        due: when it has to be updated although nothing changes; None for never.
    """

    __slots__ = ("_count", "_leaving", "_shown", "due", "site", "tags")

    def __init__(self, tags: TagSet, site: str) -> None:
        self.tags = tags
        self.site = site
        self.due: float | None = None
        self._shown: dict[Identity, float] | None = None  # None while only counted, and at first
        self._leaving: dict[Identity, float] = {}  # until when each is shown still, soonest first
        self._count: int | None = None  # None before the first look

    @property
    def is_ready(self) -> bool:
        """Whether there was a first look."""
        return self._count is not None

    @property
    def is_listed(self) -> bool:
        """Whether there is a list, and not only a number."""
        return self._shown is not None

    @property
    def present(self) -> Present:
        """All that there is to show. Once it `is_ready`."""
        assert self._count is not None
        if self._shown is None:
            return Present(self.tags, self._count, None)
        return Present(self.tags, self._count, _attendees(self._shown))

    def update(self, seen: Seen, now: float) -> Present | PresenceChanged | None:
        """Take a look into account. O(listed).

        Args:
            now: seconds, by a clock that never goes back.

        Returns:
            What to tell; None where nothing has changed.
        """
        self.due = None
        listed = seen.since
        if listed is not None and self._count is not None and self._shown is None:
            listed = listed if seen.sessions <= RELISTED else None
        if listed is None:
            return self._counted(seen.sessions)
        if self._shown is None:
            self._shown = dict(listed)
            self._count = len(listed)
            return self.present
        return self._changed(self._shown, listed, now)

    def _counted(self, sessions: int) -> Present | None:
        if self._shown is None and self._count == sessions:
            return None
        self._shown = None
        self._leaving.clear()
        self._count = sessions
        return self.present

    def _changed(
        self, shown: dict[Identity, float], listed: dict[Identity, float], now: float
    ) -> PresenceChanged | Present | None:
        joined = {each: since for each, since in listed.items() if each not in shown}
        leaving = self._leaving
        for back in leaving.keys() & listed.keys():
            del leaving[back]
        for gone in shown.keys() - listed.keys():
            leaving.setdefault(gone, now + LINGER)
        left: dict[Identity, float] = {}
        for each, until in list(leaving.items()):
            if until > now:
                self.due = until
                break
            del leaving[each]
            left[each] = shown.pop(each)
        shown.update(joined)
        if len(shown) > _MOST_SHOWN:  # some come under ever new names
            return self._counted(len(listed))
        self._count = len(shown)
        if not joined and not left:
            return None
        return PresenceChanged(self.tags, _attendees(joined), _attendees(left), self._count)


def _attendees(since: dict[Identity, float]) -> list[Attendee]:
    """Those who are there, the first to come first."""
    ordered = sorted(since.items(), key=lambda item: (item[1], item[0]))
    return [Attendee(user, client, when) for (user, client, _), when in ordered]
