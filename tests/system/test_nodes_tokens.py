"""Tokens of nodes as processes, on a real Redis: registered at several at once, revoked beside
publishers, and a node that is cut off.

pytest tests/system/test_nodes_tokens.py --slow -s     the whole of it; prints its figures
"""

import json
import math
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected

from mist.auth.key import make_key_file
from tests.engine.proxy import Proxy
from tests.engine.redis_server import HOST, RedisServer
from tests.http.client import request
from tests.processes import Process, mist, serving, token_key
from tests.system.linearizability import IMPOSSIBLE, Operation, is_linearizable
from tests.transports.lines import Lines, talk
from tests.transports.test_websocket import browse, status
from tests.waiting import until

LISTEN = tuple(
    each for scheme in ("tcp", "ws", "http") for each in ("--listen", f"{scheme}://{HOST}:0")
)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder, "wheel", "--appendfsync", "always") as server:
        yield server


Start = Callable[..., Awaitable[Process]]
Far = Callable[..., Awaitable[list[Process]]]


@pytest.fixture
async def start(tmp_path: Path, redis: RedisServer) -> Any:
    """Starts another node, each time it is called."""
    stack = ExitStack()
    started = 0

    async def start(*options: str, port: int = 0) -> Process:
        nonlocal started
        started += 1
        url = redis.url(timeout=1, connect_timeout=1).replace(
            f":{redis.port}/", f":{port or redis.port}/"
        )
        data = tmp_path / f"node{started}"
        options = ("--engine", url, "--token-key-file", str(token_key(tmp_path)), *options)
        process = serving(data, *options, listen=LISTEN)
        return await trio.to_thread.run_sync(stack.enter_context, process)

    yield start
    await trio.to_thread.run_sync(stack.close)


@pytest.fixture
async def far(start: Start, redis: RedisServer, nursery: trio.Nursery) -> AsyncIterator[Far]:
    """Three nodes that are not equally far from their Redis.

    Args:
        delayed: what is late; see `Proxy.delayed`.
    """

    async def far(delayed: bytes = b"") -> list[Process]:
        nodes = []
        for delay in (0.0, 0.005, 0.02):
            proxy = Proxy(redis.port, delayed=delayed)
            await nursery.start(proxy.run)
            nodes.append(await start(port=proxy.port))
            proxy.delay = delay
        return nodes

    yield far
    nursery.cancel_scope.cancel()


# Registered at several at once

Tags = frozenset[str] | None
"""Of a token; None where it isn't registered."""


def answer_of(lines: list[bytes]) -> str:
    """The answer to one command; empty where that has none."""
    return b"".join(lines).decode().strip()


async def do(client: Lines, token: str, random: Random) -> Operation[Tags]:
    """Something to a token, at random."""
    command = random.choice(["register", "unregister", "set", "unset", "tags"])
    tag = random.choice("abc")
    line = f"{command} {tag} {token}\n" if command not in ("unregister", "tags") else ""
    begun = trio.current_time()
    text = answer_of(await client.ask((line or f"{command} {token}\n").encode()))
    ended = trio.current_time()
    refused = text.startswith("error ")
    assert not refused or text in ("error Token not found", "error already exists"), text

    def apply(tags: Tags) -> Tags | object:
        match command:
            case "register":
                after: Tags = tags if refused else frozenset({tag})
                return after if refused == (tags is not None) else IMPOSSIBLE
            case "unregister":
                return None
            case _ if refused or tags is None:
                return tags if refused and tags is None else IMPOSSIBLE
            case "set":
                return tags | {tag}
            case "unset":
                return tags - {tag}
            case _:
                shown = text.removeprefix(f"tags {token}").strip()
                return tags if frozenset(filter(None, shown.split(","))) == tags else IMPOSSIBLE

    return Operation(begun, ended, apply, f"{command} {tag} {text}")


async def change(
    node: Process, token: str, random: Random, turns: int, history: list[Operation[Tags]]
) -> None:
    async with talk(node) as client:
        for _ in range(turns):
            history.append(await do(client, token, random))


async def check_linearizable(nodes: list[Process], clients: int, rounds: int, turns: int) -> int:
    """Have clients at three nodes change one token at once, again and again; operations made."""
    made = 0
    for round_ in range(rounds):
        history: list[Operation[Tags]] = []
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                random = Random(f"{round_}.{number}")
                # The first one is fast; it goes on for as long as the others.
                more = turns * 4 if number % 3 == 0 else turns
                node = nodes[number % 3]
                nursery.start_soon(change, node, f"token{round_}", random, more, history)
        assert is_linearizable(history, None), "\n".join(map(str, history))
        made += len(history)
    return made


async def test_changes_at_three_nodes_are_linearizable(far: Far) -> None:
    await check_linearizable(await far(), 4, 6, 8)


