"""Time series: columns for few steps, an area for many, stepped lines for several series.

A value is of a whole step of time, so that lines are level within a step: a slope between two
would show values that were never counted. Where one series would flatten another, the axis is
logarithmic.

A plot is drawn twice, for a wide and for a narrow screen, and the style sheet shows one of them: so
text keeps its size on a phone, without a script. Screen readers get a sentence that describes the
plot, and the figures in the table below it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from mist.pipeline.html.markup import Html, h, join, name
from mist.pipeline.html.scales import (
    HOUR,
    Scale,
    bucket,
    count,
    is_uneven,
    moment,
    number_ticks,
    power_ticks,
    short,
    span,
    time_ticks,
)
from mist.pipeline.html.tables import Column, Table

__all__ = ["Series", "TimePlot"]

COLUMNS: Final = 100  # steps up to which columns can be told apart
STEPS: Final = 400  # of a single line; more don't fit on a screen, and are aggregated
MANY_STEPS: Final = 100  # of each of several lines
HUES: Final = 6  # in the style sheet; each has a dash pattern of its own


@attrs.frozen
class Series:
    """One line.

    Attributes:
        name: of the line; may come from data.
        points: (start of the step in Unix seconds, value), in any order. A missing step is 0.
    """

    name: str
    points: Sequence[tuple[float, float]]


@attrs.frozen
class _Frame:
    """The geometry of a plot, in units of its drawing: pixels at its natural size."""

    kind: str
    width: int
    height: int
    ticks: int  # of time, at most
    left: int = 60
    right: int = 14
    top: int = 12
    bottom: int = 26

    @property
    def floor(self) -> int:
        return self.height - self.bottom

    def x(self, part: float) -> float:
        return self.left + part * (self.width - self.left - self.right)

    def y(self, part: float) -> float:
        return self.floor - part * (self.floor - self.top)


WIDE: Final = _Frame("broad", 760, 240, 9)
NARROW: Final = _Frame("slim", 340, 210, 4)


@attrs.frozen
class TimePlot:
    """Counts in steps of time.

    Attributes:
        title: what is counted.
        unit: of the values.
        step: seconds between two points.
        show: formats a value in the table.
        brief: formats a value on the axis.
        ticks: round values for the axis, up to at least the largest.
    """

    title: str
    series: Sequence[Series]
    unit: str = "messages"
    step: int = HOUR
    show: Callable[[float], str] = count
    brief: Callable[[float], str] = short
    ticks: Callable[[float, int], list[float]] = number_ticks

    def render(self, identity: str) -> Html:
        """As HTML. `identity`: unique on the page."""
        times = [at for series in self.series for at, _ in series.points]
        if not times:
            return h("figure", h("h3", self.title), h("p", "Nothing.", class_="soft"))
        most = STEPS if len(self.series) == 1 else MANY_STEPS
        step = bucket([*times, max(times) + self.step], self.step, most)
        steps = _steps(times, step)
        values = [_filled(series.points, steps, step) for series in self.series]
        scale = self._scale(values)
        caption = f"{self.unit} in each {_each(step)}"
        if scale.logarithmic:
            caption += ", on a logarithmic scale"
        return h(
            "figure",
            h("figcaption", h("h3", self.title), h("span", caption, class_="soft"), self._keys()),
            *(self._draw(frame, identity, steps, step, values, scale) for frame in (WIDE, NARROW)),
            self._table(steps, step, values).render(identity),
            class_="part plot",
        )

    def _scale(self, values: Sequence[Sequence[float]]) -> Scale:
        peaks = [max(line) for line in values]
        logarithmic = is_uneven(peaks)
        ticks = power_ticks(max(peaks)) if logarithmic else self.ticks(max(peaks), 4)
        return Scale(ticks[-1], logarithmic)

    def _keys(self) -> Html | None:
        if len(self.series) < 2:
            return None
        keys = (
            h("li", _sample(n), name(series.name), class_=f"hue{n % HUES}")
            for n, series in enumerate(self.series)
        )
        return h("ul", *keys, class_="keys")

    def _draw(
        self,
        frame: _Frame,
        identity: str,
        steps: Sequence[float],
        step: int,
        values: Sequence[Sequence[float]],
        scale: Scale,
    ) -> Html:
        largest = max(map(max, values))
        ticks = power_ticks(largest) if scale.logarithmic else self.ticks(largest, 4)
        first, length = steps[0], len(steps) * step
        identity = f"{identity}-{frame.kind}"
        return h(
            "svg",
            h("title", self.title, id=f"{identity}-title"),
            h("desc", self._says(steps, step, values), id=f"{identity}-desc"),
            *(_level(frame, scale.place(tick), self.brief(tick)) for tick in ticks),
            *(
                _time(frame, (at - first) / length, text)
                for at, text in time_ticks(first, first + length, frame.ticks, step)
            ),
            *_shapes(frame, [[scale.place(value) for value in line] for line in values]),
            class_=frame.kind,
            role="img",
            viewBox=f"0 0 {frame.width} {frame.height}",
            aria_labelledby=f"{identity}-title {identity}-desc",
        )

    def _says(self, steps: Sequence[float], step: int, values: Sequence[Sequence[float]]) -> str:
        end = moment(steps[-1] + step)
        sentences = [f"From {moment(steps[0])} to {end}, {self.unit} in each {_each(step)}."]
        for series, line in zip(self.series, values, strict=True):
            most = max(line)
            sentences.append(
                f"{series.name}: {self.show(sum(line))} in all, at most {self.show(most)}"
                f" at {moment(steps[line.index(most)])}."
            )
        return " ".join(sentences)

    def _table(self, steps: Sequence[float], step: int, values: Sequence[Sequence[float]]) -> Table:
        rows = [
            (moment(at), *(line[n] for line in values))
            for n, at in enumerate(steps)
            if any(line[n] for line in values)
        ]
        headings = [Column(series.name, self.show) for series in self.series]
        title = f"{self.title}: the figures"
        return Table(title, [Column(f"{_each(step)} from", str), *headings], rows, folded=True)


def _each(step: int) -> str:
    text = span(step)
    return text.removeprefix("1 ")


def _steps(times: Iterable[float], step: int) -> list[float]:
    known = {at // step for at in times}
    return [n * step for n in range(int(min(known)), int(max(known)) + 1)]


def _filled(
    points: Iterable[tuple[float, float]], steps: Sequence[float], step: int
) -> list[float]:
    values = [0.0] * len(steps)
    for at, value in points:
        values[int((at - steps[0]) // step)] += value
    return values


def _level(frame: _Frame, part: float, text: str) -> Html:
    y = f"{frame.y(part):.1f}"
    kind = "level" if part else "level ground"
    return join(
        h("line", x1=frame.left, x2=frame.width - frame.right, y1=y, y2=y, class_=kind),
        h("text", text, x=frame.left - 7, y=y, dy=".35em", class_="to-left"),
    )


def _time(frame: _Frame, part: float, text: str) -> Html:
    x = frame.x(part)
    # Kept within the drawing, which would clip a label at its edge.
    at = min(max(x, frame.left), frame.width - 24)
    return join(
        h("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=frame.floor, y2=frame.floor + 5, class_="level"),
        h("text", text, x=f"{at:.1f}", y=frame.height - 7, class_="amid"),
    )


def _shapes(frame: _Frame, lines: Sequence[Sequence[float]]) -> Iterable[Html]:
    if len(lines) == 1 and len(lines[0]) <= COLUMNS:
        return [_columns(frame, lines[0])]
    return [
        part
        for n, line in enumerate(lines)
        for part in _line(frame, line, n, alone=len(lines) == 1)
    ]


def _columns(frame: _Frame, line: Sequence[float]) -> Html:
    room = (frame.width - frame.left - frame.right) / len(line)
    gap = min(room * 0.2, 3)
    width = room - gap
    bars = []
    for n, value in enumerate(line):
        if value:
            x = frame.x((n + 0.5) / len(line)) - width / 2
            y = min(frame.y(value), frame.floor - 1)  # even the smallest is visible
            bars.append(f"M{x:.1f} {frame.floor}V{y:.1f}h{width:.1f}V{frame.floor}z")
    return h("path", d="".join(bars), class_="column hue0")


def _line(frame: _Frame, line: Sequence[float], n: int, *, alone: bool) -> list[Html]:
    path = f"M{frame.x(0):.1f} {frame.y(line[0]):.1f}"
    for place, value in enumerate(line):
        up = "" if place and value == line[place - 1] else f"V{frame.y(value):.1f}"
        path += f"{up}H{frame.x((place + 1) / len(line)):.1f}"
    hue = f"hue{n % HUES}"
    parts = [h("path", d=path, class_=f"line {hue} dash{n % HUES}")]
    if alone:
        area = f"{path}V{frame.floor}H{frame.x(0):.1f}z"
        parts.insert(0, h("path", d=area, class_=f"area {hue}"))
    return parts


def _sample(n: int) -> Html:
    line = h("path", d="M0 5H26", class_=f"line hue{n % HUES} dash{n % HUES}")
    return h("svg", line, viewBox="0 0 26 10", class_="sample", aria_hidden="true")
