"""nats-py, which no one here wrote, against `mist serve` in a process of its own."""

import asyncio
import functools
import itertools
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
import trustme
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from tests.processes import Process, serving
from tests.servers import port_of

LISTEN = ("--listen", "nats://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0")
IN_MEMORY = ("--tokens", "memory://", "--history", "memory://")
NO_HISTORY = ("--tokens", "memory://", "--history", "none")

Scenario = Callable[[Process], Awaitable[None]]


@pytest.fixture(scope="module", params=[NO_HISTORY, IN_MEMORY], ids=["live", "history"])
def serve_options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return (*LISTEN, *request.param)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test of asyncio, in a loop of its own and with an end."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 30))

    return run


async def connect(process: Process, **options: Any) -> Client:
    options.setdefault("allow_reconnect", False)
    options.setdefault("error_cb", _note)
    client: Client = await nats.connect(process.urls[0], **options)
    return client


async def _note(error: Exception) -> None:
    pass


async def fence(client: Client) -> None:
    """Wait until the server has handled all that a client was told to do.

    Its `flush` writes a PING past what waits to be written, and that before it returns; so
    the second one is behind it.
    """
    await client.flush(10)
    await client.flush(10)


async def refused(url: str, text: str, **options: Any) -> None:
    """A connection that comes to nothing, cleaned up, which the client doesn't do."""
    client = Client()
    with pytest.raises(Exception, match=text):
        await client.connect(url, allow_reconnect=False, error_cb=_note, **options)
    client._transport._io_writer.transport.abort()
    await asyncio.sleep(0)


async def take(subscription: Any, count: int) -> list[bytes]:
    return [(await subscription.next_msg(10)).data for _ in range(count)]


@scenario
async def test_published_is_received_by_subject_and_pattern(process: Process) -> None:
    one, two = await connect(process), await connect(process)
    literal = await one.subscribe("foo.bar")
    star = await one.subscribe("foo.*")
    rest = await one.subscribe("foo.>")
    everything = await two.subscribe(">")
    await fence(one)
    await fence(two)
    for subject in ("foo.bar", "foo.baz", "foo", "foo.bar.baz", "bar"):
        await two.publish(subject, subject.encode())
    await fence(two)
    assert await take(everything, 5) == [b"foo.bar", b"foo.baz", b"foo", b"foo.bar.baz", b"bar"]
    assert await take(literal, 1) == [b"foo.bar"]
    assert await take(star, 2) == [b"foo.bar", b"foo.baz"]
    assert await take(rest, 3) == [b"foo.bar", b"foo.baz", b"foo.bar.baz"]
    await fence(one)
    assert [each.pending_msgs for each in (literal, star, rest)] == [0, 0, 0]
    await one.close()
    await two.close()


@scenario
async def test_any_data_up_to_the_limit_arrives_as_it_was(process: Process) -> None:
    client = await connect(process)
    subscription = await client.subscribe("foo")
    datas = [b"", b"\n", b"\r\n", bytes(range(256)), b"x" * client.max_payload]
    for data in datas:
        await client.publish("foo", data)
    assert await take(subscription, len(datas)) == datas
    await client.close()


@scenario
async def test_many_messages_arrive_in_order(process: Process) -> None:
    one, two = await connect(process), await connect(process)
    subscription = await one.subscribe("foo.*")
    await fence(one)
    sent = [b"%d" % n for n in range(5000)]
    for n, data in enumerate(sent):
        await two.publish(f"foo.{n % 3}", data)
    await fence(two)
    assert await take(subscription, 5000) == sent
    await one.close()
    await two.close()


@scenario
async def test_a_queue_group_shares_what_comes(process: Process) -> None:
    clients = [await connect(process) for _ in range(3)]
    got: list[list[bytes]] = [[], [], []]
    for client, mine in zip(clients, got, strict=True):

        async def keep(message: Msg, mine: list[bytes] = mine) -> None:
            mine.append(message.data)

        await client.subscribe("work", queue="workers", cb=keep)
        await fence(client)
    alone = await clients[0].subscribe("work")
    await fence(clients[0])
    for n in range(300):
        await clients[1].publish("work", b"%d" % n)
    await fence(clients[1])
    expected = sorted(b"%d" % n for n in range(300))
    assert sorted(await take(alone, 300)) == expected
    for client in clients:
        await client.drain()
    assert sorted(itertools.chain.from_iterable(got)) == expected
    assert all(got)


