"""A reader's place in a log: it moves on, and knows what was lost on the way.

Two things can be missing where somebody reads: what retention has taken before it was read, and
what can't be read since the log is damaged there. Neither ends a reading. It is said that
something is missing, ahead of what comes behind it, and what is left is worth having.

Sessions, polls and pages all read through one of these, so all of them tell the same truth.
"""

from typing import Final

import attrs

from mist.commands import Since
from mist.errors import HistoryDamaged
from mist.history import MAX_GROUP, History, Page, Selection

__all__ = ["Cursor", "Lost", "Piece"]

_TRIES: Final = 3  # readings of a page that is being trimmed, before a loss is told to be safe


@attrs.frozen
class Lost:
    """Ids that can't be read, whatever was there: those of a damaged block.

    Attributes:
        first, last: the lowest and the highest.
    """

    first: int
    last: int


@attrs.frozen
class Piece:
    """What comes next.

    Attributes:
        page: what was found; empty where the block that came next is damaged.
        missing: None, or an id before which something wanted is missing, ahead of the page.
        lost: what is missing there, where damage took it.
        trimmed: up to which id messages had been trimmed when it was read.
    """

    page: Page
    missing: int | None
    lost: Lost | None
    trimmed: int


class Cursor:
    """See the module.

    Args:
        history: what is read.
        place: where to begin, unless `begin` finds that out.

    Attributes:
        place: up to this id everything wanted was taken, or said to be missing.
        lost: what damage took of it, in the order of the ids, neighbours made one.
    """

    def __init__(self, history: History, place: int = 0) -> None:
        self.place = place
        self.lost: list[Lost] = []
        self._history = history
        self._trimmed = 0  # up to which id the reader knows of what retention has taken

    async def begin(self, since: Since, selection: Selection | None, upto: int) -> bool:
        """Find the place.

        Args:
            upto: the newest id that is to be read.

        Returns:
            Whether nothing wanted is missing between what was asked for and the place. What
            had been trimmed by then counts as told with this.

        Raises:
            HistoryUnavailable: it can't be found out.
        """
        history = self._history
        # Before it is asked what is lost: what goes between the two counts as lost.
        position = await history.position()
        self._trimmed = position.trimmed
        if since.last is not None:
            try:
                self.place = await history.last(selection, since.last, upto=upto)
            except HistoryDamaged as error:
                if not error.last:
                    raise
                self._pass_over(Lost(error.first, min(error.last, upto)))
                return False  # these are the last of those behind it
            return True
        self.place = since.start(position.epoch, upto)
        if not since.after and since.epoch is None:
            return True  # what is kept is all that was asked for
        after = self.place if since.literal else since.after or 0
        return await history.recovered(selection, after, since.epoch)

    async def read(
        self,
        selection: Selection | None,
        upto: int,
        *,
        limit: int = 2 * MAX_GROUP,
        max_bytes: int = 2 << 20,
        numbered: bool = False,
    ) -> Piece:
        """The next piece. The place stays; see `take`.

        Args:
            upto, limit, max_bytes, numbered: see `History.read`.

        Raises:
            HistoryUnavailable: it can't be read now.
            HistoryDamaged: nor can what lies behind.
        """
        history = self._history
        trimmed = (await history.position()).trimmed
        try:
            for _ in range(_TRIES):
                page = await history.read(
                    selection,
                    after=self.place,
                    upto=upto,
                    limit=limit,
                    max_bytes=max_bytes,
                    numbered=numbered,
                )
                before, trimmed = trimmed, (await history.position()).trimmed
                if trimmed == before:
                    break
                # Trimmed while it was read, before or after, nobody knows: so once more.
        except HistoryDamaged as error:
            if error.last <= self.place:
                raise
            lost = Lost(max(error.first, self.place + 1), min(error.last, upto))
            page = Page([], lost.last, lost.last == upto)
            return Piece(page, lost.last + 1, lost, self._trimmed)
        return Piece(page, await self._missing(selection, trimmed), None, trimmed)

    def take(self, piece: Piece, after: int | None = None) -> None:
        """Go on behind a piece.

        Args:
            after: the id up to which it was taken; None is all of it.
        """
        if piece.lost is not None:
            self._pass_over(piece.lost)
            return
        self.place = piece.page.after if after is None else after
        # What has been trimmed beyond that is said where it would have come.
        self._trimmed = min(piece.trimmed, self.place)

    async def _missing(self, selection: Selection | None, trimmed: int) -> int | None:
        """The lowest id that is kept, where something wanted has been trimmed before a page."""
        known = max(self.place, self._trimmed)
        if trimmed <= known or await self._history.recovered(selection, known):
            return None
        return (await self._history.position()).first

    def _pass_over(self, lost: Lost) -> None:
        self.place = lost.last
        if self.lost and self.lost[-1].last + 1 == lost.first:
            lost = Lost(self.lost.pop().first, lost.last)
        self.lost.append(lost)
