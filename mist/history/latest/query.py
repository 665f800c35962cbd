"""What is asked of latest values: the patterns of tags, and one reader's query."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from mist.attributes import Attributes
from mist.history.selection import Selection

__all__ = ["LatestQuery", "Patterns", "covers"]


_FIRST: Final = 64  # entries looked at for a first page, so that it comes soon
_MOST: Final = 1_000
_FEWEST: Final = 16
_COMPARED: Final = 10_000  # entries compared for a page, about
_KNOWN: Final = 10_000  # keys of which something is known


def covers(kept: Iterable[str], pattern: str) -> bool:
    """Whether the latest values of a pattern are among those kept.

    `order:*` covers `order:*`, `order:eu:*` and `order:7`; it doesn't cover `order*`.
    """
    return any(
        pattern.startswith(each[:-1]) if each.endswith("*") else pattern == each for each in kept
    )


class Patterns:
    """Which tags are keys: those that match one of some patterns; `*` in the middle is itself."""

    __slots__ = ("_prefixes", "_whole")

    def __init__(self, patterns: Iterable[str]) -> None:
        encoded = [each.encode() for each in patterns]
        self._prefixes = tuple(each[:-1] for each in encoded if each.endswith(b"*"))
        self._whole = frozenset(each for each in encoded if not each.endswith(b"*"))

    def keys(self, tags: Sequence[bytes]) -> list[bytes]:
        """Those of some tags that are keys."""
        prefixes, whole = self._prefixes, self._whole
        return [tag for tag in tags if tag.startswith(prefixes) or tag in whole]


@attrs.define(eq=False)
class LatestQuery:
    """One reader's query, for the pages of one replay.

    Attributes:
        pattern: see `mist.message.is_tag_pattern`.
        attributes: returns those of the reader, who gets no message that is for others; None for
            one who gets all.
        most: entries to be looked at for the next page.
    """

    pattern: str
    attributes: Callable[[], Attributes | None]
    most: int = attrs.field(default=_FIRST, init=False)
    _known: dict[int, int] = attrs.field(factory=dict, init=False)
    _asked: tuple[Selection | None, Attributes | None] | None = attrs.field(
        default=None, init=False
    )

    def known(self, selection: Selection | None, attributes: Attributes | None) -> dict[int, int]:
        """What was found out for so many messages of a key that it isn't to be done for each page.

        Args:
            selection, attributes: what it was found out for; forgotten where they differ.
        """
        asked = self._asked
        if asked is None or asked[0] is not selection or asked[1] != attributes:
            self._asked = selection, attributes
            self._known.clear()
        elif len(self._known) > _KNOWN:
            self._known.clear()
        return self._known

    def note(self, compared: int) -> None:
        """Have pages of a size for which about as many entries are compared as is good."""
        most = self.most // 2 if compared > _COMPARED else self.most * 2
        self.most = min(max(most, _FEWEST), _MOST)
