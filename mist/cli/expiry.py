"""`--expires`: a moment, or a time from now on."""

import math
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

import click

__all__ = ["NEVER", "Expiry"]

NEVER: Final = "never"

_FROM_NOW: Final = re.compile(r"([0-9]{1,9})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_FORMS: Final = "expected 90s, 15m, 12h, 30d or 8w from now on, or a moment with its time zone: "


class Expiry(click.ParamType[float]):
    """Unix seconds, from `30d` or `2027-01-01T00:00Z`; infinite from `never`, where it is allowed.

    Args:
        never: whether `never` is allowed.
        clock: now, Unix seconds.
    """

    name = "when"

    def __init__(self, *, never: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._never = never
        self._clock = clock

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See the class."""
        if isinstance(value, float):
            return value
        text = str(value)
        if self._never and text == NEVER:
            return math.inf
        if match := _FROM_NOW.fullmatch(text):
            return self._clock() + int(match[1]) * _SECONDS[match[2]]
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is None or moment.utcoffset() is None:
            self.fail(f"{text!r}: {_FORMS}2027-01-01T00:00Z", param, ctx)
        return moment.timestamp()
