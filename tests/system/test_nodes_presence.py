"""Presence of nodes as processes, on a real Redis, one of which is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.engine.redis_server import HOST, RedisServer
from tests.http.client import request
from tests.processes import Process, serving, token_key
from tests.transports.lines import talk
from tests.transports.test_websocket import browse

LISTEN = tuple(
    each for scheme in ("tcp", "ws", "http") for each in ("--listen", f"{scheme}://{HOST}:0")
)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Process]]:
    """Two of them."""
    folder = tmp_path / "redis"
    folder.mkdir()
    key = str(token_key(tmp_path))
    with RedisServer(folder, "wheel", "--appendfsync", "always") as redis:
        options = ("--engine", redis.url(), "--token-key-file", key, "--presence", "room:*")
        with (
            serving(tmp_path / "one", *options, listen=LISTEN) as one,
            serving(tmp_path / "two", *options, listen=LISTEN) as two,
        ):
            yield [one, two]


def users(listed: object) -> list[str]:
    assert isinstance(listed, list)
    return sorted(each["user"] for each in listed)


async def test_those_of_a_killed_node_leave_unless_they_are_back(nodes: list[Process]) -> None:
    one, two = nodes
    async with talk(one) as line:
        for user in "abc":
            await line.ask(
                f"register room:* token-{user}\nset-attr token-{user} user={user}\n".encode()
            )
        await line.ask(b"register x,@room:* asks\n")
    with trio.fail_after(60):
        async with browse(one, "asks") as page, browse(one, "token-a") as stays:
            assert (await stays.ask("subscribe", tags=["room:7"]))["success"]
            async with browse(two, "token-b") as moves, browse(two, "token-c") as goes:
                for each in (moves, goes):
                    assert (await each.ask("subscribe", tags=["room:7"]))["success"]
                told = await page.ask("presence", tags=["room:7"])
                assert users(told["present"]) == ["a", "b", "c"]
                two.popen.kill()
                await moves.closed()
            async with browse(one, "token-b") as back:
                assert (await back.ask("subscribe", tags=["room:7"]))["success"]
                told = await page.get()
                assert (users(told["left"]), told["joined"], told["count"]) == (["c"], [], 2)
                answer = await request(one, "GET", "/v1/presence?tags=room:7")
                assert users(answer.json()["present"]) == ["a", "b"]
