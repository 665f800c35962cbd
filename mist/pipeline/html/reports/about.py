"""Header and notes of every report page."""

from collections.abc import Sequence

import attrs

from mist.pipeline.html.page import Page, Section, Tile

__all__ = ["UNSEALED", "About"]

UNSEALED = (
    "Messages that the server had not sealed into the archive yet when this was made, and "
    "those that were gone from it: dropped by age, or erased."
)
ACCOUNTS = (
    "What was delivered after the time given above: a server writes its accounts every ten "
    "minutes, when it stops, and when it is told to seal; one that is killed loses what it had not "
    "written."
)


@attrs.frozen
class About:
    """The source of a report.

    Attributes:
        selected: the selection of messages, as (label, text).
        made: time of the report, Unix seconds.
        by: the command that made it.
    """

    selected: Sequence[tuple[str, str]]
    made: float
    by: str

    def page(
        self,
        title: str,
        says: str,
        tiles: Sequence[Tile],
        sections: Sequence[Section],
        omits: Sequence[str],
    ) -> Page:
        """A page with this header."""
        return Page(title, says, tiles, sections, self.selected, self.made, omits, self.by)
