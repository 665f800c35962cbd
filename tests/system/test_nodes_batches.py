"""A writer's batch and a message with an idempotency key are stored once, whichever node is asked
and at whichever step it is killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import attrs
import h11
import pytest
import trio

from tests.engine.proxy import Proxy
from tests.engine.redis_server import RedisServer
from tests.http.arrow import commit, path, put, some
from tests.http.client import Response, request
from tests.processes import Process
from tests.system.nodes import ON_REDIS, EngineServer, Nodes, engine_server

ROWS = 3_000  # of a part


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[EngineServer]:
    with engine_server("redis", tmp_path) as server:
        yield server


@attrs.frozen
class Step:
    """When a node is killed.

    Attributes:
        trap, where: see `Proxy`. `WRITER` stands for the batch's writer.
        is_stored: whether the engine has the batch by then; None where it may.
    """

    name: str
    trap: bytes
    where: Literal["before", "behind", "answered"]
    is_stored: bool | None


STEPS = [
    Step("before a part is staged", b":staged:", "before", False),
    Step("before it hears that a part is staged", b":staged:", "behind", False),
    Step("once a part is staged", b":staged:", "answered", None),
    Step("before the commit", b"WRITER", "before", False),
    Step("before it hears of the commit", b"WRITER", "behind", True),
    Step("once it has heard of the commit", b"WRITER", "answered", True),
]


async def messages(node: Process) -> list[tuple[int, str]]:
    """All that it has of a tag, once it is ready."""
    found: list[tuple[int, str]] = []
    while True:
        after = found[-1][0] if found else 0
        answer = await request(node, "GET", f"/v1/messages?tags=a&since={after}")
        page = answer.json()["messages"]
        if not page:
            return found
        found += [(each["id"], each["data"]) for each in page]


async def stage_and_commit(node: Process, writer: str) -> Any:
    """As a client does it that repeats what was not answered, wherever."""
    for part in range(2):
        answer = await put(node, path(writer, part=part), some("a", ROWS, part * ROWS))
        assert answer.status == 201
    return await commit(node, (0, 0, 2), txn=writer)


async def committed(node: Process, writer: str) -> Response:
    """The answer to a repeat, once the node has the batch."""
    with trio.fail_after(20):
        while True:
            answer = await commit(node, (0, 0, 2), txn=writer)
            if answer.status == 200:
                return answer
            assert answer.json()["code"] == "part_missing"
            await trio.sleep(0.05)


async def test_a_batch_is_stored_once_whenever_its_node_is_killed(
    tmp_path: Path, redis: RedisServer, nursery: trio.Nursery
) -> None:
    proxy = Proxy(redis.port)
    await nursery.start(proxy.run)
    nodes = Nodes(tmp_path, redis, 2)
    nodes.engines[0] = redis.url().replace(f":{redis.port}/", f":{proxy.port}/")
    expected: list[str] = []
    await trio.to_thread.run_sync(nodes.__enter__)
    try:
        for number, step in enumerate(STEPS):
            await trio.to_thread.run_sync(nodes.until_ready, 0)
            writer = f"writer-{number}-"
            # Killed at once, and cleared away below.
            proxy.sprung = nodes.process(0).popen.kill
            proxy.where = step.where
            proxy.trap = step.trap.replace(b"WRITER", writer.encode())
            with pytest.raises((OSError, h11.RemoteProtocolError, trio.BrokenResourceError)):
                await stage_and_commit(nodes.process(0), writer)
            assert proxy.trap == b"", f"{step.name}: was not killed"
            nodes.kill(0)
            # The other node has it where the engine has: without its parts, which are a node's own.
            if step.is_stored:
                again = await committed(nodes.process(1), writer)
            else:
                if step.is_stored is False:
                    missing = await commit(nodes.process(1), (0, 0, 2), txn=writer)
                    assert missing.status == 409, step.name
                    assert missing.json()["code"] == "part_missing"
                again = await stage_and_commit(nodes.process(1), writer)
                assert again.status == 200
            told = again.json()
            assert told["rows"] == 2 * ROWS, step.name
            assert told["repeated"] is step.is_stored or step.is_stored is None, step.name
            await trio.to_thread.run_sync(nodes.start, 0)
            await trio.to_thread.run_sync(nodes.until_ready, 0)
            repeated = await committed(nodes.process(0), writer)
            assert repeated.json() == {**told, "repeated": True}, step.name
            expected += map(str, range(2 * ROWS))
        logs = [await messages(nodes.process(each)) for each in (0, 1)]
    finally:
        await trio.to_thread.run_sync(nodes.__exit__, None)
    assert logs[0] == logs[1]
    assert [data for _, data in logs[0]] == expected
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ON_REDIS)
async def test_one_key_at_three_nodes_at_once_is_stored_once(tmp_path: Path, kind: str) -> None:
    with engine_server(kind, tmp_path) as engine, Nodes(tmp_path, engine, 3) as nodes:
        for turn in range(20):
            answers: list[tuple[int, str]] = []

            async def publish(
                number: int, data: str, turn: int = turn, answers: list[Any] = answers
            ) -> None:
                headers = {"Idempotency-Key": f'"turn {turn}"'}
                body = {"tags": ["a"], "data": data}
                answer = await request(
                    nodes.process(number), "POST", "/v1/messages", headers, json=body
                )
                answers.append((answer.status, str(answer.json().get("id"))))

            async with trio.open_nursery() as nursery:
                for each in range(6):
                    nursery.start_soon(publish, each % 3, f"data {turn}")
            assert len(set(answers)) == 1
            assert answers[0][0] == 200
            await publish(turn % 3, "something else")
            assert answers[-1][0] == 422
        logs = [await messages(nodes.process(each)) for each in range(3)]
    assert [data for _, data in logs[0]] == [f"data {turn}" for turn in range(20)]
    assert logs[0] == logs[1] == logs[2]
