"""What was stored at any node is what `last` tells at each of them: `store` and `last` at three
nodes that are not equally far from their engine are linearizable.

pytest tests/system/test_nodes_last.py --slow -s     the whole of it; prints its figures
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio

from tests.processes import Process
from tests.system import test_nodes_tokens as on_redis
from tests.system.linearizability import IMPOSSIBLE, Operation, is_linearizable
from tests.system.nodes import ON_REDIS, EngineServer, engine_server
from tests.system.test_nodes_tokens import Far, answer_of
from tests.transports.lines import Lines, talk

far, start = on_redis.far, on_redis.start


@pytest.fixture(params=ON_REDIS)
def redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineServer]:
    """The server of the nodes, whichever it is."""
    with engine_server(request.param, tmp_path) as server:
        yield server


async def do(client: Lines, random: Random) -> Operation[int]:
    """Store something, or ask what is newest. What is known of a log is its highest id."""
    store = random.random() < 0.5
    begun = trio.current_time()
    text = answer_of(await client.ask(b"store a x\n" if store else b"last\n"))
    ended = trio.current_time()
    word, *_, number = text.split(" ")
    assert word == ("stored" if store else "last"), text
    id_ = int(number)

    def apply(newest: int) -> int | object:
        if store:
            return id_ if newest < id_ else IMPOSSIBLE
        return newest if newest == id_ else IMPOSSIBLE

    return Operation(begun, ended, apply, text)


async def store_and_ask(
    node: Process, random: Random, turns: int, history: list[Operation[int]]
) -> None:
    async with talk(node) as client:
        for _ in range(turns):
            history.append(await do(client, random))


async def check_linearizable(nodes: list[Process], clients: int, rounds: int, turns: int) -> int:
    """Have clients at three nodes store and ask at once, again and again; operations made."""
    made, newest = 0, 0
    for round_ in range(rounds):
        history: list[Operation[int]] = []
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                random = Random(f"{round_}.{number}")
                # Those that are near go on for as long as those that are far.
                more = turns * (4 if number % 3 == 0 else 1)
                nursery.start_soon(store_and_ask, nodes[number % 3], random, more, history)
        assert is_linearizable(history, newest), "\n".join(map(str, history))
        made += len(history)
        async with talk(nodes[0]) as client:
            newest = int(answer_of(await client.ask(b"last\n")).split(" ")[-1])
    return made


async def test_store_and_last_at_three_nodes_are_linearizable(far: Far) -> None:
    await check_linearizable(await far(), 4, 6, 8)


@pytest.mark.slow
async def test_much_that_is_stored_and_asked_at_three_nodes_is_linearizable(far: Far) -> None:
    made = await check_linearizable(await far(), 6, 40, 10)
    print(f"\n{made} times `store` and `last` at three nodes: linearizable")


async def test_without_its_engine_a_node_does_not_tell_what_is_newest(
    start: on_redis.Start, redis: EngineServer
) -> None:
    node = await start()
    async with talk(node) as client:
        assert answer_of(await client.ask(b"store a x\n")) == "stored 1"
        with redis.frozen():
            assert answer_of(await client.ask(b"last\n")) == "error History is unavailable"
        with trio.fail_after(20):
            while (answer := answer_of(await client.ask(b"last\n"))).startswith("error"):
                pass
        assert answer.split(" ")[-1] == "1"
