"""What a poll looks for in the history, from one place to the next."""

from collections.abc import Callable
from typing import Final

import trio

from mist.commands import Since
from mist.history import History, Page, Selection
from mist.message import TagSet
from mist.protocols import ids_of
from mist.protocols.event_forms import json_messages
from mist.sequencer import Sequencer

__all__ = ["Search"]

_MOST: Final = 1_000  # messages in an answer
_MOST_BYTES: Final = 1 << 20  # of messages in an answer; one that is larger comes alone


class Search:
    """Reads on from a place in the history, until there is something to tell.

    Args:
        sequencer: of the history.
        wanted: the tag sets that may be read, looked at again and again, since a token can
            lose tags at any moment. Where none are left, whoever reads is cancelled.

    Attributes:
        place: up to where everything wanted was told, or is in `messages`; None until known.
        recovered: whether nothing was trimmed before it was read.
        messages: found, as JSON.
    """

    def __init__(self, sequencer: Sequencer, wanted: Callable[[], frozenset[TagSet]]) -> None:
        self.place: int | None = None
        self.recovered = True
        self.messages: list[bytes] = []
        self._sequencer = sequencer
        self._history: History = sequencer.history
        self._wanted = wanted
        self._selected: Selection | None = None
        self._trimmed = 0  # up to which id the client knows of what retention has taken

    async def begin(self, since: Since | None) -> None:
        """Find the place."""
        start = self._sequencer.newest
        if since is None:
            self.place = start
            return
        selection = await self._selection()
        # Before it is asked what is lost: what goes between the two counts as lost.
        self._trimmed = (await self._history.position()).trimmed
        if since.last is not None:
            self.place = await self._history.last(selection, since.last, upto=start)
            return
        if since.after or since.epoch is not None:
            self.recovered = await self._history.recovered(selection, since.after or 0, since.epoch)
        self.place = since.start(self._sequencer.epoch, start)

    @property
    def succeeded(self) -> bool:
        """Whether there is something to tell."""
        return bool(self.messages) or not self.recovered

    async def read(self) -> bool:
        """Read a piece.

        Returns:
            Whether there is more to read now, of what there was when this was called.
        """
        assert self.place is not None
        selection = await self._selection()
        page = await self._history.read(
            selection,
            after=self.place,
            upto=self._sequencer.newest,
            limit=_MOST,
            max_bytes=_MOST_BYTES,
        )
        if await self._is_trimmed(selection):
            self.recovered = False
        if self._wanted() != selection.alternatives:
            return True  # a token has lost tags meanwhile; nothing for them may be told
        self.place = self._take(page)
        return not page.complete

    def skip(self) -> None:
        """Nothing wanted has been published since all was read."""
        self.place = self._sequencer.newest

    async def _selection(self) -> Selection:
        wanted = self._wanted()
        if not wanted:
            await trio.sleep_forever()
        if self._selected is None or self._selected.alternatives != wanted:
            self._selected = Selection(wanted)  # which learns as it goes: worth keeping
        return self._selected

    async def _is_trimmed(self, selection: Selection) -> bool:
        """Whether something wanted has been trimmed that the client doesn't know of."""
        assert self.place is not None
        known = max(self.place, self._trimmed)
        self._trimmed = (await self._history.position()).trimmed
        return self._trimmed > known and not await self._history.recovered(selection, known)

    def _take(self, page: Page) -> int:
        """Keep what an answer may hold, and say up to where that is."""
        size, last = 0, page.after
        for stored in page.stored:
            pieces = json_messages(stored.entries, stored.firsts)
            ids = ids_of(stored.entries, stored.firsts)
            for id_, message in zip(ids, pieces, strict=True):
                size += len(message)
                if self.messages and (len(self.messages) == _MOST or size > _MOST_BYTES):
                    return last
                self.messages.append(message)
                last = id_
        return page.after
