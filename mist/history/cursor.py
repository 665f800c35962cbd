"""Cursors: a reader's position in a log, and which messages it could not get.

Two things can be missing for a reader: what retention has removed before it was read, and what
can't be read because the log is damaged. Neither ends the read. The gap is reported ahead of the
messages behind it, and what is left is delivered.

Sessions, polls and pages all read through a cursor, so all of them report gaps alike.
"""

from typing import Final

import attrs

from mist.commands import Since
from mist.errors import HistoryDamaged
from mist.history import MAX_GROUP, History, Page, Selection

__all__ = ["Cursor", "Lost", "Piece"]

_TRIES: Final = 3  # reads of a page that is being trimmed, before a loss is assumed


@attrs.frozen
class Lost:
    """Ids that can't be read: those of a damaged block.

    Attributes:
        first, last: the lowest and the highest.
    """

    first: int
    last: int


@attrs.frozen
class Piece:
    """The next page of a read, and the gap before it.

    Attributes:
        page: the messages; empty where the next block is damaged.
        missing: None, or an id before which something selected is missing, ahead of the page.
        lost: the ids missing there, where damage is the cause.
        trimmed: the highest id that had been trimmed when it was read.
    """

    page: Page
    missing: int | None
    lost: Lost | None
    trimmed: int


class Cursor:
    """See the module.

    Args:
        history: the log to read.
        place: where to start, unless `begin` determines it.

    Attributes:
        place: up to this id everything selected was taken, or reported as missing.
        lost: the damaged ids so far, ascending, neighbours joined.
    """

    def __init__(self, history: History, place: int = 0) -> None:
        self.place = place
        self.lost: list[Lost] = []
        self._history = history
        self._trimmed = 0  # the id up to which the reader was told of trimmed messages

    async def begin(self, since: Since, selection: Selection | None, upto: int) -> bool:
        """Determine the place to start from.

        Args:
            upto: the newest id that is to be read.

        Returns:
            Whether nothing selected is missing between what was requested and the place. What
            was trimmed before this call counts as reported with it.

        Raises:
            HistoryUnavailable: the log can't be read now.
        """
        history = self._history
        # Read first, so that what is trimmed before the check below counts as lost.
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
        if since.epoch in position.ancestors and position.has(since.after or 0, since.epoch):
            since = attrs.evolve(since, epoch=position.epoch)
        self.place = since.start(position.epoch, upto)
        if not since.after and since.epoch is None:
            return True  # everything kept was requested
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
        packed: bool = False,
    ) -> Piece:
        """Read the next piece. The place does not move; see `take`.

        Args:
            upto, limit, max_bytes, numbered, packed: see `History.read`.

        Raises:
            HistoryUnavailable: the log can't be read now.
            HistoryDamaged: neither this piece nor anything behind it can be read.
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
                    packed=packed,
                )
                before, trimmed = trimmed, (await history.position()).trimmed
                if trimmed == before:
                    break
                # Trimmed before or after the page was read: unknown, so read again.
        except HistoryDamaged as error:
            if error.last <= self.place:
                raise
            lost = Lost(max(error.first, self.place + 1), min(error.last, upto))
            page = Page([], lost.last, lost.last == upto)
            return Piece(page, lost.last + 1, lost, self._trimmed)
        return Piece(page, await self._missing(selection, trimmed), None, trimmed)

    def take(self, piece: Piece, after: int | None = None) -> None:
        """Move the place behind a piece.

        Args:
            after: the id up to which the piece was used; None is all of it.
        """
        if piece.lost is not None:
            self._pass_over(piece.lost)
            return
        self.place = piece.page.after if after is None else after
        # What was trimmed beyond that is reported where it would have come.
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
