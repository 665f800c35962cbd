"""Checkpoints: a mirror that begins with one goes on as the one that it is of."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio

from mist.errors import HistoryDamaged
from mist.history import Bulk, History, Key, Mark
from mist.history.arrivals import Arrival, BatchArrival, Piece
from mist.history.commits import make_blocks
from mist.history.encoding import encode_blocks
from mist.history.erasure import Erasure
from mist.history.maintenance import Policy
from mist.history.mirroring import Mirror
from mist.history.opening import open_mirror
from mist.history.retention import Rule
from tests.history.messages import one, publication, replay, run, select, some
from tests.history.test_mirroring import arrival, piece
from tests.waiting import until

EPOCH = "e" * 16
KEYS = [Key(bytes([n]) * 32, b"d" * 32) for n in range(40)]


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    return lambda name: (
        "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/{name}.db"
    )


async def filled(mirror: Mirror, history: History) -> None:
    """Keys, channels, batches, blocks that were trimmed, thinned, erased and joined."""
    for n in range(1, 41):
        await mirror.apply(
            [
                arrival(
                    n, 3 * n - 2, piece(some(f"/c{n % 5},a", 2), one("b", str(n)), key=KEYS[n - 1])
                )
            ]
        )
    rows = make_blocks([some("/c1", 7)])
    await mirror.apply_batch(
        BatchArrival(41, 121, 9_000_000, Bulk(lambda: rows, 7), Mark("o", "w", 4))
    )
    await mirror.apply([arrival(42, 128, piece(some("b", 3), key=KEYS[0]))])  # left out
    await history.trim(Policy(max_age=None, max_messages=100), 10.0)
    await history.erase(Erasure(tags=frozenset({"b"})))
    while await history.compact():
        pass
    await mirror.apply(
        [
            Arrival(43, 131, 11_000_000, void=9, notes={b"n1": b"old", b"n2": b"of two"}),
            arrival(44, 140, piece(one("a", "x"))),
        ]
    )


async def parts_of(mirror: Mirror) -> tuple[list[bytes], tuple[str, int, int]]:
    parts: list[bytes] = []
    return parts, await mirror.dump(parts.append)


def streamed(parts: Sequence[bytes]) -> Callable[[], Awaitable[bytes | None]]:
    following = iter(parts)

    async def part() -> bytes | None:
        await trio.lowlevel.checkpoint()
        return next(following, None)

    return part


async def state_of(history: History) -> object:
    """All that can be told of a log from outside."""
    messages = await replay(history)
    return (
        [(m.id, m.time, m.data, m.tags) for m in messages],
        [m.id for m in await replay(history, select("/c1"))],
        await history.position(),
        await history.channels([f"/c{n}" for n in range(6)]),
        [await history.recall(key.name) for key in KEYS],
        await history.committed("o", "w"),
        [await history.recovered(None, n) for n in range(0, 145, 5)],
        [await history.channel_after("/c1", n) for n in range(12)],
        (await history.statistics()).messages,
        await history.verify(),
    )


@pytest.mark.parametrize("other", ["memory", "sqlite"])
async def test_what_begins_with_a_checkpoint_is_as_what_it_is_of(
    url: Callable[[str], str], other: str, tmp_path: Path
) -> None:
    history, mirror = await open_mirror(url("one"))
    target = "memory://" if other == "memory" else f"sqlite:///{tmp_path}/two.db"
    second, copy = await open_mirror(target)
    async with history, second:
        await mirror.begin_anew(EPOCH)
        await filled(mirror, history)
        parts, (epoch, offset, newest) = await parts_of(mirror)
        assert (epoch, offset, newest) == (EPOCH, 44, 140)
        await copy.begin_anew("f" * 16)
        await copy.apply([arrival(1, 1, piece(one("a", "of before"), key=KEYS[3]))])
        await copy.restore(epoch, {}, offset, streamed(parts))
        assert (copy.epoch, copy.offset, copy.newest) == (EPOCH, 44, 140)
        assert copy.notes == mirror.notes == {b"n1": b"old", b"n2": b"of two"}
        assert await state_of(second) == await state_of(history)
        # And both do the same with what comes next.
        rows = make_blocks([some("/c1", 2)])
        for each in (mirror, copy):
            (applied,) = await each.apply(
                [arrival(45, 141, piece(one("/c1", "n")), piece(one("a"), key=KEYS[30]))]
            )
            assert list(applied.known) == [1]
            batch = BatchArrival(46, 143, 12_000_000, Bulk(lambda: rows, 2), Mark("o", "w", 4))
            _, fresh = await each.apply_batch(batch)
            assert not fresh
        assert await state_of(second) == await state_of(history)
        while await second.compact():
            pass
        assert await second.verify() == []


async def test_retention_waits_until_a_mirror_has_all_of_a_checkpoint(
    url: Callable[[str], str], nursery: trio.Nursery
) -> None:
    history, mirror = await open_mirror(url("one"))
    second, copy = await open_mirror(url("two"))
    policy = Policy(max_age=None, rules=(Rule("z", 1),))
    done: list[str] = []

    async def trim() -> None:
        await second.trim(policy, 10.0)
        done.append("trim")

    async with history, second:
        await mirror.begin_anew(EPOCH)
        await filled(mirror, history)
        await mirror.apply([Arrival(45, 141, 12_000_000, void=9)])
        parts, (epoch, offset, newest) = await parts_of(mirror)

        async def part() -> bytes | None:
            if len(parts) == 1:  # the others are here
                nursery.start_soon(trim)
                await trio.sleep(0.05)
            return parts.pop(0) if parts else None

        await copy.restore(epoch, {}, offset, part)
        done.append("restore")
        await until(lambda: len(done) > 1)
        assert (copy.newest, done) == (newest, ["restore", "trim"])
        await history.trim(policy, 10.0)
        assert await state_of(second) == await state_of(history)


async def test_an_empty_log_has_a_checkpoint(url: Callable[[str], str]) -> None:
    history, mirror = await open_mirror(url("one"))
    second, copy = await open_mirror(url("two"))
    async with history, second:
        await mirror.begin_anew(EPOCH)
        parts, (epoch, offset, newest) = await parts_of(mirror)
        assert (offset, newest) == (0, 0)
        await copy.restore(epoch, {}, offset, streamed(parts))
        assert await replay(second) == []
        await copy.apply([arrival(1, 1, piece(one("a")))])


async def test_parts_are_of_a_bounded_size(url: Callable[[str], str]) -> None:
    history, mirror = await open_mirror(url("one"))
    async with history:
        await mirror.begin_anew(EPOCH)
        for n in range(1, 41):
            data = bytes(range(256)) * 2_000
            rows = encode_blocks([publication(run("a", data.decode("latin-1")))], [0])
            await mirror.apply([Arrival(n, n, n, [Piece(rows, 1)])])
        parts, _ = await parts_of(mirror)
        assert len(parts) > 3
        assert max(map(len, parts)) < 6_000_000


async def test_a_copy_that_breaks_off_is_nothing(tmp_path: Path) -> None:
    history, mirror = await open_mirror("memory://")
    file = f"sqlite:///{tmp_path}/two.db"
    second, copy = await open_mirror(file)

    async def broken() -> bytes:
        if not taken:
            raise OSError("broken")
        return taken.pop(0)

    async with history, second:
        await mirror.begin_anew(EPOCH)
        await filled(mirror, history)
        parts, (epoch, offset, _) = await parts_of(mirror)
        taken = parts[:2]
        with pytest.raises(OSError, match="broken"):
            await copy.restore(epoch, {}, offset, broken)
    second, copy = await open_mirror(file)
    async with second:
        assert copy.epoch == ""
        await copy.restore(epoch, {}, offset, streamed(parts))
        assert (copy.epoch, copy.offset) == (epoch, offset)


@pytest.mark.parametrize("damage", [b"", b"?", b"\x90\x90"])
async def test_what_is_no_part_is_refused(damage: bytes) -> None:
    history, mirror = await open_mirror("memory://")
    async with history:
        with pytest.raises(ValueError, match=r".*"):
            await mirror.restore(EPOCH, {}, 1, streamed([damage]))
        assert mirror.epoch == ""


async def test_a_block_that_was_changed_on_its_way_is_refused() -> None:
    history, mirror = await open_mirror("memory://")
    second, copy = await open_mirror("memory://")
    async with history, second:
        await mirror.begin_anew(EPOCH)
        await mirror.apply([arrival(1, 1, piece(one("a", "intact" * 20)))])
        parts, _ = await parts_of(mirror)
        with pytest.raises(ValueError, match="checksum"):
            await copy.restore(
                EPOCH, {}, 1, streamed([each.replace(b"intact", b"forged") for each in parts])
            )


async def test_a_damaged_log_has_no_checkpoint(tmp_path: Path) -> None:
    import sqlite3

    file = tmp_path / "one.db"
    history, mirror = await open_mirror(f"sqlite:///{file}")
    async with history:
        await mirror.begin_anew(EPOCH)
        await mirror.apply([arrival(1, 1, piece(one("a", "intact")))])
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE block SET checksum = checksum + 1")
        with pytest.raises(HistoryDamaged):
            await parts_of(mirror)
