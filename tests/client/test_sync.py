"""The synchronous client, called from a worker thread beside a real server."""

import asyncio
import errno
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mist.client import ConnectError, Position, RemoteError, State
from mist.client.sync import connect
from tests.servers import running


async def in_thread(tmp_path: Path, script: Callable[[str, str], None], **settings: object) -> None:
    with trio.fail_after(10):
        async with running(tmp_path, **settings) as server:
            await trio.to_thread.run_sync(script, *server.urls)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "mist-client"]


async def test_a_script_publishes_subscribes_and_administers(tmp_path: Path) -> None:
    def script(tcp: str, ws: str) -> None:
        with connect(tcp) as client:
            client.register(["a"], "T")
            assert client.tags("T") == {"a"}
            with pytest.raises(RemoteError):
                client.register(["a"], "T")
            with client.subscribe(["a"], timeout=0.05) as subscription:
                for n in range(100):
                    client.publish(["a"], str(n))
                client.flush()
                assert [m.text for m in subscription] == [str(n) for n in range(100)]
                assert (subscription.lost, subscription.reconnects) == (0, 0)
            assert client.list() == ()
            assert client.who().connected == 1
            with connect(ws, token="T") as browser:
                messages = browser.subscribe(["a"])
                client.publish(["a"], "over")
                assert next(messages).text == "over"
        assert client.state is State.CLOSED
        assert threads() == []

    await in_thread(tmp_path, script)


async def test_a_script_keeps_its_position(tmp_path: Path) -> None:
    def script(tcp: str, ws: str) -> None:
        with connect(tcp) as client:
            client.store(["a"], "1")
            newest = client.last()
            with client.subscribe(["a"], since=0, timeout=5) as subscription:
                for n in range(2, 6):
                    client.store(["a"], str(n))
                for n, message in zip(range(1, 6), subscription, strict=False):
                    assert message.text == str(n)
                    assert subscription.position == Position(newest.epoch, n)
        assert subscription.position == Position(newest.epoch, 5)

    await in_thread(tmp_path, script, history="memory://")


async def test_no_thread_stays_after_an_error(tmp_path: Path) -> None:
    def script(tcp: str, ws: str) -> None:
        def fail() -> None:
            with connect(tcp):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        with pytest.raises(ConnectError), connect(f"tcp+unix://{tmp_path}/none.sock"):
            pass
        assert threads() == []

    await in_thread(tmp_path, script)


async def test_a_callback_that_calls_its_client_is_told_so(tmp_path: Path) -> None:
    def script(tcp: str, ws: str) -> None:
        with connect(tcp) as client:
            messages = client.subscribe(
                ["a"], queue=1, on_gap=lambda gap: client.publish(["a"], "x")
            )
            for n in range(10):
                client.publish(["a"], str(n))
            client.flush()
            with pytest.raises(
                RuntimeError, match="on_state and on_gap run in the client's thread"
            ):
                for _ in range(2):
                    next(messages)
            assert client.ping() > 0

    await in_thread(tmp_path, script)


INTERRUPTED = """
import sys, threading
from mist.client.sync import connect
try:
    with connect(sys.argv[1]) as client:
        messages = client.subscribe(["never"])
        print("waiting", flush=True)
        next(messages)
except KeyboardInterrupt:
    print("interrupted", threading.active_count(), flush=True)
"""


async def test_ctrl_c_reaches_a_script_that_waits(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with running(tmp_path) as server:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-c", INTERRUPTED, server.urls[0]], stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            output = b""
            async with process.stdout:
                async for chunk in process.stdout:
                    output += chunk
                    if output == b"waiting\n":
                        process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
            assert output == b"waiting\ninterrupted 1\n"


FORKING = """
import os, signal, sys
from mist.client import ClientClosed, State
from mist.client.sync import connect

def attempt(name, call):
    try:
        call()
    except ClientClosed as error:
        print(name, error, flush=True)

def child():
    signal.alarm(20)  # a call that waits for ever
    attempt("publish", lambda: client.publish(["a"], "inherited"))
    attempt("subscribe", lambda: client.subscribe(["b"]))
    attempt("next", lambda: next(messages))
    print(client.state.value, messages.lost, flush=True)
    messages.close()
    with connect(sys.argv[1]) as own:
        own.publish(["a"], "the child's own")
    print("child ends", flush=True)

with connect(sys.argv[1]) as client:
    with client.subscribe(["a"]) as messages:
        client.flush()
        process = os.fork()
        if process:
            status = os.waitpid(process, 0)[1]
            client.publish(["a"], "the parent's")
            print(next(messages).text, next(messages).text, status, flush=True)
            print(client.list() == (frozenset("a"),), flush=True)
        else:
            child()
"""


async def test_after_a_fork_the_child_has_to_connect_itself(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        with trio.fail_after(60):
            command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING]
            result = await trio.run_process([*command, server.urls[0]], capture_stdout=True)
    why = "this client was connected by another process; connect again after a fork"
    assert result.stdout.decode().splitlines() == [
        f"publish {why}",
        f"subscribe {why}",
        f"next {why}",
        "closed 0",
        "child ends",
        "the child's own the parent's 0",
        "True",
    ]


def test_where_no_loop_can_be_made_the_systems_error_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio.events, "new_event_loop", fail)
    with pytest.raises(OSError, match="Too many open files"), connect("tcp://127.0.0.1:1"):
        pass
    assert threads() == []
