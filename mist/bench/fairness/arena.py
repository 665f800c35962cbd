"""A server under attack, and beside it a probe: quiet and attacked, in turns.

Attackers and a busy server load the machine, too, and all who share it wait. So there is another
server, with a probe of its own, that nobody attacks: what its clients wait meanwhile is what the
attacked server's are measured by.

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
from mist.bench.history.stored import url_of
from mist.bench.process import cpu_seconds, start_server
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

    def __init__(
        self, watched: Watched, probe: Probe, elsewhere: Probe, crowd: Crowd, others: ExitStack
    ) -> None:
        self.crowd = crowd
        self.others = others
        self.server = watched.server
        self._watched = watched
        self._probe = probe
        self._elsewhere = elsewhere

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
        self._elsewhere.begin()
        self._watched.take_longest()
        cpu, start = cpu_seconds(self.server.pid), time.perf_counter()
        late = False
        played, refused = 1, 0
        try:
            played, refused = work()
        except TookTooLong:
            late = True
        seconds = time.perf_counter() - start
        elsewhere, waits = self._elsewhere.end(), self._probe.end()
        after = cpu_seconds(self.server.pid)
        spent = None if cpu is None or after is None else after - cpu
        phase = Phase(
            waits, elsewhere, seconds, self._watched.take_longest(), spent, played, refused
        )
        if late:
            raise _Late(phase)
        return phase


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
    """A server with a probe, and another one with another, gone at the end of the block.

    Args:
        options, nats: of both.
        history: of the server that is attacked. Where there is one, the other has one of its own.

    Raises:
        BenchError: it didn't start.
    """
    with scratch(None) as folder, ExitStack() as stack:
        own = "none" if history == "none" else url_of(folder / "history.db")
        other = stack.enter_context(start_server(*options, history=own))
        watched = stack.enter_context(start_watched(folder, *options, history=history, nats=nats))
        probe, elsewhere = (
            stack.enter_context(start_probe(server.tcp_port, server.http_port))
            for server in (watched.server, other)
        )
        with Crowd() as crowd, ExitStack() as others:
            yield Arena(watched, probe, elsewhere, crowd, others)


def play(arena: Arena, attack: Attack, seconds: float, rounds: int) -> Unfairness:
    """Watch the probes without the attack and with it, in turns.

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
