"""The driver: publishers and subscribers of one server, in one thread, at little cost.

Non-blocking sockets and one selector. Publishers send slices of their scripts, subscribers
compare what they read with the script, so the driver costs about a system call a chunk and
stays well below the server it measures; its own CPU time is in every result, to be looked at.

A run is over when the server has proved it: a fence behind the last publish says that all of
it was handled, then a fence on each subscriber that every delivery queued has left. No
figure rests on a pause long enough; but where a dialect has no fence, what has not come some time
after the last delivery counts as lost (`Target.quiet`).

Pacing. With a window, at most that many messages are in flight, which are those published and
not yet read by all subscribers: nothing has to be dropped. At each turn of the loop publishers
send whatever the window allows, up to 256 messages each, and begin in turns. Without a window
they send as fast as the server reads.
"""

import select
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import attrs

from mist.bench.connections import Endpoint, Publisher, Subscriber
from mist.bench.errors import BenchError, UnexpectedBytes
from mist.bench.process import check_file_limit
from mist.bench.script import CHUNK, TAG, tag_lists, write_script

__all__ = ["WARM", "Load", "Run", "Target", "open_load"]

WARM: Final = 500  # messages that `open_load` publishes
_QUIET: Final = 0.1  # seconds without a delivery after which subscribers are asked
# The same where they can't be asked: what has not come by then counts as lost, and a busy machine
# stands still for longer than that.
_UNFENCED: Final = 2.0
_SETTLE: Final = 0.002  # seconds for the server to sleep, so that its CPU time is booked
_BATCH: Final = 256  # messages of a publisher in one turn


@attrs.frozen
class Target:
    """The server: where to publish and where to subscribe.

    Attributes:
        cpu: its CPU time in seconds so far; None where that can't be told.
        quiet: seconds without a delivery after which what has not come counts as lost; more by
            default where subscribers have no fence.
    """

    publish: Endpoint
    subscribe: Endpoint
    cpu: Callable[[], float | None] = lambda: None
    quiet: float = attrs.field()

    @quiet.default
    def _quiet(self) -> float:
        return _QUIET if self.subscribe.dialect.fence else _UNFENCED


@attrs.frozen
class Run:
    """What a run came to.

    Attributes:
        messages: published.
        deliveries: different ones that arrived, over all subscribers.
        lost: deliveries that didn't arrive.
        repeated, reordered: as in `mist.bench.receiver`.
        seconds: until the last publish was proved and the last delivery had arrived; more by the
            target's `quiet` where one was lost.
        server_cpu: seconds, user and system, all threads; None where it can't be told.
        driver_cpu: seconds of this process. Where it is close to `seconds`, the driver was
            the limit.
    """

    messages: int
    deliveries: int
    lost: int
    repeated: int
    reordered: int
    seconds: float
    server_cpu: float | None
    driver_cpu: float

    @property
    def cpu_per_million_messages(self) -> float | None:
        """Server CPU seconds per million messages published."""
        return _per_million(self.server_cpu, self.messages)

    @property
    def cpu_per_million_deliveries(self) -> float | None:
        """Server CPU seconds per million deliveries that arrived."""
        return _per_million(self.server_cpu, self.deliveries)


def _per_million(seconds: float | None, count: int) -> float | None:
    return None if seconds is None or not count else seconds * 1e6 / count


