"""Clients that move from node to node and go on where they were, nodes and engine dying meanwhile.

pytest tests/system/test_nodes_moves.py --slow -s      a thousand resumptions, and five thousand
                                                       clients of a node that is killed; prints
                                                       its figures
"""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import attrs
import pytest

from mist.bench.process import raise_file_limit
from tests.engine.redis_server import RedisServer
from tests.processes import dial
from tests.system.nodes import APART, ON_REDIS, EngineServer, Nodes, Ports, engine_server
from tests.system.storm_clients import Clients, Settings, start_clients
from tests.system.test_storm import register, told

LIVE = 30.0  # seconds in which all have to be live elsewhere
# While nothing is asked of clients they don't read, and so answer no pings.
OPTIONS = ("--ping-seconds", "600", "--idle-seconds", "1200")


@pytest.fixture(params=["redis", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineServer]:
    with engine_server(request.param, tmp_path) as server:
        yield server


class Publisher:
    """Publishes numbers to each room, one after another, each acknowledged.

    Attributes:
        number: the last that all rooms have.
        refused: what was not acknowledged.
    """

    def __init__(self, url: str, rooms: int) -> None:
        self.number = 0
        self.refused: list[bytes] = []
        self._rooms = rooms
        self._sock = dial(url)
        self._replies = self._sock.makefile("rb")
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._publish_on)

    def publish(self) -> None:
        number = self.number + 1
        lines = [f"store room-{n} {number}\n" for n in range(self._rooms)]
        self._sock.sendall("".join(lines).encode())
        for _ in lines:
            reply = self._replies.readline()
            if not reply.startswith(b"stored "):
                self.refused.append(reply)
        self.number = number

    def epoch(self) -> str:
        self._sock.sendall(b"last\n")
        return self._replies.readline().split()[1].decode()

    def until(self, number: int) -> None:
        give_up = time.monotonic() + 60
        while self.number < number:
            assert time.monotonic() < give_up, f"{self.number} of {number}"
            time.sleep(0.005)

    def _publish_on(self) -> None:
        while not self._ending.wait(0.01):
            self.publish()

    def __enter__(self) -> "Publisher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing more is published."""
        self._ending.set()
        self._thread.join(30)

    def close(self) -> None:
        self._replies.close()
        self._sock.close()


def clients_of(
    stack: ExitStack, servers: Sequence[Ports], count: int, processes: int, rooms: int
) -> list[Clients]:
    share = count // processes
    return [
        stack.enter_context(start_clients(Settings(servers, n * share, share, rooms)))
        for n in range(processes)
    ]


def assert_right(found: Sequence[dict]) -> None:
    """Nobody lacks anything, and nothing came twice or out of order."""
    assert [each["wrong"] for each in found if each["wrong"]] == []
    assert sum(each["missing"] + each["errors"] for each in found) == 0


# a thousand resumptions


@attrs.frozen
class Size:
    """How much is done.

    Attributes:
        clients, processes, rooms: as for a storm.
        rounds: in which all of them move on.
        missed: messages of each room meanwhile.
        happens: what, while they resume; in each third round, in turns.
    """

    clients: int
    processes: int
    rooms: int
    rounds: int
    missed: int
    happens: Sequence[str]


def hand_overs(nodes: Nodes, engine: EngineServer) -> dict[str, Callable[[float], None]]:
    """What happens while clients resume, each `pause` after they have begun, by its name."""

    def kill_node(pause: float) -> None:
        time.sleep(pause)
        nodes.kill(1)
        time.sleep(0.5)
        nodes.start(1)

    def restart_engine(pause: float) -> None:
        time.sleep(pause)
        engine.kill()
        time.sleep(0.2)
        engine.start()

    def stop_node(pause: float) -> None:
        time.sleep(pause)
        nodes.send(2, signal.SIGSTOP)
        time.sleep(1)
        nodes.send(2, signal.SIGCONT)

    def stop_engine(pause: float) -> None:
        time.sleep(pause)
        with engine.frozen():
            time.sleep(1.5)

    each = (kill_node, restart_engine, stop_node, stop_engine)
    return {do.__name__: do for do in each}


