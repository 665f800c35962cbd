"""The client under asyncio, as its users run it: `asyncio.run`, tasks, timeouts, and forks."""

import asyncio
import contextlib
import os
import threading

import pytest
import trio

from mist.client import (
    Client,
    ClientClosed,
    ConnectionLost,
    NoEventLoop,
    State,
    connect,
)
from mist.client import sync as blocking
from tests.processes import Process
from tests.servers import port_of


class Cutter:
    """Stands between a client and a server, and cuts their connections."""

    def __init__(self, url: str) -> None:
        self._target = port_of(url)
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def running(self):  # type: ignore[no-untyped-def]
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)  # before the await, in which it may be cut
        with contextlib.closing(writer):
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.append(onward)
            with contextlib.closing(onward):
                await asyncio.gather(self._copy(reader, onward), self._copy(onward_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        writers, self._writers = self._writers, []
        for each in writers:
            each.transport.abort()


@pytest.fixture
def tcp(process: Process) -> str:
    return process.urls[0]


def test_a_reader_that_yields_once_a_message_loses_nothing_of_a_burst(tcp: str) -> None:
    async def main() -> None:
        async with connect(tcp) as client, client.subscribe(["burst"], queue=2000) as subscription:

            async def read() -> list[int]:
                found = []
                async for message in subscription:
                    found.append(int(message.text[:5]))
                    if len(found) == 10_000:
                        break
                    await asyncio.sleep(0)
                return found

            reading = asyncio.create_task(read())
            for n in range(10_000):
                await client.publish(["burst"], f"{n:05}" + "x" * 200)
            assert await asyncio.wait_for(reading, 60) == list(range(10_000))
            assert subscription.lost == 0

    asyncio.run(main())


def test_every_message_comes_once_through_cuts_under_load(tcp: str) -> None:
    count = 4_000

    async def main() -> None:
        cutter = Cutter(tcp)
        reconnects = 0

        async def publish() -> None:
            async with connect(tcp) as publisher:
                for n in range(count):
                    await publisher.publish(["cuts"], str(n))
                    if not n % 20:
                        await publisher.flush()
                        await asyncio.sleep(0.002)  # it lasts long enough to be cut some times

        async def cut() -> None:
            while True:
                await asyncio.sleep(0.05)
                cutter.cut()

        async with (
            cutter.running() as url,
            connect(url, backoff_base=0.001, backoff_cap=0.02) as client,
        ):
            async with client.subscribe(["cuts"]) as subscription:
                tasks = [asyncio.create_task(each) for each in (publish(), cut())]
                got: list[int] = []
                async with asyncio.timeout(60):
                    async for message in subscription:
                        got.append(int(message.text))
                        if len(got) == count:
                            break
                reconnects = subscription.reconnects
                tasks[1].cancel()
                await tasks[0]
        assert got == list(range(count))
        assert reconnects > 2

    asyncio.run(main())


def test_a_long_replay_loses_nothing_of_a_reader_that_is_slow(tcp: str) -> None:
    count = 5_000

    async def main() -> None:
        async with connect(tcp) as client:
            for n in range(count):
                await client.publish(["replay"], f"{n:05}" + "x" * 200)
            await client.flush()
            async with client.subscribe(["replay"], since=0) as subscription:
                got: list[int] = []
                async with asyncio.timeout(60):
                    async for message in subscription:
                        got.append(int(message.text[:5]))
                        if len(got) == count:
                            break
                        if not len(got) % 50:
                            await asyncio.sleep(0.001)
                assert got == list(range(count))
                assert subscription.lost == 0

    asyncio.run(main())


def test_subscriptions_come_and_go_while_connections_are_cut(tcp: str) -> None:
    async def main() -> None:
        cutter = Cutter(tcp)

        async def come_and_go(client: Client, number: int) -> int:
            """Each reads what follows, without a gap or a repeat, and leaves."""
            taken = 0
            for _ in range(6):
                async with client.subscribe(["come"], since=0 if number % 2 else None) as one:
                    ids = [(await anext(one)).id or 0 for _ in range(10)]
                    assert ids == sorted(set(ids))
                    await asyncio.sleep(0.02)  # its publisher may not know yet
                    assert ids == [each for each in known if ids[0] <= each <= ids[-1]]
                    taken += len(ids)
            return taken

        known: list[int] = []

        async def publish() -> None:
            async with connect(tcp) as publisher:
                while True:
                    known.append(await publisher.store(["come"], "x"))
                    await asyncio.sleep(0)

        async def cut() -> None:
            while True:
                await asyncio.sleep(0.05)
                cutter.cut()

        async with (
            cutter.running() as url,
            connect(url, backoff_base=0.001, backoff_cap=0.02) as client,
        ):
            tasks = [asyncio.create_task(each) for each in (publish(), cut())]
            async with asyncio.timeout(60):
                taken = await asyncio.gather(*[come_and_go(client, n) for n in range(6)])
            for each in tasks:
                each.cancel()
            assert taken == [60] * 6

    asyncio.run(main())


def test_a_task_that_waits_may_be_cancelled_and_loses_nothing(tcp: str) -> None:
    async def main() -> None:
        async with connect(tcp) as client, client.subscribe(["cancel"]) as subscription:
            for n in range(30):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(subscription), 0.001)
                await client.publish(["cancel"], str(n))
                assert (await asyncio.wait_for(anext(subscription), 10)).text == str(n)
            waiting = [asyncio.create_task(client.ping()) for _ in range(10)]
            await asyncio.sleep(0)
            for each in waiting[::2]:
                each.cancel()
            done = await asyncio.gather(*waiting, return_exceptions=True)
            assert [isinstance(each, float) for each in done] == [False, True] * 5
            assert await client.who()

    asyncio.run(main())


def test_what_the_block_raises_is_raised_and_a_cancelled_block_is_cancelled(tcp: str) -> None:
    async def main() -> None:
        with pytest.raises(KeyError):
            async with connect(tcp):
                raise KeyError

        async def wait() -> None:
            async with connect(tcp) as client, client.subscribe(["x"]) as subscription:
                await anext(subscription)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(who()) for _ in range(5)]
        assert all(each.result() for each in clients)

    async def who() -> object:
        async with connect(tcp) as client:
            return await client.who()

    asyncio.run(main())