class Load:
    """Open connections, ready to run. Made by `open_load`.

    Attributes:
        publishers, subscribers: one object a connection.
        stall_timeout: seconds without any progress that end a run, and by which a paced publisher
            may be late.

    Args:
        selector: closed with the load. To be paced, it has to be made before the connections:
            select() takes no file descriptor above 1023.
    """

    def __init__(
        self,
        target: Target,
        publishers: list[Publisher],
        subscribers: list[Subscriber],
        selector: selectors.DefaultSelector | None = None,
    ) -> None:
        self.publishers = publishers
        self.subscribers = subscribers
        self.stall_timeout = 5.0
        self._target = target
        self._selector = selector or selectors.DefaultSelector()
        self._buffer = memoryview(bytearray(CHUNK))  # one for all: one thread
        self._turn = 0
        ends: list[Publisher | Subscriber] = [*publishers, *subscribers]
        for each in ends:
            self._selector.register(each.sock, selectors.EVENT_READ, each)

    def close(self) -> None:
        """Let go of the connections, which stay open."""
        self._selector.close()

    @property
    def published(self) -> int:
        """Messages granted to publishers, since the beginning."""
        return sum(each.granted for each in self.publishers)

    @property
    def complete(self) -> int:
        """Messages that all subscribers have, since the beginning."""
        return min([each.got.received for each in self.subscribers], default=self.published)

    def flood(self, messages: int, window: int, seconds: float) -> Run:
        """Publish `messages` as fast as the window (0: none) allows, and await them.

        Publishing ends early after `seconds`, or when nothing has moved for five.

        Raises:
            BenchError: the server cut someone off, stopped reading, or said what nobody
                understands.
        """
        run = _Running(self, self._target)
        published = self.published
        goal = published + messages
        until = time.perf_counter() + seconds
        idle = 0.0
        while published < goal and idle < self.stall_timeout and time.perf_counter() < until:
            room = goal - published
            if window:
                room = min(room, self.complete + run.missing + window - published)
            granted = self._grant(room)
            published += granted
            wait = 0.0 if granted else 0.5
            idle = 0.0 if self.turn(wait) else idle + wait
        return self._finish(run)

    def pace(
        self,
        messages: int,
        rate: float,
        sending: Callable[[float, float], None] = lambda due, now: None,
    ) -> Run:
        """Publish one message every 1/rate seconds, in turns, and await them.

        Args:
            sending: called before each is sent, with the time it is due and the time it is
                (of `time.perf_counter`).

        Raises:
            BenchError: as for `flood`; also when the rate can't be held by far.
        """
        run = _Running(self, self._target)
        start = time.perf_counter()
        for number in range(messages):
            due = start + number / rate
            while (now := time.perf_counter()) < due:
                self.turn(due - now)
            if now - due > self.stall_timeout:
                raise BenchError(f"{rate:,.0f} messages/s are more than this machine can do")
            publisher = self.publishers[number % len(self.publishers)]
            publisher.granted += 1
            sending(due, time.perf_counter())
            self._send(publisher)
            self.turn(0.0)
        return self._finish(run)

    def turn(self, wait: float) -> int:
        """Handle what is ready, after at most `wait` seconds; how many sockets were."""
        if 0 < wait < 0.002:
            # The selector would round up to a millisecond; select() doesn't.
            select.select([self._selector.fileno()], [], [], wait)
            wait = 0
        ready = self._selector.select(wait)
        for key, events in ready:
            if events & selectors.EVENT_READ:
                key.data.read(self._buffer)
            if events & selectors.EVENT_WRITE:
                key.data.send()
                if not key.data.behind:
                    self._selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
        return len(ready)

    def _grant(self, room: int) -> int:
        """Let publishers send up to `room` messages; how many that is."""
        left = room
        count = len(self.publishers)
        for step in range(count):
            if left <= 0:
                break
            publisher = self.publishers[(self._turn + step) % count]
            if publisher.behind:
                continue
            batch = min(left, _BATCH)
            publisher.granted += batch
            left -= batch
            self._send(publisher)
        self._turn += 1
        return room - max(left, 0)

    def _send(self, publisher: Publisher) -> None:
        """Send what is granted, the rest as soon as the socket takes more."""
        publisher.send()
        if publisher.behind:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(publisher.sock, both, publisher)

    def _finish(self, run: "_Running") -> Run:
        """Fence publishers, then subscribers; the clock stops once everything has arrived."""
        if not self._await(lambda: not any(each.behind for each in self.publishers)):
            raise BenchError("the server stopped reading")
        for publisher in self.publishers:
            publisher.fences = 0
            publisher.send_fence()
        if not self._await(lambda: all(each.fences for each in self.publishers)):
            raise BenchError("the server did not answer a publisher")
        complete = self._await(
            lambda: self.complete + run.missing >= self.published, self._target.quiet
        )
        if complete:
            run.stop()
        for subscriber in self.subscribers:
            subscriber.got.fences = 0
            subscriber.send_fence()
        if not self._await(lambda: all(s.got.fences for s in self.subscribers)):
            for subscriber in self.subscribers:
                if unread := subscriber.got.unread:
                    raise UnexpectedBytes(unread)
            raise BenchError("the server did not answer a subscriber")
        if not complete:
            run.stop()
        return run.result()

    def _await(self, condition: Callable[[], bool], stall_timeout: float | None = None) -> bool:
        """Turn until `condition`; False if nothing moves for `stall_timeout` seconds before."""
        if stall_timeout is None:
            stall_timeout = self.stall_timeout
        idle = 0.0
        while not condition():
            wait = min(0.5, stall_timeout)
            idle = 0.0 if self.turn(wait) else idle + wait
            if idle >= stall_timeout:
                return False
        return True


