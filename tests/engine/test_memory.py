"""The engine in memory: what it shares with the tokens of its name."""

import secrets

from mist.auth.shared_memory import SharedMemoryStore, shared_memory
from mist.engine.opening import open_engine
from tests.engine.test_contract import fill, read_all


async def test_records_are_stamped_with_the_version_of_the_tokens() -> None:
    name = secrets.token_hex(4)
    async with await open_engine(f"memory://{name}") as engine:
        epoch = await fill(engine, 1)
        tokens = SharedMemoryStore(shared_memory(name))
        await tokens.enter(bytes(32))
        before = (await tokens.load()).version
        await engine.append("n", 2, b"2", 1, epoch)
        after = await tokens.write({bytes(32): b"value"}, before, "f" * 32)
        await engine.append("n", 3, b"3", 1, epoch)
        stamps = [each.tokens for each in await read_all(engine)]
    assert stamps == [0, before.number, after.number]
    assert after.number == before.number + 1
