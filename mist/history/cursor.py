"""Cursors: a reader's position in a log, and which messages it could not get.

Two things can be missing for a reader: what retention has removed before it was read, and what
can't be read because the log is damaged. Neither ends the read. The gap is reported ahead of the
messages behind it, and what is left is delivered.

Sessions, polls and pages all read through a cursor, so all of them report gaps alike.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import attrs

from mist.attributes import Attributes
from mist.commands import Since
from mist.errors import HistoryDamaged, LatestOff
from mist.history import MAX_GROUP, History, LatestQuery, Page, Selection
from mist.history.latest import covers

__all__ = ["Cursor", "Lost", "Piece", "check_latest"]

_TRIES: Final = 3  # reads of a page that is being trimmed, before a loss is assumed


def check_latest(history: History, since: Since) -> None:
    """Check that a log keeps the latest values that are asked for, if any are.

    Raises:
        LatestOff: it doesn't.
    """
    if since.latest and not covers(history.latest_patterns, since.latest):
        raise LatestOff


def _none() -> None:
    return None


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
        latest: what is read are latest values; None for all messages.
    """

    def __init__(self, history: History, place: int = 0) -> None:
        self.place = place
        self.latest: LatestQuery | None = None
        self.lost: list[Lost] = []
        self._history = history
        self._trimmed = 0  # the id up to which the reader was told of trimmed messages

    async def begin(
        self,
        since: Since,
        selection: Selection | None,
        upto: int,
        attributes: Callable[[], Attributes | None] = _none,
    ) -> bool:
        """Determine the place to start from, and what to read.

        Args:
            upto: the newest id that is to be read.
            attributes: of the reader, see `LatestQuery`; for latest values, and the last few.

        Returns:
            Whether nothing selected is missing between what was requested and the place. What
            was trimmed before this call counts as reported with it.

        Raises:
            HistoryUnavailable: the log can't be read now.
            LatestOff: latest values are wanted that are not kept.
        """
        history = self._history
        check_latest(history, since)
        if since.latest:
            self.latest = LatestQuery(since.latest, attributes)
        # Read first, so that what is trimmed before the check below counts as lost.
        position = await history.position()
        self._trimmed = position.trimmed
        if since.last is not None:
            try:
                self.place = await history.last(
                    selection, since.last, upto=upto, attributes=attributes()
                )
            except HistoryDamaged as error:
                if not error.last:
                    raise
                self._pass_over(Lost(error.first, min(error.last, upto)))
                return False  # these are the last of those behind it
            return True
        if since.epoch in position.ancestors and position.has(since.after or 0, since.epoch):
            since = attrs.evolve(since, epoch=position.epoch)
        self.place = since.start(position.epoch, upto)
        if since.latest:
            return True  # nothing of what is removed was the newest, or it is no value any more
        if not since.after and since.epoch is None:
            return True  # everything kept was requested
        after = self.place if since.literal else since.after or 0
        return await history.recovered(selection, after, since.epoch)

    def expecting(
        self, selection: Selection | None, upto: int, order: tuple[int, ...] = ()
    ) -> AbstractContextManager[None]:
        """Say that the next piece will be read in this context; see `History.expecting`."""
        if self.latest is not None:
            return nullcontext()
        return self._history.expecting(selection, self.place, upto, order)

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
        if self.latest is not None:
            return await self._read_latest(self.latest, selection, upto, limit, max_bytes, packed)
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
            return self._lost(error, upto)
        return Piece(page, await self._missing(selection, trimmed), None, trimmed)

    async def _read_latest(
        self,
        latest: LatestQuery,
        selection: Selection | None,
        upto: int,
        limit: int,
        max_bytes: int,
        packed: bool,
    ) -> Piece:
        try:
            page = await self._history.latest(
                latest,
                selection,
                after=self.place,
                upto=upto,
                limit=limit,
                max_bytes=max_bytes,
                packed=packed,
            )
        except HistoryDamaged as error:
            return self._lost(error, upto)
        return Piece(page, None, None, self._trimmed)

    def _lost(self, error: HistoryDamaged, upto: int) -> Piece:
        """What can't be read, as the next piece. Raises `error` where that is all."""
        if error.last <= self.place:
            raise error
        lost = Lost(max(error.first, self.place + 1), min(error.last, upto))
        page = Page([], lost.last, lost.last == upto)
        return Piece(page, lost.last + 1, lost, self._trimmed)

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