@pytest.mark.slow
async def test_many_changes_at_three_nodes_are_linearizable(start: Start) -> None:
    nodes = [await start() for _ in range(3)]
    made = await check_linearizable(nodes, 6, 300, 10)
    print(f"\n{made} operations on 300 tokens at three nodes: linearizable")


async def register(node: Process, tag: str, token: str, answers: list[str]) -> None:
    async with talk(node) as client:
        answers.append(answer_of(await client.ask(f"register {tag} {token}\n".encode())))


async def test_of_many_registrations_of_one_token_one_succeeds(start: Start) -> None:
    nodes = [await start() for _ in range(2)]
    for turn in range(50):
        answers: list[str] = []
        async with trio.open_nursery() as nursery:
            for node, tag in zip(nodes * 2, "abcd", strict=True):
                nursery.start_soon(register, node, tag, f"token{turn}", answers)
        assert sorted(answers) == ["", *["error already exists"] * 3]


# Revoked beside publishers


@attrs.define(eq=False)
class Publishing:
    """Publishes numbers at all nodes, ascending over all of them."""

    sent: int = 0

    async def run(self, node: Process) -> None:
        async with talk(node) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.rest)
            while True:
                # From here to the kernel there is no other task's turn.
                self.sent += 1
                await client.send(b"publish a %d\n" % self.sent)
                await trio.sleep(0.002)


@attrs.define(eq=False)
class Heard:
    """What a session of a token was given, and when it was ended."""

    highest: int = 0
    count: int = 0
    ended: float = math.inf

    async def run(self, node: Process, token: str) -> None:
        async with browse(node, token) as page:
            assert (await page.ask("subscribe", tags=["a"]))["success"]
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    message = json.loads(await page.socket.get_message())
                    self.highest = max(self.highest, int(message["data"]))
                    self.count += 1
            self.ended = trio.current_time()
        assert closed.value.reason is not None
        assert closed.value.reason.code == 4401


async def revoke_beside_publishers(nodes: list[Process], times: int) -> list[float]:
    """Revoke tokens, each with a session at each of three nodes.

    Returns:
        Seconds from each command to the end of each session.
    """
    publishing = Publishing()
    seconds: list[float] = []
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(publishing.run, node)
        for turn in range(times):
            token = secrets.token_hex(10)
            async with talk(nodes[turn % 3]) as admin:
                await admin.ask(f"register a {token}\n".encode())
                heard = [Heard() for _ in nodes]
                async with trio.open_nursery() as sessions:
                    for node, each in zip(nodes, heard, strict=True):
                        sessions.start_soon(each.run, node, token)
                    await until(lambda heard=heard: all(each.count for each in heard))  # type: ignore[misc]
                    begun = trio.current_time()
                    await admin.ask(f"unregister {token}\n".encode())
                    returned = publishing.sent  # what has a higher number was sent after it
            assert max(each.highest for each in heard) <= returned
            seconds += [each.ended - begun for each in heard]
        nursery.cancel_scope.cancel()
    return sorted(seconds)


async def test_nothing_published_after_a_revocation_reaches_its_sessions(far: Far) -> None:
    # The log comes at once, and the revocations behind it.
    seconds = await revoke_beside_publishers(await far(b":tokens:log"), 12)
    assert seconds[-1] < 1


@pytest.mark.slow
async def test_five_hundred_revocations_reach_all_nodes_in_time(start: Start) -> None:
    nodes = [await start() for _ in range(3)]
    seconds = await revoke_beside_publishers(nodes, 500)
    p50, p99 = (seconds[int(len(seconds) * share)] for share in (0.5, 0.99))
    print(
        f"\n500 revocations, 3 nodes: ended after {p50 * 1000:.1f} ms (p50), {p99 * 1000:.1f} ms "
        f"(p99), {seconds[-1] * 1000:.1f} ms (most); no message behind one"
    )
    assert seconds[-1] < 1


# A node that is cut off


@asynccontextmanager
async def cut_off(proxy: Proxy) -> AsyncIterator[None]:
    """Neither requests nor replies get through, and no connection is closed."""
    with proxy.lose_requests(), proxy.lose_replies():
        yield


