"""The benchmark against peers: its driver counts exactly, and notices what it must."""

import json

import pytest

from mist.bench.dialect import Dialect
from mist.bench.load import WARM, open_load
from mist.bench.receiver import Receiver
from mist.bench.script import tag_lists, write_script
from tests.bench.fakes import faulty_server
from tests.benchmarks import peers
from tests.benchmarks.peers_dialects import Nats, RedisPublisher, RedisSubscriber
from tests.benchmarks.peers_servers import SERVERS

MESSAGES = 300


@pytest.mark.parametrize("name", ["mist", "mist-ws"])
def test_every_delivery_of_mist_is_counted(name: str) -> None:
    with SERVERS[name]() as target:
        for publishers, lists, window in ((1, 1, 50), (1, 10, 0), (4, 1, 0), (4, 10, 50)):
            with open_load(target, publishers, 3, messages=MESSAGES, lists=lists) as load:
                run = load.flood(MESSAGES, window, 10.0)
            assert (run.messages, run.deliveries) == (MESSAGES, 3 * MESSAGES)
            assert (run.lost, run.repeated, run.reordered) == (0, 0, 0)
            assert run.server_cpu is None or run.server_cpu > 0


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ((), (1, 0, 0)),  # message 10 is lost
        ((0, 0), (0, 1, 0)),  # it comes twice
        ((1, 0), (0, 0, 1)),  # it comes after the next
    ],
)
def test_a_server_that_cheats_is_noticed(
    orders: tuple[int, ...], expected: tuple[int, int, int]
) -> None:
    last: list[bytes] = []

    def cheat(number: int, line: bytes) -> list[bytes]:
        position = number - WARM - 10
        if position == 0 and 1 in orders:
            last.append(line)
            return []
        if position == 0:
            return [line for _ in orders]
        return [line, last.pop()] if last else [line]

    with faulty_server(cheat) as target, open_load(target, 1, 1, messages=100) as load:
        run = load.flood(100, 20, 10.0)
    assert (run.lost, run.repeated, run.reordered) == expected


DATA = b"0000000007xx"


@pytest.mark.parametrize(
    ("dialect", "tags", "publish", "delivery"),
    [
        (
            Nats(),
            ["bench"],
            b"PUB bench 12\r\n0000000007xx\r\n",
            b"MSG bench 1 12\r\n0000000007xx\r\n",
        ),
        (
            Nats(),
            ["bench", "t1"],
            b"PUB bench.t1 12\r\n0000000007xx\r\n",
            b"MSG bench.t1 1 12\r\n0000000007xx\r\n",
        ),
        (
            RedisPublisher(),
            ["bench"],
            b"*3\r\n$7\r\nPUBLISH\r\n$5\r\nbench\r\n$12\r\n0000000007xx\r\n",
            b"*3\r\n$7\r\nmessage\r\n$5\r\nbench\r\n$12\r\n0000000007xx\r\n",
        ),
        (
            RedisSubscriber(),
            ["bench", "t1"],
            b"*3\r\n$7\r\nPUBLISH\r\n$8\r\nbench,t1\r\n$12\r\n0000000007xx\r\n",
            b"*4\r\n$8\r\npmessage\r\n$7\r\nbench,*\r\n$8\r\nbench,t1\r\n$12\r\n0000000007xx\r\n",
        ),
    ],
)
def test_peers_are_spoken_to_as_they_are(
    dialect: Dialect, tags: list[str], publish: bytes, delivery: bytes
) -> None:
    assert dialect.publish(tags, DATA) == publish
    assert dialect.delivery(tags, DATA) == delivery


@pytest.mark.parametrize("dialect", [Nats(), RedisSubscriber()])
def test_deliveries_of_peers_are_told_from_what_else_they_say(dialect: Dialect) -> None:
    script = write_script(0, 10, 20, tag_lists(3), dialect, dialect)
    receiver = Receiver([script], dialect)
    ping = b"PING\r\n" if isinstance(dialect, Nats) else b""
    first = script.delivery[: script.delivery_size]
    second = script.delivery[script.delivery_size : 2 * script.delivery_size]
    answer = receiver.feed(memoryview(first + ping + second + dialect.fenced))
    assert (receiver.received, receiver.fences) == (2, 1)
    assert answer == ping.replace(b"PING", b"PONG")


def test_shapes_have_names_and_are_chosen_by_them(capsys: pytest.CaptureFixture[str]) -> None:
    peers.main(["--list"])
    names = capsys.readouterr().out.split()
    assert {"1-1", "1-100-mixed", "10-10-unthrottled", "latency"} <= set(names)
    assert len(names) == len(set(names)) == 19
    with pytest.raises(SystemExit):
        peers.main(["--rounds", "0"])


def test_figures_come_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rounds", "2", "--scale", "0.01", "--servers", "mist", "--json"]
    peers.main([*options, "--shapes", "1-10", "1-10-[mu]*"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["shapes"]) == {
        "1-10",
        "1-10-mixed",
        "1-10-unthrottled",
        "1-10-mixed-unthrottled",
    }
    for shape in found["shapes"].values():
        runs = shape["runs"]["mist"]
        assert [(run["deliveries"], run["lost"]) for run in runs] == [(10_000, 0)] * 2
        assert shape["mist_over_better"] is None


def test_the_bare_loops_forward_all_there_is() -> None:
    for name, start in peers.LOOPS.items():
        with start() as target, open_load(target, 1, 2, messages=MESSAGES) as load:
            run = load.pace(MESSAGES, 2_000, lambda due, now: None)
        assert (run.deliveries, run.lost) == (2 * MESSAGES, 0), name
