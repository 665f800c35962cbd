"""Nodes for tests of failovers: they append as fast as they can, and read, whatever happens."""

from collections.abc import Awaitable, Callable

import attrs
import trio

from mist.engine.contract import Engine, EngineUnavailable, Placed

SOON = 30  # seconds for a failover: where voters are of two minds, there is another election


async def insist(call: Callable[[], Awaitable[Placed]]) -> Placed:
    """What a call returns once it is answered, as a node insists."""
    with trio.fail_after(SOON):
        while True:
            try:
                return await call()
            except EngineUnavailable:
                await trio.sleep(0.05)
    raise AssertionError


@attrs.define
class Writer:
    """A node that appends, in one epoch.

    Attributes:
        acknowledged: bodies by their offsets.
    """

    engine: Engine
    name: str
    acknowledged: dict[int, bytes] = attrs.field(factory=dict)

    async def run(self) -> None:
        epoch, serial = (await self.engine.enter(self.name)).epoch, 0
        while True:
            serial += 1
            body = f"{self.name}.{serial}".encode()

            async def append(serial: int = serial, body: bytes = body) -> Placed:
                return await self.engine.append(self.name, serial, body, 1, epoch)

            placed = await insist(append)
            assert placed.offset not in self.acknowledged
            self.acknowledged[placed.offset] = body


async def follow(engine: Engine, got: list[bytes]) -> None:
    """Read the log, from its beginning on, for ever."""
    while True:
        try:
            records = await engine.read(len(got), wait=5.0)
        except EngineUnavailable:
            await trio.sleep(0.05)
            continue
        assert [each.offset for each in records] == [
            len(got) + n for n in range(1, len(records) + 1)
        ]
        got.extend([each.body for each in records])
