"""Which measurements belong to a benchmark of a server.

Without wishes, sizes are chosen so that a cell costs the server about a tenth of a second of
CPU or more, and all of them together take about a minute; `quick` is a few seconds in all, for
a first look.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any, Final

import attrs

from mist.bench.cell import TRANSPORTS, Cell
from mist.bench.history.cells import glance_cells
from mist.bench.http.cells import http_glance_cells
from mist.bench.idle import measure_idle
from mist.bench.latency import measure_latency
from mist.bench.match import measure_match
from mist.bench.report import Result
from mist.bench.script import NEVER_AGAIN, lists_that_never_come_again
from mist.bench.site import Site
from mist.bench.slow_consumer import measure_slow_consumer
from mist.bench.throughput import measure_throughput

__all__ = [
    "all_cells",
    "fanout_cells",
    "idle_cells",
    "latency_cells",
    "match_cells",
    "never_again_cells",
    "publish_cells",
    "slow_consumer_cells",
]

Shapes = Sequence[tuple[int, int]]  # publishers, subscribers

_DELIVERIES: Final = 2_000_000  # of a cell, about
_MAX_MESSAGES: Final = 400_000
_QUICK: Final = 10  # times less
_HEALTHY_DELIVERIES: Final = 20_000  # a second, beside a stalled subscriber


def match_cells(
    sizes: Sequence[tuple[int, int]] = (), *, zipf: bool = False, quick: bool = False
) -> list[Cell]:
    """Matching against (subscriptions, vocabulary)."""
    if not sizes:
        sizes = [(1_000, 100), (20_000, 1_000) if quick else (100_000, 10_000)]
    return [
        Cell(
            "match",
            f"matching against {subscriptions:,} subscriptions",
            None,
            partial(_match, subscriptions=subscriptions, vocabulary=vocabulary, zipf=zipf),
        )
        for subscriptions, vocabulary in sizes
    ]


def _match(_: Site, *, subscriptions: int, vocabulary: int, zipf: bool) -> Result:
    return measure_match(subscriptions, vocabulary, zipf=zipf)


def publish_cells(
    shapes: Shapes = ((1, 0), (10, 0)), transports: Sequence[str] = ("tcp",), **options: Any
) -> list[Cell]:
    """Publishers, to nobody or to one subscriber; options as for `fanout_cells`."""
    return _throughput_cells("publish", shapes, transports, **options)


def fanout_cells(
    shapes: Shapes = ((1, 1), (1, 10), (1, 100), (10, 10)),
    transports: Sequence[str] = ("tcp",),
    **options: Any,
) -> list[Cell]:
    """Publishers to subscribers.

    Args:
        transports: of the subscribers; publishers are on TCP.
        options: `messages` (None: a fitting number), `size`, `tag_lists` and `window`, as
            `measure_throughput` has them, and `quick`.
    """
    return _throughput_cells("fanout", shapes, transports, **options)


def never_again_cells(transports: Sequence[str] = ("tcp",), *, quick: bool = False) -> list[Cell]:
    """Messages of which each has a tag list that was never seen before."""
    messages = NEVER_AGAIN // (_QUICK if quick else 1)
    lists = lists_that_never_come_again(messages)
    return fanout_cells(((1, 1), (1, 10)), transports, messages=messages, tag_lists=lists)


def _throughput_cells(
    kind: str,
    shapes: Shapes,
    transports: Sequence[str],
    *,
    messages: int | None = None,
    quick: bool = False,
    **options: int,
) -> list[Cell]:
    cells = []
    for transport, (publishers, subscribers) in product(transports, shapes):
        count = messages or _fitting(subscribers, quick=quick)
        shape = {"publishers": publishers, "subscribers": subscribers, "messages": count}
        label = f"{publishers}→{subscribers} over {transport}"
        cells.append(
            Cell(kind, label, transport, partial(_throughput, transport, **shape, **options))
        )
    return cells


def _throughput(transport: str, site: Site, /, **options: int) -> Result:
    return measure_throughput(site.target(transport), **options)


def _fitting(subscribers: int, *, quick: bool) -> int:
    count = min(_DELIVERIES // max(subscribers, 1), _MAX_MESSAGES)
    return max(count // (_QUICK if quick else 1), 100)


def latency_cells(
    transports: Sequence[str] = TRANSPORTS,
    *,
    rate: float = 5_000,
    messages: int | None = None,
    quick: bool = False,
    **options: int,
) -> list[Cell]:
    """Latency at a rate, for five seconds; options as `measure_latency` has them."""
    count = messages or max(int(rate * (0.5 if quick else 5)), 10)
    return [
        Cell(
            "latency",
            f"latency at {rate:,.0f} messages/s over {transport}",
            transport,
            partial(_latency, transport, rate=rate, messages=count, **options),
        )
        for transport in transports
    ]


def _latency(transport: str, site: Site, /, **options: Any) -> Result:
    return measure_latency(site.target(transport), **options)


def idle_cells(
    transports: Sequence[str] = TRANSPORTS, *, connections: int | None = None, quick: bool = False
) -> list[Cell]:
    """Memory of idle connections."""
    count = connections or (200 if quick else 2_000)
    return [
        Cell(
            "idle",
            f"{count:,} idle connections over {transport}",
            transport,
            partial(_idle, transport, count),
            alone=True,  # memory that was given back would be used again, and not be seen
        )
        for transport in transports
    ]


def _idle(transport: str, connections: int, site: Site, /) -> Result:
    return measure_idle(site.endpoint(transport), site.process(), connections)


def slow_consumer_cells(
    transports: Sequence[str] = ("tcp",),
    *,
    subscribers: int = 100,
    rate: float | None = None,
    quick: bool = False,
    **options: int,
) -> list[Cell]:
    """One stalled subscriber beside `subscribers` - 1 healthy ones.

    Args:
        rate: messages a second; None for as many as make 20,000 deliveries.
    """
    healthy = subscribers - 1
    chosen = max(_HEALTHY_DELIVERIES / healthy, 20.0) if rate is None else rate
    options.setdefault("messages", max(int(chosen * (0.2 if quick else 1)), 10))
    options.setdefault("rounds", 1 if quick else 5)
    return [
        Cell(
            "slow_consumer",
            f"a stalled subscriber beside {healthy:,} over {transport}",
            transport,
            partial(_slow_consumer, transport, healthy=healthy, rate=chosen, **options),
        )
        for transport in transports
    ]


def _slow_consumer(transport: str, site: Site, /, **options: Any) -> Result:
    return measure_slow_consumer(site.target(transport), **options)


def all_cells(
    transports: Sequence[str] = TRANSPORTS,
    *,
    quick: bool = False,
    idle: bool = True,
    http: bool = True,
    history: bool = True,
) -> list[Cell]:
    """A sensible set of everything.

    Args:
        idle: whether the server's memory can be read.
        http: whether it has all of the endpoints `tcp`, `ws` and `http`.
        history: whether servers of our own may be measured, that keep messages or not.
    """
    return [
        *match_cells(quick=quick),
        *publish_cells(quick=quick),
        *fanout_cells(transports=transports, quick=quick),
        *fanout_cells(((1, 100),), transports, tag_lists=100, quick=quick),
        *never_again_cells(transports, quick=quick),
        *latency_cells(transports, quick=quick),
        *slow_consumer_cells(transports[:1], quick=quick),
        *(idle_cells(transports, quick=quick) if idle else ()),
        *_brief(http_glance_cells(quick=quick) if http and "ws" in transports else ()),
        *_brief(glance_cells(quick=quick) if history else ()),
    ]


def _brief(cells: Iterable[Cell]) -> list[Cell]:
    """Cells of a few rounds, of what has a command of its own."""
    return [attrs.evolve(cell, share=0.15) for cell in cells]