class _Running:
    """A run between its beginning and its end.

    Attributes:
        missing: messages that an earlier run lost. They will not come any more, and must
            neither shut the window nor be waited for.
    """

    def __init__(self, load: Load, target: Target) -> None:
        self.missing = load.published - load.complete
        time.sleep(_SETTLE)
        self._load = load
        self._target = target
        self._counts = self._count()
        self._cpu = target.cpu()
        self._start = (time.perf_counter(), time.process_time())
        self._end = self._start
        self._last_cpu = self._cpu

    def stop(self) -> None:
        """What is measured ends here; what is counted goes on."""
        self._end = (time.perf_counter(), time.process_time())
        time.sleep(_SETTLE)
        self._last_cpu = self._target.cpu()

    def result(self) -> Run:
        """What there was."""
        counts = [now - then for now, then in zip(self._count(), self._counts, strict=True)]
        messages, deliveries, repeated, reordered = counts
        cpu = None
        if self._cpu is not None and self._last_cpu is not None:
            cpu = self._last_cpu - self._cpu
        return Run(
            messages=messages,
            deliveries=deliveries,
            lost=messages * len(self._load.subscribers) - deliveries,
            repeated=repeated,
            reordered=reordered,
            seconds=self._end[0] - self._start[0],
            server_cpu=cpu,
            driver_cpu=self._end[1] - self._start[1],
        )

    def _count(self) -> tuple[int, int, int, int]:
        got = [each.got for each in self._load.subscribers]
        return (
            self._load.published,
            sum(each.received for each in got),
            sum(each.repeated for each in got),
            sum(each.reordered for each in got),
        )


@contextmanager
def open_load(
    target: Target,
    publishers: int,
    subscribers: int,
    *,
    messages: int,
    size: int = 100,
    lists: int = 1,
) -> Iterator[Load]:
    """Connect and subscribe; publish a little, so that the server is warm.

    Args:
        messages: about how many will be published in all; only memory depends on it.
        size: bytes of data in a message.
        lists: tag lists, taken in turns; with more than one, each message has a second tag.

    Raises:
        BenchError: the server is not there, or doesn't do as it is told.
    """
    check_file_limit(publishers + subscribers)
    publishing, hearing = target.publish.dialect, target.subscribe.dialect
    tags = tag_lists(lists)
    share = -(-messages // publishers)
    scripts = [write_script(n, share, size, tags, publishing, hearing) for n in range(publishers)]
    subscribe = hearing.subscribe([TAG], wider=lists > 1)
    with ExitStack() as stack:
        selector = selectors.DefaultSelector()
        stack.callback(selector.close)
        readers = []
        for _ in range(subscribers):
            sock = stack.enter_context(target.subscribe.subscribed(subscribe))
            readers.append(Subscriber(sock, scripts, hearing))
        writers = []
        for script in scripts:
            sock = stack.enter_context(target.publish.connect())
            writers.append(Publisher(sock, script, publishing))
        load = Load(target, writers, readers, selector)
        load.flood(WARM, 100, 5.0)
        yield load
