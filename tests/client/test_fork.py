"""After `os.fork`: what the child does with its copy of a client doesn't reach the parent's."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from mist.client import connect
from mist.server import Server
from tests.servers import running

# The parent waits for its child outside the loop: of what arrives while both run it, either may
# take what the other waits for, with or without mist. For the same reason no child returns.
SCRIPT = """
import os, signal, sys
import trio
from mist.client import ClientClosed, connect, sync

what, tcp, url = sys.argv[1:]
token = "T" if url.startswith("ws") else None
signal.alarm(20)

def show(*words):
    print(*words, flush=True)

def fork():
    child = os.fork()
    if not child:
        signal.alarm(10)  # its parent's is not inherited
    return child

def wait_for(child):
    show("child ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

async def go_on(client, messages):
    with trio.fail_after(5):
        await client.publish(["a"], "the parent's last")
        async for message in messages:
            show(message.text)
            if message.text == "the parent's last":
                break
        await client.ping()
        if token is None:
            show((await client.who()).connected)

async def fork_and_leave():
    async with connect(url, token=token) as client:
        async with client.subscribe(["a"]) as messages:
            await client.ping()
            await client.publish(["a"], "queued")
            if child := fork():
                wait_for(child)
                return await go_on(client, messages)
    show("left")
    os._exit(0)

async def fork_and_unsubscribe():
    async with connect(url, token=token) as client:
        async with client.subscribe(["a"]) as messages:
            if child := fork():
                wait_for(child)
                return await go_on(client, messages)
        await trio.sleep(0.1)
        os._exit(0)

async def fork_while_queued():
    async with connect(url, token=token) as client:
        async with client.subscribe(["a"]) as messages:
            await client.publish(["a"], "queued")
            if child := fork():
                wait_for(child)
                return await go_on(client, messages)
            await trio.sleep(0.1)
            os._exit(0)

async def fork_and_connect():
    async with connect(url, token=token) as client:
        async with client.subscribe(["a"]) as messages:
            if child := fork():
                wait_for(child)
                return await go_on(client, messages)
            try:
                await client.ping()
            except ClientClosed as error:
                show(error)
            with sync.connect(url, token=token) as own:
                own.publish(["a"], "the child's")
            os._exit(0)

async def fork_and_lose_the_connection():
    states = []
    async with connect(url, token=token, on_state=lambda it: states.append(it.value)) as client:
        async with client.subscribe(["a"]) as messages:
            await client.publish(["a"], "queued")  # the child finds that it can't be written
            if child := fork():
                wait_for(child)
                return await go_on(client, messages)
            with trio.fail_after(10):
                while states[-1] != "closed":
                    await trio.sleep(0.01)
            show(*states)
            os._exit(0)

async def fork_while_connecting():
    async def attempt():
        options = dict(wait=True, backoff_base=0.01, backoff_cap=0.01)
        try:
            async with connect("tcp+unix:///nobody/listens.sock", **options):
                pass
        except ClientClosed as error:
            show(error)
        os._exit(0)

    async with trio.open_nursery() as tasks:
        tasks.start_soon(attempt)
        await trio.sleep(0.05)
        if child := fork():
            wait_for(child)
            os._exit(0)

async def leave_while_a_child_lives():
    reading, writing = os.pipe()
    async with connect(url, token=token):
        if not (child := fork()):
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    async with connect(tcp) as other:
        with trio.fail_after(5):
            while (await other.who()).connected > 1:
                await trio.sleep(0.01)
    os.close(writing)
    wait_for(child)

trio.run(globals()[what])
"""


ADVICE = (
    "this client was connected by another process; connect again after a fork, with "
    "mist.client.sync or after an exec: a child can't use its parent's event loop"
)


@pytest.fixture(params=["tcp", "ws"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path, grants={"T": {"a", ">a"}}) as server:
        with trio.fail_after(60):
            yield server


async def run(server: Server, protocol: str, what: str) -> list[str]:
    """Run a function of the script against a server. Returns the lines that it printed."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, what]
    tcp, ws = server.urls
    url = tcp if protocol == "tcp" else ws
    result = await trio.run_process([*command, tcp, url], capture_stdout=True)
    return result.stdout.decode().splitlines()


def went_on(protocol: str, *messages: str) -> list[str]:
    """What a parent shows whose client works, and is the only one that is connected."""
    shown = ["child ended 0", *messages, "the parent's last"]
    return [*shown, "1"] if protocol == "tcp" else shown


async def test_a_child_that_leaves_the_block_leaves_the_parents_connection(
    server: Server, protocol: str
) -> None:
    lines = await run(server, protocol, "fork_and_leave")
    assert lines == ["left", *went_on(protocol, "queued")]


async def test_a_child_does_not_end_the_parents_subscription(server: Server, protocol: str) -> None:
    assert await run(server, protocol, "fork_and_unsubscribe") == went_on(protocol)


async def test_what_was_queued_before_the_fork_is_sent_once(server: Server, protocol: str) -> None:
    async with connect(server.urls[0]) as client, client.subscribe(["a"]) as messages:
        await run(server, protocol, "fork_while_queued")
        await client.publish(["a"], "end")
        texts = [(await anext(messages)).text for _ in range(3)]
    assert texts == ["queued", "the parent's last", "end"]


async def test_a_child_is_told_how_to_connect_and_can(server: Server, protocol: str) -> None:
    lines = await run(server, protocol, "fork_and_connect")
    assert lines == [ADVICE, *went_on(protocol, "the child's")]


async def test_a_childs_copy_does_not_reconnect(server: Server, protocol: str) -> None:
    lines = await run(server, protocol, "fork_and_lose_the_connection")
    assert lines == ["connected closed", *went_on(protocol, "queued")]


async def test_a_child_ends_the_parents_attempts_to_connect(server: Server) -> None:
    assert await run(server, "tcp", "fork_while_connecting") == [ADVICE, "child ended 0"]


async def test_a_connection_ends_with_the_parents_block_while_a_child_lives(
    server: Server, protocol: str
) -> None:
    lines = await run(server, protocol, "leave_while_a_child_lives")
    assert lines == ["child ended 0"]