async def test_a_node_without_its_redis_lets_nobody_in_and_comes_back(
    start: Start, redis: RedisServer, nursery: trio.Nursery
) -> None:
    proxy = Proxy(redis.port)
    await nursery.start(proxy.run)
    here, there = await start(), await start(port=proxy.port)

    async def ready(node: Process) -> int:
        return (await request(node, "GET", "/readyz")).status

    async with talk(here) as admin, browse_registered(here, there) as (page, token):
        async with cut_off(proxy):
            cut = trio.current_time()
            # Known as the token is, it is refused after a second.
            while (code := await login(there, token)) == 101:
                assert trio.current_time() - cut < 3
            assert code == 503
            assert trio.current_time() - cut < 3
            assert await login(here, token) == 101
            # It is still ready, if not for long.
            while await ready(there) == 200:
                assert trio.current_time() - cut < 8
            assert await ready(here) == 200
            await admin.ask(b"store a 1\n")
            other = await admin.ask(f"unregister {token}\nstore a 2\n".encode())
            assert any(line.startswith(b"stored") for line in other)
        # What was stored before the revocation may be delivered, and what came after it not.
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                assert json.loads(await page.socket.get_message())["data"] == "1"
        assert closed.value.reason is not None
        assert closed.value.reason.code == 4401
        with trio.fail_after(20):
            while await ready(there) != 200:  # noqa: ASYNC110  # which nothing tells of
                await trio.sleep(0.05)
            assert await login(there, token) == 401
            async with talk(there) as client:
                assert answer_of(await client.ask(b"last\n")).split()[-1] == "2"
    nursery.cancel_scope.cancel()


@asynccontextmanager
async def browse_registered(here: Process, there: Process) -> AsyncIterator[Any]:
    """A token that was registered at one node, and a page that subscribes with it at the other."""
    token = secrets.token_hex(10)
    async with talk(here) as admin:
        await admin.ask(f"register a {token}\n".encode())
    async with browse(there, token) as page:
        assert (await page.ask("subscribe", tags=["a"]))["success"]
        yield page, token


async def login(node: Process, token: str) -> int:
    """The status of a handshake with a token."""
    try:
        async with browse(node, token, ours=False):
            return 101
    except ConnectionRejected as rejected:
        return int(rejected.status_code)


# What is refused at the start


@pytest.mark.parametrize("option", ["--engine", "--tokens"])
def test_what_can_not_be_used_is_told_in_one_line(
    tmp_path: Path, redis: RedisServer, option: str
) -> None:
    key = token_key(tmp_path)
    other, short = tmp_path / "other.key", tmp_path / "short.key"
    make_key_file(other)
    short.write_bytes(bytes(31))
    short.chmod(0o600)
    url = redis.url().replace("redis://", "redis://:correct-horse@")

    def refused(*options: str) -> str:
        run = mist("serve", "--data", str(tmp_path / "d"), option, *options)
        assert run.returncode == 2
        assert re.fullmatch(r"mist serve: [^\n]*\n", run.stderr), run.stderr
        assert "correct-horse" not in run.stderr + run.stdout
        return run.stderr

    with serving(tmp_path / "first", option, redis.url(), "--token-key-file", str(key)):
        pass  # which has made the registry
    use = (redis.url(), "--token-key-file")
    assert "it was made with another key" in refused(*use, str(other))
    assert f"{short} is not a key file of 32 bytes" in refused(*use, str(short))
    assert "is missing; put the one of the other servers there, or make the first one: mist" in (
        refused(*use, str(tmp_path / "none.key"))
    )
    assert not (tmp_path / "none.key").exists()
    assert "need the same key: give --token-key-file" in refused(redis.url())
    redis.ask("CONFIG", "SET", "maxmemory", "100mb")
    redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert "would evict" in refused(*use, str(key))
    redis.kill()
    assert "can't connect to Redis" in refused(url, "--token-key-file", str(key))


async def test_a_token_is_in_no_log(start: Start, redis: RedisServer) -> None:
    nodes = [await start("--log-level", "debug") for _ in range(2)]
    token = "s3cret-t0ken"
    async with talk(nodes[0]) as admin:
        await admin.ask(f"register a {token}\nregister a {token}\nset b {token}\n".encode())
    async with browse(nodes[1], token) as page:
        async with talk(nodes[0]) as admin:
            await admin.ask(f"unregister {token}\n".encode())
        assert await page.closed() == 4401
    assert await status(nodes[1], token=token, ours=False) == 401
    redis.kill()
    async with talk(nodes[0]) as admin:
        assert b"error" in b"".join(await admin.ask(f"register a {token}\n".encode()))
    for node in nodes:
        node.popen.terminate()
        out, errors = await trio.to_thread.run_sync(node.popen.communicate)
        assert errors
        assert "s3cret" not in out + errors


def test_tokens_are_administered_at_any_node(tmp_path: Path, redis: RedisServer) -> None:
    options = ("--tokens", redis.url(), "--token-key-file", str(token_key(tmp_path)))
    with serving(tmp_path / "1", *options) as one, serving(tmp_path / "2", *options) as two:

        def token(node: Process, *arguments: str) -> tuple[int, str]:
            run = mist("token", *arguments, MIST_HOST=node.urls[0])
            return run.returncode, run.stdout

        assert token(one, "register", "a,b", "t") == (0, "")
        assert token(two, "tags", "t") == (0, "a,b\n")
        assert token(two, "unset", "a", "t") == (0, "")
        assert token(one, "tags", "t") == (0, "b\n")
        assert token(one, "unregister", "t") == (0, "")
        assert token(two, "tags", "t")[0] == 1
