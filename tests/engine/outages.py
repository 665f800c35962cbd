"""Calls of an engine while it can't answer: each ends in time, and all goes on afterwards."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from mist.engine.contract import Engine, EngineUnavailable

# Seconds, where a test waits for them; else what is no outage would be one on a busy machine.
QUICK = {"timeout": 1.5, "connect_timeout": 1.0}

# Seconds after which no call waits any more, with `QUICK`: a reply, and a connection to be tried
# once more; the rest is for a busy machine.
SOON = 10.0

CALLS: dict[str, Callable[[Engine, str], Awaitable[object]]] = {
    "enter": lambda engine, epoch: engine.enter("another"),
    "append": lambda engine, epoch: engine.append("n", 3, b"3", 1, epoch),
    "append much": lambda engine, epoch: engine.append("n", 3, bytes(20 << 20), 1, epoch),
    "read": lambda engine, epoch: engine.read(0),
    "wait": lambda engine, epoch: engine.read(2, wait=30.0),
    "standing": lambda engine, epoch: engine.standing(),
    "stage": lambda engine, epoch: engine.stage("batch", 0, b"part"),
    "staged": lambda engine, epoch: engine.staged("batch", 0),
    "discard": lambda engine, epoch: engine.discard("batch"),
    "trim": lambda engine, epoch: engine.trim(1),
}


async def refused(call: Callable[[], Awaitable[object]]) -> str:
    """Why a call is not answered, which it must say in time."""
    with trio.fail_after(SOON):
        with pytest.raises(EngineUnavailable) as error:
            await call()
    return str(error.value)


async def answered(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call until it is answered, which must be soon."""
    with trio.fail_after(SOON):
        while True:
            try:
                await call()
            except EngineUnavailable:
                await trio.sleep(0.01)
            else:
                return


async def all_refused(engine: Engine, epoch: str) -> None:
    """Have all calls made at once; each says in time that it was not answered."""

    async def make(name: str) -> None:
        assert "no answer" in await refused(lambda: CALLS[name](engine, epoch)), name

    async with trio.open_nursery() as nursery:
        for name in CALLS:
            nursery.start_soon(make, name)
