"""Throughput: P publishers to S subscribers, as fast as a window or the server allows."""

from typing import Final

import attrs

from mist.bench.load import Run, Target, open_load

__all__ = ["Throughput", "measure_throughput"]

_SECONDS: Final = 30.0  # that a run publishes at most


@attrs.frozen
class Throughput:
    """What one shape came to.

    Attributes:
        publishers, subscribers: connections; each subscriber gets every message.
        size_bytes: of data in a message.
        tag_lists: how many different ones the messages carry, in turns.
        window_messages: at most so many published and not yet read by all; 0 for unthrottled,
            where a server may have to drop.
        run: counts and costs.
    """

    publishers: int
    subscribers: int
    size_bytes: int
    tag_lists: int
    window_messages: int
    run: Run


def measure_throughput(
    target: Target,
    *,
    publishers: int = 1,
    subscribers: int = 1,
    messages: int = 100_000,
    size: int = 100,
    tag_lists: int = 1,
    window: int = 500,
    seconds: float = _SECONDS,
    stall_timeout: float | None = None,
) -> Throughput:
    """Publish `messages`, in all; check every delivery.

    Args:
        seconds: of publishing, after which it ends with the messages that were published.
        stall_timeout: seconds without any progress that a server is given; None for the driver's
            own.

    Raises:
        BenchError: no server, no sense in what it says, or it cut a connection off.
    """
    with open_load(
        target, publishers, subscribers, messages=messages, size=size, lists=tag_lists
    ) as load:
        if not subscribers:
            window = 0  # nobody reads, so nothing is ever in flight
        if stall_timeout is not None:
            load.stall_timeout = stall_timeout
        run = load.flood(messages, window, seconds)
    return Throughput(publishers, subscribers, size, tag_lists, window, run)
