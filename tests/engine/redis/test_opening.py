"""What a Redis must be, so that it is not refused at the start."""

import logging
import socket
import sys
from collections.abc import Awaitable, Callable

import pytest
import trio

from mist.engine.opening import open_engine
from mist.errors import StartupError
from mist.history import Durability
from tests.engine.redis.conftest import Open
from tests.engine.redis_server import HOST, RedisServer
from tests.ports import free_port

Refusal = Callable[..., Awaitable[str]]


@pytest.fixture
def refusal(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> Refusal:
    """Why a server is refused, in one line that has no password in it, and nor has the log."""

    async def refusal(
        user: str = "", port: int = 0, durability: Durability = Durability.PROCESS
    ) -> str:
        place = f"{user or 'someone:hush-hush'}@{HOST}:{port or redis.port}"
        if user == "none":
            place = f"{HOST}:{port or redis.port}"
        with trio.fail_after(10):
            with pytest.raises(StartupError) as error:
                url = f"redis://{place}?timeout=1&connect_timeout=0.2"
                await open_engine(url, durability=durability)
        text = str(error.value)
        assert text.startswith("engine: ")
        assert "\n" not in text
        assert "hush" not in text
        assert caplog.text == ""  # what is refused is told once
        assert error.value.__cause__ is None
        return text

    return refusal


async def test_a_server_that_is_not_there(refusal: Refusal) -> None:
    port = free_port()
    wanted = f"engine: can't connect to Redis at {HOST}:{port}: connection refused"
    assert await refusal(port=port) == wanted


async def test_a_server_that_says_nothing(refusal: Refusal) -> None:
    with socket.create_server((HOST, 0)) as sock:
        assert "no answer in 0.2 s" in await refusal(port=sock.getsockname()[1])


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_a_server_that_is_not_redis(
    refusal: Refusal, answer: bytes, nursery: trio.Nursery
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)

    (listener, *_) = await nursery.start(_listen, serve)
    text = await refusal("none", port=listener.socket.getsockname()[1])
    assert ("not Redis' protocol" if answer else "closed the connection") in text


async def _listen(
    handler: Callable[[trio.SocketStream], Awaitable[None]],
    *,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> None:
    await trio.serve_tcp(handler, 0, host=HOST, task_status=task_status)


async def test_another_password(refusal: Refusal, redis: RedisServer) -> None:
    redis.ask("CONFIG", "SET", "requirepass", "of-the-server")
    assert "refuses the user or password" in await refusal()
    assert "refuses the user or password" in await refusal(":hush-hush")
    assert "it wants a password" in await refusal("none")


async def test_the_right_password(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    redis.ask("ACL", "SETUSER", "mist", "on", ">hush-hush", "~{mist:*", "+@all")
    url = f"redis://mist:hush-hush@{HOST}:{redis.port}"
    async with await open_engine(url, durability=Durability.PROCESS) as engine:
        await engine.enter("n")
        assert "hush" not in repr(vars(engine)) + caplog.text


async def test_a_user_who_may_not_have_the_keys(refusal: Refusal, redis: RedisServer) -> None:
    redis.ask("ACL", "SETUSER", "someone", "on", ">hush-hush", "~other:*", "+@all")
    assert "its user may not do this" in await refusal()


@pytest.mark.parametrize(
    ("version", "fine"), [("5.0.14", False), ("6.0.16", False), ("6.2.0", True), ("10.0.1", True)]
)
async def test_an_old_version(
    refusal: Refusal, version: str, fine: bool, nursery: trio.Nursery
) -> None:
    about = f"# Server\r\nredis_version:{version}\r\nrun_id:1\r\nrole:master\r\naof_enabled:0\r\n"

    async def serve(stream: trio.SocketStream) -> None:
        async for data in stream:
            for _ in range(data.count(b"*")):
                await stream.send_all(b"$%d\r\n%s\r\n" % (len(about), about.encode()))

    (listener, *_) = await nursery.start(_listen, serve)
    text = await refusal("none", port=listener.socket.getsockname()[1])
    if fine:
        assert "appendonly" in text  # it came as far as this
    else:
        assert f"is version {version}; 6.2 or later is needed" in text


async def test_an_evicting_server(refusal: Refusal, redis: RedisServer, open_on: Open) -> None:
    redis.ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    await open_on()  # without a limit, it evicts nothing
    redis.ask("CONFIG", "SET", "maxmemory", "100mb")
    assert "set maxmemory-policy from volatile-lru to noeviction" in await refusal("none")
    redis.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await open_on()


async def test_durability(refusal: Refusal, redis: RedisServer, open_on: Open) -> None:
    text = await refusal("none", durability=Durability.POWER)
    assert "appendfsync everysec" in text
    assert "set appendfsync always, or durability to process" in text
    redis.ask("CONFIG", "SET", "appendonly", "no")
    for each in (Durability.POWER, Durability.PROCESS):
        text = await refusal("none", durability=each)
        assert f"durability {each.value} needs appendonly yes" in text
    await (await open_engine(redis.url(), durability=Durability.NOTHING)).close()
    redis.ask("CONFIG", "SET", "appendonly", "yes")
    redis.ask("CONFIG", "SET", "appendfsync", "always")
    await (await open_engine(redis.url(), durability=Durability.POWER)).close()


async def test_a_server_that_hides_its_settings_is_warned_of(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    redis.ask("ACL", "SETUSER", "default", "-config")
    async with await open_engine(redis.url(), durability=Durability.POWER) as engine:
        await engine.enter("n")
    (warning,) = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert "appendfsync can't be read" in warning


async def test_a_replica(refusal: Refusal, redis: RedisServer) -> None:
    redis.ask("REPLICAOF", HOST, "1")
    assert "is a replica" in await refusal("none")


async def test_a_member_of_a_cluster(refusal: Refusal, redis: RedisServer) -> None:
    redis.kill()
    redis.options += ["--cluster-enabled", "yes"]
    redis.start()
    assert "part of a cluster" in await refusal("none")


HEAD, LOG = "{mist:mist}:head", "{mist:mist}:log"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("HSET", HEAD, "format", "99", "epoch", "e"), "the realm mist is one of another version"),
        (("HSET", HEAD, "format", "2", "epoch", "e"), "the realm mist is damaged"),
        (("SET", HEAD, "1"), "a key of the realm is another program's"),
        (("XADD", LOG, "1", "a", "b"), "the realm mist is damaged"),
    ],
)
async def test_a_realm_that_is_not_this_programs(
    refusal: Refusal, redis: RedisServer, command: tuple[str, ...], why: str
) -> None:
    redis.ask(*command)
    before = redis.ask("DUMP", command[1])
    assert why in await refusal("none")
    assert redis.ask("DUMP", command[1]) == before


async def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("mist.engine.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(StartupError) as error:
        await open_engine("redis://someone:hush-hush@host")
    wanted = "engine: hiredis is missing; pip install 'mist-pubsub[redis]'"
    assert str(error.value) == wanted
