"""The attributes of a token that limit what all its sessions do together."""

import math
import re
from typing import Final

from mist.attributes import Attributes
from mist.fields import invalid

__all__ = ["LIMITS", "check_limits", "limit_of"]

LIMITS: Final = frozenset({"rate", "bytes", "connections"})
"""What each limits: see `mist.sessions.token_limits`."""

_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?", re.ASCII)


def limit_of(attributes: Attributes, name: str) -> float:
    """A limit; infinite where there is none, or what there is was never checked to be one."""
    text = attributes.others.get(name, "")
    number = float(text) if _NUMBER.fullmatch(text) else 0.0
    return number if number > 0 else math.inf


def check_limits(attributes: Attributes) -> Attributes:
    """Check those limits that there are. Returns the attributes.

    Raises:
        InvalidAudience: one isn't a number above 0, of connections a whole one.
    """
    for name in LIMITS.intersection(attributes.others):
        limit = limit_of(attributes, name)
        if limit == math.inf or (name == "connections" and not limit.is_integer()):
            what = "a whole number" if name == "connections" else "a number"
            raise invalid(f"{name} is {what} above 0")
    return attributes
