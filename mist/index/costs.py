"""What the parts of a match cost, in units that its bounds are told in."""

from typing import Final

__all__ = ["HITS", "LONG", "PLACES", "VISIT"]

VISIT: Final = 8192  # slots gone through in the time it takes to get at a chunk's bitmaps
# In the time it takes to tell that nothing is for a message of few tags:
LONG: Final = 8  # more tags of it
PLACES: Final = 2  # places of the tree that are looked at
HITS: Final = 4  # entries that are found