def test_a_client_of_another_loop_says_so(tcp: str) -> None:
    """As where each worker of a framework has its own loop, and a global keeps a client."""
    kept: list[Client] = []

    async def first() -> None:
        manager = connect(tcp)
        kept.append(await manager.__aenter__())

        async def use() -> None:
            await kept[0].publish(["a"], "x")

        errors: list[BaseException] = []

        def elsewhere(run: object) -> None:
            try:
                run()  # type: ignore[operator]
            except ClientClosed as error:
                errors.append(error)

        for run in (lambda: asyncio.run(use()), lambda: trio.run(use)):
            thread = threading.Thread(target=elsewhere, args=(run,))
            thread.start()
            await asyncio.to_thread(thread.join)
        assert len(errors) == 2
        assert all("connect in the one that uses it" in str(each) for each in errors)
        await use()
        await manager.__aexit__(None, None, None)

    asyncio.run(first())

    async def second() -> None:
        with pytest.raises(ClientClosed):
            await kept[0].ping()

    asyncio.run(second())


def test_without_an_event_loop_it_says_what_to_do(tcp: str) -> None:
    with pytest.raises(NoEventLoop, match=r"mist\.client\.sync"):
        connect(tcp).__aenter__().send(None)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_child_is_told_to_connect(tcp: str) -> None:
    async def main() -> None:
        states: list[State] = []
        async with connect(tcp, on_state=states.append) as client:
            child = os.fork()
            if not child:
                status = 1
                try:
                    await client.ping()
                except ClientClosed as error:
                    if "connect again after a fork" in str(error):
                        status = 0
                finally:
                    os._exit(status)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert await client.who()  # the parent's is as it was
        assert states == [State.CONNECTED, State.CLOSED]

    asyncio.run(main())


def test_many_threads_call_one_blocking_client(tcp: str) -> None:
    with blocking.connect(tcp) as client:
        with client.subscribe(["threads"], timeout=20) as subscription:

            def publish() -> None:
                for _ in range(50):
                    client.publish(["threads"], "x")
                client.flush()

            threads = [threading.Thread(target=publish) for _ in range(8)]
            for each in threads:
                each.start()
            assert sum(1 for _ in zip(range(400), subscription, strict=False)) == 400
            for each in threads:
                each.join()
        client_after = client
    with pytest.raises(ClientClosed):
        client_after.ping()


def test_a_server_that_ends_is_told_to_who_waits(tcp: str) -> None:
    async def main() -> None:
        cutter = Cutter(tcp)
        async with cutter.running() as url:
            with pytest.raises(ConnectionLost):
                async with connect(url, reconnect=False) as client:
                    asyncio.get_running_loop().call_later(0.05, cutter.cut)
                    async with client.subscribe(["x"]) as subscription:
                        await anext(subscription)

    asyncio.run(main())


def test_debug_mode_finds_nothing(tcp: str) -> None:
    async def main() -> None:
        async with connect(tcp) as client, client.subscribe(["debug"]) as subscription:
            await client.publish(["debug"], "x")
            assert (await anext(subscription)).text == "x"

    asyncio.run(main(), debug=True)
