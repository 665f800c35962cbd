"""Which figures of HTTP are measured, and how large."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from mist.bench.cell import Cell
from mist.bench.http.handshakes import measure_handshakes
from mist.bench.http.requests import BULK_SHAPES, measure_requests
from mist.bench.http.streams import measure_streams
from mist.bench.report import Result
from mist.bench.site import Site

__all__ = ["http_cells", "http_glance_cells"]

_SHAPES: Final = (1, 50)  # subscribers, each of which gets every message
_RATE: Final = 500.0  # messages a second
_MANY: Final = 5_000  # tag lists


def http_cells(
    *,
    requests: int | None = None,
    subscribers: int | None = None,
    rate: float | None = None,
    rounds: int | None = None,
    history: bool = True,
    quick: bool = False,
) -> list[Cell]:
    """All figures of HTTP: about a minute and a half, or (`quick`) ten seconds.

    Args:
        requests: of each shape in each round, and WebSockets that connect; None for 300.
        subscribers: of each transport; None for one, then fifty.
        rate: messages a second; None for 500.
        rounds: of which medians are taken; None for five.
        history: whether a server of our own is measured, too, that keeps what is published.
    """
    requests = requests or (50 if quick else 300)
    rounds = rounds or (1 if quick else 5)
    rate = rate or _RATE
    seconds = 0.2 if quick else 1.0
    return [
        _requests(requests=requests, rounds=rounds, beside_history=history),
        _requests(requests=requests, rounds=rounds, beside_history=history, shapes=BULK_SHAPES),
        _handshakes(connections=requests, rounds=rounds),
        *[
            _streams(
                subscribers=count,
                rate=rate,
                messages=max(int(rate * seconds), 10),
                rounds=rounds,
            )
            for count in ((subscribers,) if subscribers else _SHAPES)
        ],
        *[
            _streams(
                subscribers=1,
                rate=None,
                tag_lists=tag_lists,
                messages=500 if quick else 20_000,
                rounds=rounds,
            )
            for tag_lists in (1, _MANY)
        ],
    ]


def http_glance_cells(*, quick: bool = False) -> list[Cell]:
    """The same at a glance, without a history: some five seconds, or (`quick`) one."""
    rounds = 1 if quick else 3
    requests = 20 if quick else 100
    return [
        _requests(requests=requests, rounds=rounds),
        _handshakes(connections=requests, rounds=rounds),
        _streams(subscribers=1, rate=_RATE, messages=50 if quick else 150, rounds=rounds),
    ]


def _requests(**options: Any) -> Cell:
    many = "many messages" if "shapes" in options else "a message"
    label = f"requests that publish {many} each"
    return Cell("http_request", label, "http", partial(_measure_requests, options))


def _measure_requests(options: dict[str, Any], site: Site, /) -> Sequence[Result]:
    return measure_requests(site, **options)


def _handshakes(**options: Any) -> Cell:
    label = "WebSockets that connect with a token"
    return Cell("ws_connect", label, "ws", partial(_measure_handshakes, options))


def _measure_handshakes(options: dict[str, Any], site: Site, /) -> Sequence[Result]:
    return measure_handshakes(site, **options)


def _streams(**options: Any) -> Cell:
    rate = options["rate"]
    speed = "flat out" if rate is None else f"at {rate:,.0f} messages/s"
    label = f"event streams, 1→{options['subscribers']} {speed}"
    if (lists := options.get("tag_lists", 1)) > 1:
        label += f", {lists:,} tag lists"
    return Cell("http_stream", label, "sse", partial(_measure_streams, options))


def _measure_streams(options: dict[str, Any], site: Site, /) -> Sequence[Result]:
    return measure_streams(site, **options)
