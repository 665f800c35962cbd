"""A server under attack, and beside it the probe: quiet and attacked, in turns.

Each attack has a server of its own, since it leaves state behind, and an old server may not
get through with it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import attrs

from mist.bench.connections import Endpoint
from mist.bench.dialect import Frames, Line
from mist.bench.fairness.peers import Crowd, TookTooLong
from mist.bench.fairness.probe import Probe, start_probe
from mist.bench.fairness.unfairness import Phase, Unfairness
from mist.bench.fairness.watched import Watched, start_watched
from mist.bench.history.disk import scratch
from mist.bench.process import cpu_seconds
from mist.bench.site import RESOURCE, administer

__all__ = ["Arena", "Attack", "open_arena", "play"]

_WARM: Final = 0.5  # seconds of the probe, before all
_MOST: Final = 10  # times that an attack is made ready and played in one phase


class Arena:
    """A server, its probe, and the attackers' connections.

    Attributes:
        crowd: what attackers have open and the server writes to.
        others: what else has to be closed at the end.
        server: that is attacked.
    """

    def __init__(self, watched: Watched, probe: Probe, crowd: Crowd, others: ExitStack) -> None:
        self.crowd = crowd
        self.others = others
        self.server = watched.server
        self._watched = watched
        self._probe = probe

    @property
    def line(self) -> Endpoint:
        """The TCP listener."""
        return Endpoint(self.server.host, self.server.tcp_port, Line())

    def websocket(self, token: str, subprotocol: str | None = None) -> Endpoint:
        """The WebSocket listener, for a token."""
        host, port = self.server.host, self.server.ws_port
        return Endpoint(host, port, Frames(f"{host}:{port}", RESOURCE, token, subprotocol))

    @property
    def http(self) -> tuple[str, int]:
        """Where requests go."""
        return self.server.host, self.server.http_port

    def register(self, tags: str, token: str) -> None:
        """Register a token."""
        administer(self.line, f"register {tags} {token}")

    def watch(self, work: Callable[[], tuple[int, int]]) -> Phase:
        """A phase in which `work` is done, which says how often it played and was refused."""
        self._probe.begin()
        self._watched.take_longest()
        cpu, start = cpu_seconds(self.server.pid), time.perf_counter()
        late = False
        try:
            played, refused = work()
        except TookTooLong:
            late, played, refused = True, 1, 0
        seconds = time.perf_counter() - start
        waits = self._probe.end()
        after = cpu_seconds(self.server.pid)
        spent = None if cpu is None or after is None else after - cpu
        if late:
            raise _Late(Phase(waits, seconds, self._watched.take_longest(), spent, played))
        return Phase(waits, seconds, self._watched.take_longest(), spent, played, refused)


class _Late(Exception):
    """The server did not get through with an attack."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase


@attrs.frozen
class Attack:
    """One attack on an arena in which all that it needs is there.

    Attributes:
        name: in a word or two.
        about: what it is, with its numbers.
        play: plays it once, up to where the server is done with it, and says how much was
            refused. Raises `TookTooLong` where the server isn't done in time.
        again: what has to be done, unwatched, each time before it is played; None for nothing.
    """

    name: str
    about: str
    play: Callable[[], int]
    again: Callable[[], None] | None = None


@contextmanager
def open_arena(*options: str, history: str = "none", nats: bool = False) -> Iterator[Arena]:
    """A server with a probe, gone at the end of the block.

    Raises:
        BenchError: it didn't start.
    """
    with (
        scratch(None) as folder,
        start_watched(folder, *options, history=history, nats=nats) as watched,
        start_probe(watched.server.tcp_port, watched.server.http_port) as probe,
        Crowd() as crowd,
        ExitStack() as others,
    ):
        yield Arena(watched, probe, crowd, others)


def play(arena: Arena, attack: Attack, seconds: float, rounds: int) -> Unfairness:
    """Watch the probe without the attack and with it, in turns.

    Args:
        seconds: of each phase; an attack is played again and again for that time, and to its
            end.
    """
    arena.watch(partial(_rest, _WARM))
    done: list[tuple[Phase, Phase]] = []
    finished = True
    while finished and len(done) < rounds:
        quiet = arena.watch(partial(_rest, seconds))
        try:
            attacked = _attacked(arena, attack, seconds)
        except _Late as late:
            attacked, finished = late.phase, False
        done.append((quiet, attacked))
    return Unfairness(attack.name, attack.about, done, finished)


def _rest(seconds: float) -> tuple[int, int]:
    time.sleep(seconds)
    return 0, 0


def _attacked(arena: Arena, attack: Attack, seconds: float) -> Phase:
    again = attack.again
    if again is None:
        return arena.watch(partial(_play_for, attack, seconds))
    again()
    phase = arena.watch(lambda: (1, attack.play()))
    while phase.seconds < seconds and phase.played < _MOST:
        again()
        phase = phase.plus(arena.watch(lambda: (1, attack.play())))
    return phase


def _play_for(attack: Attack, seconds: float) -> tuple[int, int]:
    until = time.perf_counter() + seconds
    played = refused = 0
    while not played or time.perf_counter() < until:
        refused += attack.play()
        played += 1
    return played, refused