@scenario
async def test_a_request_is_answered(process: Process) -> None:
    one, two = await connect(process), await connect(process)

    async def answer(message: Msg) -> None:
        await message.respond(message.data.upper())

    await one.subscribe("help", cb=answer)
    await fence(one)
    answers = await asyncio.gather(*[two.request("help", b"a%d" % n, 10) for n in range(20)])
    assert [each.data for each in answers] == [b"A%d" % n for n in range(20)]
    answer_ = await two.request("help", b"old", 10, old_style=True)
    assert answer_.data == b"OLD"
    await one.close()
    await two.close()


@scenario
async def test_a_request_that_nobody_hears_fails_at_once(process: Process) -> None:
    client = await connect(process)
    with pytest.raises(NoRespondersError):
        await client.request("nobody", b"me", 10)
    with pytest.raises(NoRespondersError):
        await client.request("nobody", b"me", 10, old_style=True)
    await client.close()


@scenario
async def test_headers_arrive(process: Process) -> None:
    client = await connect(process)
    subscription = await client.subscribe("foo")
    await client.publish("foo", b"x", headers={"a": "1", "b": "two words"})
    message = await subscription.next_msg(10)
    assert message.headers == {"a": "1", "b": "two words"}
    assert message.data == b"x"
    await client.close()


@scenario
async def test_a_subscription_ends_after_as_many_as_asked_for(process: Process) -> None:
    client = await connect(process)
    subscription = await client.subscribe("foo")
    await subscription.unsubscribe(limit=3)
    for n in range(6):
        await client.publish("foo", b"%d" % n)
    await fence(client)
    assert await take(subscription, 3) == [b"0", b"1", b"2"]
    assert client.stats["in_msgs"] == 3  # the server sent no more, either
    await client.close()


@scenario
async def test_who_wants_no_echo_gets_none(process: Process) -> None:
    one, two = await connect(process, no_echo=True), await connect(process)
    subscription = await one.subscribe("foo")
    await one.publish("foo", b"own")
    await fence(one)
    await two.publish("foo", b"other's")
    assert await take(subscription, 1) == [b"other's"]
    await one.close()
    await two.close()


@scenario
async def test_a_verbose_pedantic_client_works_as_well(process: Process) -> None:
    client = await connect(process, verbose=True, pedantic=True)
    subscription = await client.subscribe("foo")
    for n in range(50):
        await client.publish("foo", b"%d" % n)
    await fence(client)
    assert await take(subscription, 50) == [b"%d" % n for n in range(50)]
    await client.close()


@scenario
async def test_what_can_not_be_addressed_is_told_and_the_client_goes_on(process: Process) -> None:
    errors: list[Exception] = []

    async def note(error: Exception) -> None:
        errors.append(error)

    client = await connect(process, error_cb=note)
    subscription = await client.subscribe("foo")
    await client.subscribe("a,b", queue="workers")
    await client.publish("a,b", b"lost")
    await client.publish("foo.*", b"lost")
    await client.publish("foo", b"lost", reply=".".join(["a"] * 21))
    await client.publish("foo", b"kept")
    await fence(client)
    assert await take(subscription, 1) == [b"kept"]
    assert client.is_connected
    violation = "nats: permissions violation for"
    assert [str(error).lower() for error in errors] == [
        f'{violation} subscription to "a,b" using queue "workers": commas are not allowed',
        f'{violation} publish to "a,b": commas are not allowed',
        f'{violation} publish to "foo.*": wildcards are not allowed',
        f'{violation} publish with reply of "{".".join(["a"] * 21)}": more than 20 tokens',
    ]
    await client.close()


@scenario
async def test_draining_takes_what_is_on_its_way(process: Process) -> None:
    one, two = await connect(process), await connect(process)
    got: list[bytes] = []

    async def keep(message: Msg) -> None:
        await asyncio.sleep(0)
        got.append(message.data)

    await one.subscribe("foo", cb=keep)
    await fence(one)
    for n in range(200):
        await two.publish("foo", b"%d" % n)
    await fence(two)
    await one.drain()
    assert got == [b"%d" % n for n in range(200)]
    assert one.is_closed
    await two.close()


