"""Reading the history for a poll, page by page."""

from collections.abc import Callable
from typing import Final

import trio

from mist.attributes import Attributes
from mist.commands import Since
from mist.history import Page, Selection
from mist.history.cursor import Cursor
from mist.history.visibility import visible_to
from mist.message import TagSet
from mist.protocols.event_forms import json_messages
from mist.sessions.sequencer import Sequencer
from mist.wire import ids_of

__all__ = ["Search"]

_MOST: Final = 1_000  # messages in an answer
_MOST_BYTES: Final = 1 << 20  # of messages in an answer; a larger message is sent alone


class Search:
    """Reads the history from a place on, until there is something to answer.

    Args:
        sequencer: of the history.
        wanted: returns the tag sets that may be read; called repeatedly, since a token can lose
            tags at any moment. Where none is left, the poll is cancelled by its session.
        attributes: returns those of the reader; called repeatedly, too.

    Attributes:
        place: everything selected up to this id was answered, or is in `messages`; None until
            known.
        recovered: whether nothing selected is missing: trimmed before it was read, or damaged.
        messages: as JSON.
    """

    def __init__(
        self,
        sequencer: Sequencer,
        wanted: Callable[[], frozenset[TagSet]],
        attributes: Callable[[], Attributes],
    ) -> None:
        self.recovered = True
        self.messages: list[bytes] = []
        self._sequencer = sequencer
        self._cursor = Cursor(sequencer.history)
        self._begun = False
        self._wanted = wanted
        self._attributes = attributes
        self._asked: frozenset[TagSet] = frozenset()
        self._selected: Selection | None = None

    @property
    def place(self) -> int | None:
        return self._cursor.place if self._begun else None

    async def begin(self, since: Since | None) -> None:
        """Determine the place to start from."""
        if since is not None:
            await self._sequencer.reach(since)
        start = self._sequencer.newest
        if since is None:
            self._cursor.place = start
        else:
            self.recovered = await self._cursor.begin(
                since, await self._selection(), start, self._attributes
            )
        self._begun = True

    async def read(self) -> bool:
        """Read a piece.

        Returns:
            Whether there is more to read now, of what there was when this was called.
        """
        cursor = self._cursor
        selection = await self._selection()
        piece = await cursor.read(
            selection, self._sequencer.newest, limit=_MOST, max_bytes=_MOST_BYTES
        )
        if self._wanted() != self._asked:
            return True  # the token has lost tags meanwhile; what they matched must not be sent
        if piece.missing is not None:
            self.recovered = False
        cursor.take(piece, self._take(piece.page))
        return not piece.page.complete

    def skip(self) -> None:
        """Move to the end: nothing selected has been published since all was read.

        Where a message for very many is being delivered, this poll may be among those who have
        yet to hear of it: then the next one reads that.
        """
        if not self._sequencer.delivery.midway:
            self._cursor.place = self._sequencer.newest

    async def _selection(self) -> Selection | None:
        wanted = self._wanted()
        if not wanted:
            await trio.sleep_forever()
        if self._asked != wanted:
            self._asked = wanted
            self._selected = Selection.asked(wanted)  # kept, since it caches its verdicts
        return self._selected

    def _take(self, page: Page) -> int:
        """Take as many messages as an answer may hold. Returns the last id taken."""
        size, last = 0, page.after
        for whole in page.stored:
            stored = visible_to(whole, self._attributes())
            if stored is None:
                continue
            pieces = json_messages(stored.entries, stored.firsts)
            ids = ids_of(stored.entries, stored.firsts)
            for id_, message in zip(ids, pieces, strict=True):
                size += len(message)
                if self.messages and (len(self.messages) == _MOST or size > _MOST_BYTES):
                    return last
                self.messages.append(message)
                last = id_
        return page.after
