"""A subscriber that stops reading, beside others that go on.

The healthy ones' latencies are taken with and without it, in turns, in one run on the same
connections. Before it counts as *with*, the stalled one's outbox is filled to the brim by
messages that only it subscribes to, so that the server has to decide about it with every
further message: the worst case lasts for the whole phase. At the end it reads on, and what is
missing is what the server dropped.
"""

import socket
import statistics
from contextlib import closing
from typing import Final

import attrs

from mist.bench.connections import Publisher, Subscriber
from mist.bench.errors import HungUp
from mist.bench.latency import Quantiles, time_deliveries
from mist.bench.load import Load, Target, open_load
from mist.bench.script import TAG, Script, write_script

__all__ = ["SlowConsumer", "measure_slow_consumer"]

_FILL: Final = 32 << 20  # bytes: more than an outbox and the kernel's buffers take by default
_MAX_FILL: Final = 400_000  # messages, likewise
_RECEIVE_BUFFER: Final = 1 << 16  # bytes, of the stalled one's socket
_FILL_TAG: Final = "stall"  # as long as TAG, so that all deliveries have one size
_SECONDS: Final = 20.0  # for filling
assert len(_FILL_TAG) == len(TAG)


@attrs.frozen
class SlowConsumer:
    """What one stalled subscriber does to the others.

    Attributes:
        healthy: subscribers beside it.
        rate: messages a second, each to all of them.
        without_stalled, with_stalled: latencies of the healthy ones; medians over the rounds.
        healthy_lost: deliveries that healthy ones didn't get.
        sent_to_stalled: messages that matched the stalled one's subscriptions.
        dropped: those that it never got.
        disconnected: how many times the server ended its connection instead.
    """

    healthy: int
    rate: float
    without_stalled: Quantiles
    with_stalled: Quantiles
    healthy_lost: int
    sent_to_stalled: int
    dropped: int
    disconnected: int


def measure_slow_consumer(
    target: Target,
    *,
    healthy: int = 99,
    rate: float = 200,
    messages: int = 200,
    size: int = 100,
    rounds: int = 5,
) -> SlowConsumer:
    """Publish at a rate, without a stalled subscriber and with one, in turns.

    Takes some 2·rounds·messages/rate seconds.

    Args:
        messages: of each phase.

    Raises:
        BenchError: no server, no sense in what it says, or a rate beyond this machine.
    """
    healthy_alone: list[Quantiles] = []
    beside_stalled: list[Quantiles] = []
    sent = dropped = disconnected = lost = 0
    total = (2 * rounds + 1) * messages
    with open_load(target, 1, healthy, messages=total, size=size) as load:
        fill = _write_fill(target, size)
        time_deliveries(load, messages, rate)
        for _ in range(rounds):
            watch, run = time_deliveries(load, messages, rate)
            healthy_alone.append(Quantiles.of(watch.written))
            lost += run.lost
            with _Stalled(target, load, fill) as stalled:
                watch, run = time_deliveries(load, messages, rate)
                beside_stalled.append(Quantiles.of(watch.written))
                lost += run.lost
                sent += stalled.sent
                dropped += stalled.count_dropped()
                disconnected += stalled.disconnected
    return SlowConsumer(
        healthy=healthy,
        rate=rate,
        without_stalled=_median(healthy_alone),
        with_stalled=_median(beside_stalled),
        healthy_lost=lost,
        sent_to_stalled=sent,
        dropped=dropped,
        disconnected=disconnected,
    )


class _Stalled:
    """A subscriber that doesn't read until it is asked what it missed.

    Attributes:
        disconnected: whether the server ended its connection.
    """

    def __init__(self, target: Target, load: Load, fill: Script) -> None:
        self._target = target
        self._load = load
        self._fill = fill
        self._filled = 0
        self._first = load.published
        self.disconnected = False

    def __enter__(self) -> "_Stalled":
        """Subscribe, and have the outbox filled."""
        dialect = self._target.subscribe.dialect
        both = dialect.subscribe([TAG]), dialect.subscribe([_FILL_TAG])
        self._sock = self._target.subscribe.subscribed(*both)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            self._publish_fill()
        except BaseException:
            self._sock.close()
            raise
        return self

    def __exit__(self, *args: object) -> None:
        self._sock.close()

    def _publish_fill(self) -> None:
        publishing = self._target.publish.dialect
        count = _fill_count(self._fill.delivery_size)
        with self._target.publish.connect() as sock:
            publisher = Publisher(sock, self._fill, publishing)
            with closing(Load(self._target, [publisher], [])) as load:
                self._filled = load.flood(count, 0, _SECONDS).messages

    @property
    def sent(self) -> int:
        """Messages so far that it should have got."""
        return self._filled + self._load.published - self._first

    def count_dropped(self) -> int:
        """Read all there is; how many are missing."""
        scripts = [self._load.publishers[0].script, self._fill]
        subscriber = Subscriber(self._sock, scripts, self._target.subscribe.dialect)
        subscriber.got.begin(0, self._first)
        with closing(Load(self._target, [], [subscriber])) as load:
            try:
                load.flood(0, 0, _SECONDS)
            except HungUp:
                self.disconnected = True
        return self.sent - subscriber.got.received


def _write_fill(target: Target, size: int) -> Script:
    """The script of publisher 1, whose messages only the stalled one wants."""
    publishing, hearing = target.publish.dialect, target.subscribe.dialect
    count = _fill_count(size)
    return write_script(1, count, size, [(_FILL_TAG,)], publishing, hearing)


def _fill_count(size: int) -> int:
    return min(_FILL // size, _MAX_FILL)


def _median(rounds: list[Quantiles]) -> Quantiles:
    """Of each quantile, the median over the rounds."""
    columns = zip(*[attrs.astuple(each) for each in rounds], strict=True)
    return Quantiles(*[statistics.median(column) for column in columns])
