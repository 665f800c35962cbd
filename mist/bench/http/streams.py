"""Deliveries on an event stream, beside those of a WebSocket and of a line.

The same messages at the same pace to the same number of subscribers, transport after
transport in each round, and to nobody: what that costs is reading the message and waking up
for it, and the rest is the deliveries'. A pace of some hundred a second is the case that can't
be batched: each message is a turn of the server's loop of its own. Without a pace a window of
500 messages is kept full, and it shows what an event costs beside a frame.
"""

import statistics
from typing import Final

import attrs

from mist.bench.load import Run, open_load
from mist.bench.site import Site

__all__ = ["TRANSPORTS", "Streams", "measure_streams"]

TRANSPORTS: Final = ("tcp", "ws", "sse")
_WARM: Final = 0.1  # seconds at the pace, before
_WINDOW: Final = 500  # messages in flight where there is no pace
_SECONDS: Final = 30.0  # that such a run publishes at most


@attrs.frozen(kw_only=True)
class Streams:
    """Deliveries over one transport. Microseconds are medians over the rounds, of server CPU;
    None where that can't be told.

    Attributes:
        transport: of `TRANSPORTS`.
        subscribers: each gets every message.
        rate: messages a second; None as fast as the window allows.
        tag_lists: how many different ones the messages carry, in turns.
        size: bytes of data in a message.
        runs: one a round.
        cpu_us: for a delivery, its share of publishing included.
        over_tcp_us: that much more than a delivery over TCP.
        times_ws: so many times a WebSocket's.
        alone_us: for a delivery, less what publishing to nobody costs.
        alone_times_ws: likewise.
    """

    transport: str
    subscribers: int
    rate: float | None
    tag_lists: int = 1
    size: int
    runs: list[Run] = attrs.field(repr=False)
    cpu_us: float | None
    over_tcp_us: float | None
    times_ws: float | None
    alone_us: float | None
    alone_times_ws: float | None


def measure_streams(
    site: Site,
    *,
    subscribers: int = 1,
    rate: float | None = 500,
    tag_lists: int = 1,
    messages: int = 500,
    rounds: int = 3,
    size: int = 100,
) -> list[Streams]:
    """Publish over TCP, to subscribers of each transport in turn.

    Takes some 4·rounds·messages/rate seconds.

    Args:
        rate: messages a second; None for as fast as a window allows.
        tag_lists: how many different ones the messages carry, in turns.
        messages: of each transport in each round.

    Raises:
        BenchError: an endpoint is missing, a delivery is not what it should be, or the pace
            is beyond this machine.
    """
    runs: dict[str, list[Run]] = {transport: [] for transport in TRANSPORTS}
    unheard: list[Run] = []

    def publish(transport: str, count: int) -> Run:
        warm = 1 if rate is None else max(int(_WARM * rate), 1)
        target = site.target(transport)
        with open_load(
            target, 1, count, messages=messages + warm, size=size, lists=tag_lists
        ) as load:
            if rate is None:
                return load.flood(messages, _WINDOW if count else 0, _SECONDS)
            load.pace(warm, rate)
            return load.pace(messages, rate)

    for _ in range(rounds):
        unheard.append(publish("tcp", 0))
        for transport, found in runs.items():
            found.append(publish(transport, subscribers))
    whole = {transport: _median(found) for transport, found in runs.items()}
    nobody = _median(unheard)
    alone = {transport: _less(cpu, nobody) for transport, cpu in whole.items()}
    return [
        Streams(
            transport=transport,
            subscribers=subscribers,
            rate=rate,
            tag_lists=tag_lists,
            size=size,
            runs=found,
            cpu_us=_ratio(whole[transport], subscribers),
            over_tcp_us=_ratio(_less(whole[transport], whole["tcp"]), subscribers),
            times_ws=_ratio(whole[transport], whole["ws"]),
            alone_us=_ratio(alone[transport], subscribers),
            alone_times_ws=_ratio(alone[transport], alone["ws"]),
        )
        for transport, found in runs.items()
    ]


def _median(runs: list[Run]) -> float | None:
    """Microseconds of server CPU for a message."""
    known = [cpu for run in runs if (cpu := run.cpu_per_million_messages) is not None]
    return statistics.median(known) if len(known) == len(runs) else None


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None or other <= 0 else one / other