def move(folder: Path, engine: EngineServer, size: Size) -> None:
    random = Random(size.rounds)
    connections = during = 0
    began = time.monotonic()
    with ExitStack() as stack:
        nodes = stack.enter_context(Nodes(folder, engine, 3, *OPTIONS))
        every = clients_of(stack, nodes.ports, size.clients, size.processes, size.rooms)
        register(nodes.url(0))
        publisher = Publisher(nodes.url(0), size.rooms)
        stack.callback(publisher.close)
        publisher.publish()
        epoch = publisher.epoch()
        assert_right(told(every, "connect", epoch, 1))
        handing_over = hand_overs(nodes, engine)
        with publisher:
            for turn in range(size.rounds):
                what = size.happens[turn // 3 % len(size.happens)] if turn % 3 == 2 else ""
                if what == "restart_engine":
                    time.sleep(max(nodes.killed + APART - time.monotonic(), 0))
                told(every, "cut")
                publisher.until(publisher.number + size.missed)
                # More than there is, so that it comes live.
                for clients in every:
                    clients.tell("connect", epoch, publisher.number + 5)
                if what:
                    handing_over[what](random.random() / 20)
                found = [clients.answer() for clients in every]
                assert_right(found)
                refused = sum(each["refused"] for each in found)
                connections += size.clients + refused
                during += size.clients if what else 0
        assert publisher.refused == []
        assert publisher.epoch() == epoch
        found = told(every, "wait", publisher.number)
        assert_right(found)
        assert sum(each["too_many"] for each in found) == 0
        resumed = size.clients * size.rounds
        print(
            f"\n{resumed:,} resumptions at three nodes, {during:,} of them while a node or "
            f"its engine was killed or stood still: {connections:,} connections, "
            f"{publisher.number * size.rooms:,} messages to {size.clients} clients in "
            f"{size.rooms} rooms, none lost, none twice; {time.monotonic() - began:.0f} s"
        )


def test_clients_resume_across_nodes_while_these_and_their_engine_die(
    tmp_path: Path, engine: EngineServer
) -> None:
    happens = ["kill_node"] if isinstance(engine, RedisServer) else ["restart_engine"]
    move(tmp_path, engine, Size(24, 1, 4, rounds=3, missed=5, happens=happens))


@pytest.mark.slow
def test_a_thousand_resumptions_across_nodes(tmp_path: Path, engine: EngineServer) -> None:
    happens = ["kill_node", "restart_engine", "stop_node", "stop_engine"]
    move(tmp_path, engine, Size(120, 2, 10, rounds=24, missed=20, happens=happens))


# clients of a node that is killed


def calls(engine: EngineServer) -> dict[str, int]:
    """How often the engine was asked for what, so far."""
    if isinstance(engine, RedisServer):
        told = engine.ask("INFO", "commandstats").decode()
        found = re.findall(r"cmdstat_(\S+):calls=(\d+)", told)
        return {name: int(count) for name, count in found if name not in ("info", "ping")}
    time.sleep(1.5)  # until each of its processes has told of what it did
    rows = engine.ask("SELECT funcname, sum(calls)::bigint FROM pg_stat_user_functions GROUP BY 1")
    return {str(name): int(str(count)) for name, count in rows}


def move_from_a_killed_node(
    folder: Path, engine: EngineServer, clients: int, processes: int, missed: int
) -> float:
    """Clients of one node, which is killed, come to two others. Seconds until all are live."""
    raise_file_limit()
    rooms = max(clients // 50, 2)
    with ExitStack() as stack:
        nodes = stack.enter_context(Nodes(folder, engine, 3, *OPTIONS))
        every = clients_of(stack, nodes.ports[:1], clients, processes, rooms)
        register(nodes.url(0))
        publisher = Publisher(nodes.url(1), rooms)
        stack.callback(publisher.close)
        publisher.publish()
        epoch = publisher.epoch()
        assert_right(told(every, "connect", epoch, 1))
        nodes.kill(0)
        told(every, "cut")
        for _ in range(missed):
            publisher.publish()
        idle, since = calls(engine), time.monotonic()
        time.sleep(3)
        before, began = calls(engine), time.monotonic()
        found = told(every, "connect", epoch, publisher.number, nodes.ports[1:])
        after, ended = calls(engine), time.monotonic()
        assert_right(found)
        publisher.publish()
        live = told(every, "wait", publisher.number)
        assert_right(live)
        assert sum(each["too_many"] for each in live) == 0
    rate = sum(before.values()) - sum(idle.values())
    due = rate * (ended - began) / (began - since)
    more = {name: count - before.get(name, 0) for name, count in after.items()}
    asked = sum(more.values())
    last = max(each["last"] for each in found)
    half = max(each["p50"] for each in found)
    refused = sum(each["refused"] for each in found)
    most = sorted(((count, name) for name, count in more.items() if count), reverse=True)[:6]
    print(
        f"\n{clients:,} clients of a killed node live at two others after {last:.1f} s, half "
        f"after {half:.1f} s; {missed} messages missed by each; {refused:,} connections made "
        f"again; the engine was asked {asked} times in {ended - began:.1f} s, {due:.0f} of them "
        f"are due to time: {', '.join(f'{name} {count}' for count, name in most)}"
    )
    # Not once for each client.
    assert asked < 1.5 * due + 20 + clients / 10
    return last


@pytest.mark.parametrize("engine", ON_REDIS, indirect=True)
def test_clients_of_a_killed_node_go_on_elsewhere_without_the_engine(
    tmp_path: Path, engine: EngineServer
) -> None:
    move_from_a_killed_node(tmp_path, engine, clients=300, processes=1, missed=10)


@pytest.mark.slow
def test_five_thousand_clients_of_a_killed_node_go_on_elsewhere(
    tmp_path: Path, engine: EngineServer
) -> None:
    assert move_from_a_killed_node(tmp_path, engine, 5_000, 2, 50) < LIVE
