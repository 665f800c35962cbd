"""Where channels are for one site, as far as its clients may know.

The messages of a channel are numbered together, whatever site they are for. So a client that is
bound to a site must not be told where the channel is: from two such numbers it could tell how much
other sites publish. It is told where the channel was with the last message for its own site, or for
every site. No message in between is for it, so both mean the same place.

That message is looked for once, among as many as are shown of a channel, and from there on only
among those that came since: one answer serves all clients of a site.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import attrs

from mist.audience import Audience
from mist.broker.attribute_index import is_global
from mist.commands import Since
from mist.history import ChannelPosition, History, Selection
from mist.history.cursor import Cursor
from mist.history.visibility import envelope_of
from mist.message import TagSet

__all__ = ["SitePositions", "is_for_site"]

_REMEMBERED: Final = 10_000  # channels, of all sites together
_PAGE: Final = 1_000  # messages
_PAGE_BYTES: Final = 1 << 20
_MICROSECONDS: Final = 1_000_000


def is_for_site(audience: Audience | None, tags: TagSet, site: str) -> bool:
    """Whether a message is for clients of a site, whatever else its audience asks of them."""
    return is_global(tags) or (audience is not None and ("site", site) in audience.others)


@attrs.frozen
class _Found:
    """What is known of a channel for a site.

    Attributes:
        position: of the last message for the site.
        upto: the id up to which that was looked for.
    """

    position: ChannelPosition
    upto: int


_NOTHING: Final = _Found(ChannelPosition(), 0)


class SitePositions:
    """See the module.

    Args:
        history: the log.
        size: messages of a channel that are looked at, from the last one back.
    """

    def __init__(self, history: History, size: int) -> None:
        self._history = history
        self._size = size
        self._known: OrderedDict[tuple[str, str], _Found] = OrderedDict()

    async def of(
        self, site: str, positions: Mapping[str, ChannelPosition]
    ) -> dict[str, ChannelPosition]:
        """The positions of channels for a site.

        Args:
            positions: of the channels for everyone.

        Raises:
            HistoryUnavailable: the history can't be read.
        """
        return {
            channel: await self._position(site, channel, position)
            for channel, position in positions.items()
        }

    async def _position(
        self, site: str, channel: str, position: ChannelPosition
    ) -> ChannelPosition:
        if is_global(frozenset({channel})):
            return position
        key = site, channel
        known = self._known.pop(key, _NOTHING)
        if position.id > known.upto:
            known = _Found(await self._look(site, channel, position, known), position.id)
        self._known[key] = known
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return known.position

    async def _look(
        self, site: str, channel: str, position: ChannelPosition, known: _Found
    ) -> ChannelPosition:
        """The position of the last message for the site, up to that of the channel."""
        selection = Selection([frozenset([channel])])
        cursor = Cursor(self._history)
        await cursor.begin(Since(last=self._size), selection, position.id)
        cursor.place = max(cursor.place, known.upto)
        found = known.position
        while cursor.place < position.id:
            piece = await cursor.read(
                selection, position.id, limit=_PAGE, max_bytes=_PAGE_BYTES, numbered=True
            )
            for stored in piece.page.stored:
                audience = envelope_of(stored).audience
                assert stored.numbers is not None
                for first, (tag_list, _, count), numbers in zip(
                    stored.firsts, stored.entries, stored.numbers, strict=True
                ):
                    if is_for_site(audience, tag_list.tags, site):
                        last = numbers[channel] + count - 1
                        found = ChannelPosition(
                            last,
                            first + count - 1,
                            round(stored.time * _MICROSECONDS),
                            min(position.floor, last),
                            position.age,
                        )
            cursor.take(piece)
        return found