@scenario
async def test_tags_and_subjects_meet(process: Process) -> None:
    client = await connect(process)
    subscription = await client.subscribe("foo.*")
    await fence(client)
    port = port_of(process.urls[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"subscribe .foo.bar\nsubscribe b\nping\n")
    assert await reader.readline() == b"pong\n"
    writer.write(b"publish b,.foo.bar from the line\n")
    assert await reader.readline() == b"publish .foo.bar,b from the line\n"
    message = await subscription.next_msg(10)
    assert (message.subject, message.data) == ("foo.bar", b"from the line")
    await client.publish("foo.bar", b"from NATS")
    assert await reader.readline() == b"publish .foo.bar from NATS\n"
    await client.publish("foo.bar", b"two\nlines")
    await client.publish("foo.bar", b"one")
    assert await reader.readline() == b"publish .foo.bar one\n"
    writer.close()
    await writer.wait_closed()
    await client.close()


def test_a_client_is_back_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        back = asyncio.Event()

        async def reconnected() -> None:
            back.set()

        with serving(tmp_path / "a", *NO_HISTORY, listen=LISTEN) as first:
            client = await connect(
                first,
                allow_reconnect=True,
                reconnected_cb=reconnected,
                reconnect_time_wait=0.05,
                max_reconnect_attempts=-1,
            )
            subscription = await client.subscribe("foo")
            await fence(client)
            await asyncio.to_thread(first.stop)
        listen = ("--listen", first.urls[0], "--listen", "tcp://127.0.0.1:0")
        with serving(tmp_path / "b", *NO_HISTORY, listen=listen):
            await back.wait()
            await client.publish("foo", b"again")
            assert await take(subscription, 1) == [b"again"]
            await client.close()

    asyncio.run(asyncio.wait_for(run(), 60))


# secrets and tokens


def test_a_secret_or_a_token_is_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path, *NO_HISTORY, listen=LISTEN, MIST_SECRET="s3cret") as process:

        async def register(*lines: bytes) -> None:
            port = port_of(process.urls[1])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"auth s3cret\n" + b"".join(lines) + b"ping\n")
            assert await reader.readline() == b"pong\n"
            writer.close()
            await writer.wait_closed()

        async def run() -> None:
            for wrong in ({}, {"token": "wrong"}, {"user": "s3cret", "password": "wrong"}):
                await refused(process.urls[0], "Authorization Violation", **wrong)
            await register(b"register .in.>,>.out.> t0ken\n")
            errors: list[Exception] = []

            async def note(error: Exception) -> None:
                errors.append(error)

            service = await connect(process, token="s3cret")
            heard = await service.subscribe(">")
            await fence(service)
            peer = await connect(process, user="anyone", password="t0ken", error_cb=note)
            inside = await peer.subscribe("in.*")
            await peer.subscribe("other")
            await peer.publish("out.a", b"1")
            await peer.publish("in.a", b"2")
            await peer.publish("out.b", b"3")
            await fence(peer)
            await service.publish("in.b", b"4")
            assert await take(inside, 1) == [b"4"]
            assert await take(heard, 3) == [b"1", b"3", b"4"]
            assert [str(error).lower() for error in errors] == [
                'nats: permissions violation for subscription to "other"',
                'nats: permissions violation for publish to "in.a"',
            ]
            await register(b"unset .in.> t0ken\n")
            await service.publish("in.b", b"5")
            await fence(service)
            await fence(peer)
            assert inside.pending_msgs == 0
            assert str(errors[-1]).lower().endswith('subscription to "in.*"')
            await peer.close()
            await service.close()

        asyncio.run(asyncio.wait_for(run(), 60))


def test_tls_begins_behind_the_greeting(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    key.write_bytes(certificate.private_key_pem.bytes())
    context = ssl.create_default_context()
    authority.configure_trust(context)
    options = (*NO_HISTORY, "--tls-cert", str(chain), "--tls-key", str(key))
    listen = ("--listen", "natss://localhost:0")

    with serving(tmp_path / "data", *options, listen=listen) as process:

        async def run() -> None:
            for scheme in ("nats", "tls"):
                url = process.urls[0].replace("natss", scheme)
                client = await nats.connect(url, tls=context, allow_reconnect=False)
                subscription = await client.subscribe("foo")
                await client.publish("foo", b"x" * 100_000)
                assert await take(subscription, 1) == [b"x" * 100_000]
                await client.close()
            await refused(url, "certificate verify failed", tls=ssl.create_default_context())

        asyncio.run(asyncio.wait_for(run(), 60))
