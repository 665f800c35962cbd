"""Weak tokens: those that can be guessed. Nothing is refused for it; who made one is warned.

An estimate from below of what a text took to choose: the entropy of its letters, or of the steps
from each to the next, whichever is less, for all of it but repeats. Random text of 16 hexadecimal
digits has some 50 bits by that, `password` 20, `abcdefghijkl` none, and so has `1111111111111111`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

__all__ = ["weakness"]

_SHORTEST: Final = 16  # characters
_BITS: Final = 40.0


def weakness(token: str) -> str | None:
    """Why a token is weak, to be read after "the token"; None where it isn't. O(length)."""
    if len(token) < _SHORTEST:
        return f"is short: it has fewer than {_SHORTEST} characters, and may be guessed"
    codes = [ord(letter) for letter in token]
    steps = [after - before for before, after in pairwise(codes)]
    if min(_bits(codes), _bits(steps)) < _BITS:
        return "is regular, and may be guessed"
    return None


def _bits(values: Sequence[int]) -> float:
    counts = Counter(values).values()
    bits = sum(count * math.log2(len(values) / count) for count in counts)
    # What is there twice was not chosen twice: as much counts as there are different pairs.
    return bits * (len(set(pairwise(values))) + 1) / len(values)
