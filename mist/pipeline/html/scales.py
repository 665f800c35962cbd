"""Formatting of numbers and times, and round values for axes."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import attrs

__all__ = [
    "DAY",
    "HOUR",
    "NOTHING",
    "Scale",
    "bucket",
    "count",
    "day",
    "is_uneven",
    "moment",
    "number_ticks",
    "power_ticks",
    "share",
    "short",
    "size",
    "size_ticks",
    "span",
    "time_ticks",
]

HOUR: Final = 3600
DAY: Final = 24 * HOUR
# Steps of a time axis. All divide a day or are whole days, so that ticks fall on midnights.
STEPS: Final = (60, 300, 900, 1800, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR,
                DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 364 * DAY)  # fmt: skip
NOTHING: Final = "\N{EN DASH}"  # shown for a missing figure
_UNEVEN: Final = 50  # times; less than that is still visible on a linear axis
NO_BREAK: Final = "\N{NO-BREAK SPACE}"


def count(value: float) -> str:
    """A number in full: `1,234,567`; a small fraction has three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else _three(value)


def short(value: float) -> str:
    """A number in short form: `950`, `1.2 k`, `34 M`. At most three digits."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit * 0.9995:
            return f"{_three(value / limit)}{NO_BREAK}{unit}"
    return _three(value)


def size(octets: float) -> str:
    """Bytes, in powers of 1024: `12 MiB`."""
    for limit, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(octets) >= limit:
            return f"{_three(octets / limit)}{NO_BREAK}{unit}"
    return f"{octets:.0f}{NO_BREAK}B"


def share(part: float, whole: float) -> str:
    """`12.3 %`; a small share is never rounded to 0, nor a large one to 100."""
    if not whole:
        return NOTHING
    percent = 100 * part / whole
    if 0 < percent < 0.01:
        return f"<{NO_BREAK}0.01{NO_BREAK}%"
    if 99.99 < percent < 100:
        return f">{NO_BREAK}99.99{NO_BREAK}%"
    return f"{_three(percent)}{NO_BREAK}%"


def _three(value: float) -> str:
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-9))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def moment(seconds: float) -> str:
    """`2026-11-21 14:05:09 UTC`, from Unix seconds."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def day(seconds: float) -> str:
    """`2026-11-21`, of Unix seconds, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


def span(seconds: float) -> str:
    """`45 minutes`, `6 hours`, `12 days`: in the largest unit that fits."""
    for unit, word in ((DAY, "day"), (HOUR, "hour"), (60, "minute"), (1, "second")):
        if seconds >= unit:
            return f"{_three(seconds / unit)} {word}{'' if seconds == unit else 's'}"
    return "less than a second"


def number_ticks(largest: float, most: int = 5) -> list[float]:
    """Round numbers from 0 to at least `largest`; at least two."""
    if largest <= 0:
        return [0, 1]
    rough = largest / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n * most >= largest * (1 - 1e-9))
    if largest >= 1:
        step = max(step, 1)  # counts have no fractions
    return [step * n for n in range(math.ceil(largest / step - 1e-9) + 1)]


def power_ticks(largest: float, most: int = 5) -> list[float]:
    """0 and powers of ten, to at least `largest`; for a logarithmic axis."""
    powers = max(1, math.ceil(math.log10(max(largest, 1)) - 1e-9))
    step = math.ceil(powers / most)
    return [0, *(10.0**n for n in range(step, powers + step, step))]


def is_uneven(values: Sequence[float]) -> bool:
    """Whether the largest would flatten others on a linear scale: they could not be told from 0."""
    known = [value for value in values if value > 0]
    return bool(known) and max(known) > _UNEVEN * min(known)


@attrs.frozen
class Scale:
    """Places values on an axis from 0 to 1.

    Attributes:
        largest: the value at 1.
        logarithmic: by log(1 + value), so that 0 has a place.
    """

    largest: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 for 0, 1 for the largest."""
        if self.logarithmic:
            return math.log1p(value) / math.log1p(self.largest)
        return value / self.largest


def size_ticks(largest: float, most: int = 5) -> list[float]:
    """The same for bytes: round in KiB, MiB …"""
    unit = 1 << 10 * max(0, (int(largest).bit_length() - 1) // 10)
    return [tick * unit for tick in number_ticks(largest / unit, most)]


def time_ticks(
    first: float, last: float, most: int, least: int = STEPS[0]
) -> list[tuple[float, str]]:
    """Ticks within `first..last`: Unix seconds and a label, at most `most` of them.

    None is closer to the next than `least` seconds, such as the step of what is drawn.

    Hours are `14:00`, days, and midnights between hours, `21 Nov`; a long axis has months with the
    year.
    """
    step = next((s for s in STEPS if s >= least and (last - first) / s < most), STEPS[-1])
    begin = math.ceil(first / step) * step
    moments = [begin + n * step for n in range(int((last - begin) // step) + 1)]
    moments = moments[:: max(1, math.ceil(len(moments) / most))]
    return [(at, _tick(at, step, last - first)) for at in moments]


def _tick(at: float, step: int, length: float) -> str:
    when = datetime.fromtimestamp(at, UTC)
    if length > 300 * DAY:
        return f"{when:%b %Y}"
    return f"{when.day} {when:%b}" if step >= DAY or not at % DAY else f"{when:%H:%M}"


def bucket(times: Sequence[float], least: int, most: int) -> int:
    """The step of a plot, in seconds, that covers all these times with at most `most` steps."""
    length = max(times) - min(times) if times else 0
    return next((s for s in STEPS if s >= least and length / s < most), STEPS[-1])
