"""What every store that servers share keeps to: one version, each write once, in one order."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing

from mist.auth.shared import (
    KEPT_CHANGES,
    ForgottenVersion,
    SharedStore,
    StaleVersion,
    Version,
    WrongKey,
)
from mist.engine.tokens import open_shared_store
from mist.errors import RegistryUnavailable
from mist.history import Durability
from tests.waiting import until

Connect = Callable[[], Awaitable[SharedStore]]

KEY = b"k" * 32


@pytest.fixture
async def connect(shared_url: str) -> AsyncIterator[Connect]:
    """Another connection to the same registry, each time it is called."""
    opened: list[SharedStore] = []

    async def connect() -> SharedStore:
        store = await open_shared_store(shared_url, durability=Durability.PROCESS)
        assert store is not None
        opened.append(store)
        await store.enter(KEY)
        return store

    yield connect
    for store in opened:
        await store.aclose()


@pytest.fixture
async def store(connect: Connect) -> SharedStore:
    return await connect()


def name() -> str:
    return secrets.token_hex(16)


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


async def put(store: SharedStore, **values: bytes | None) -> Version:
    """Write values under the digests `_1`, `_2`, …, on top of what is there."""
    changes = {digest(int(each[1:])): value for each, value in values.items()}
    return await store.write(changes, (await store.load()).version, name())


async def test_a_new_registry_is_empty_and_above_any_before_it(store: SharedStore) -> None:
    snapshot = await store.load()
    assert snapshot.values == {}
    assert snapshot.version.number > 1_600_000_000_000
    assert await store.news(snapshot.version) == []


async def test_entering_again_changes_nothing(connect: Connect) -> None:
    version = await put(await connect(), _1=b"one")
    assert (await (await connect()).load()).version == version


async def test_another_key_is_refused_and_changes_nothing(store: SharedStore) -> None:
    await put(store, _1=b"one")
    before = await store.load()
    with pytest.raises(WrongKey):
        await store.enter(b"l" * 32)
    assert await store.load() == before
    await store.enter(KEY)


async def test_what_was_written_is_loaded_by_all(connect: Connect) -> None:
    one, other = await connect(), await connect()
    values = {digest(n): bytes([n]) * (n * 100 + 1) for n in range(50)}
    before = (await one.load()).version
    after = await one.write(values, before, mine := name())
    assert after == Version(before.number + 1, mine)
    snapshot = await other.load()
    assert (snapshot.version, snapshot.values) == (after, values)


async def test_one_write_removes_and_replaces_and_adds(store: SharedStore) -> None:
    await put(store, _1=b"one", _2=b"two")
    version = await put(store, _1=None, _2=b"2", _3=b"three", _4=None)
    snapshot = await store.load()
    assert snapshot.version == version
    assert snapshot.values == {digest(2): b"2", digest(3): b"three"}


async def test_bytes_are_kept_as_they_are(store: SharedStore) -> None:
    value = bytes(range(256)) + b"\r\n\0"
    strange = bytes([0, 255, 13, 10]) * 8
    before = (await store.load()).version
    await store.write({strange: value}, before, name())
    assert (await store.load()).values == {strange: value}
    (update,) = await store.news(before)
    assert update.changes == {strange: value}


async def test_a_write_on_a_version_that_is_not_the_newest_is_refused(connect: Connect) -> None:
    one, other = await connect(), await connect()
    before = (await one.load()).version
    after = await one.write({digest(1): b"one"}, before, name())
    with pytest.raises(StaleVersion):
        await other.write({digest(1): b"other"}, before, name())
    with pytest.raises(StaleVersion):
        await other.write({digest(1): b"other"}, Version(after.number, name()), name())
    with pytest.raises(StaleVersion):
        await other.write({digest(1): b"other"}, Version(after.number + 1, name()), name())
    assert (await other.load()).values == {digest(1): b"one"}


async def test_a_write_that_is_repeated_is_done_once(connect: Connect) -> None:
    one, other = await connect(), await connect()
    before = (await one.load()).version
    mine = name()
    after = await one.write({digest(1): b"one"}, before, mine)
    assert await one.write({digest(1): b"one"}, before, mine) == after
    last = await other.write({digest(1): None, digest(2): b"two"}, after, name())
    # Others have written since, and the first one still isn't done again.
    assert await other.write({digest(1): b"one"}, before, mine) == after
    assert (await one.load()).version == last
    assert (await one.load()).values == {digest(2): b"two"}


async def test_of_many_writers_one_at_a_time_succeeds(connect: Connect) -> None:
    stores = [await connect() for _ in range(3)]
    versions: list[Version] = []

    async def write(store: SharedStore, number: int) -> None:
        for turn in range(20):
            while True:
                snapshot = await store.load()
                count = int(snapshot.values.get(digest(0), b"0"))
                changes = {digest(0): b"%d" % (count + 1), digest(number): b"%d" % turn}
                try:
                    versions.append(await store.write(changes, snapshot.version, name()))
                except StaleVersion:
                    continue
                break

    start = (await stores[0].load()).version
    async with trio.open_nursery() as nursery:
        for number, store in enumerate(stores, 1):
            nursery.start_soon(write, store, number)
    assert sorted(each.number - start.number for each in versions) == list(range(1, 61))
    values = (await stores[0].load()).values
    assert values == {digest(0): b"60"} | {digest(n): b"19" for n in (1, 2, 3)}
    updates = await stores[1].news(start)
    assert [each.version for each in updates] == sorted(versions, key=lambda each: each.number)
    assert [int(each.changes[digest(0)] or 0) for each in updates] == list(range(1, 61))


async def test_news_are_all_that_was_written_behind_a_version(connect: Connect) -> None:
    one, other = await connect(), await connect()
    versions = [(await one.load()).version]
    for number in range(10):
        versions.append(await put(one, _1=b"%d" % number, _2=None))
    for place, version in enumerate(versions):
        updates = await other.news(version)
        assert [each.version for each in updates] == versions[place + 1 :]
        assert [each.changes for each in updates] == [
            {digest(1): b"%d" % number, digest(2): None} for number in range(place, 10)
        ]


async def test_many_megabytes_of_news_are_all_there(connect: Connect) -> None:
    one, other = await connect(), await connect()
    version = start = (await one.load()).version
    for number in range(8):
        changes = {digest(n): bytes([number]) * 1_000 for n in range(500)}
        version = await one.write(changes, version, name())
    updates = await other.news(start)
    assert len(updates) == 8
    assert updates[-1].version == version
    assert {each.changes[digest(499)] for each in updates} == {bytes([n]) * 1_000 for n in range(8)}


async def test_a_reader_that_waits_for_news_is_woken(connect: Connect) -> None:
    one, other = await connect(), await connect()
    start = (await one.load()).version
    numbers: list[int] = []

    async def wait() -> None:
        updates = await other.news(start, wait=30.0)
        numbers.extend(each.version.number for each in updates)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await put(one, _1=b"one")
    assert numbers == [start.number + 1]


async def test_waiting_for_news_ends(store: SharedStore) -> None:
    with trio.fail_after(10):
        assert await store.news((await store.load()).version, wait=0.01) == []


async def test_versions_of_another_registry_are_not_known(store: SharedStore) -> None:
    first = (await store.load()).version
    version = await put(store, _1=b"one")
    for strange in (
        Version(0, ""),
        Version(first.number - 1, name()),
        Version(first.number, name()),
        Version(version.number, name()),
        Version(version.number + 1, name()),
    ):
        with pytest.raises(ForgottenVersion):
            await store.news(strange)
        with pytest.raises(ForgottenVersion):
            await store.news(strange, wait=0.01)


async def test_changes_are_forgotten_where_many_have_come_behind_them(store: SharedStore) -> None:
    start = (await store.load()).version
    version = await put(store, _0=b"zero")
    versions = [version]
    for turn in range(6):
        changes = {digest(n): b"%d" % turn for n in range(1, KEPT_CHANGES // 5 + 1)}
        version = await store.write(changes, version, name())
        versions.append(version)
    with pytest.raises(ForgottenVersion):
        await store.news(start)
    with pytest.raises(ForgottenVersion):
        await store.news(versions[0])
    assert [each.version for each in await store.news(versions[1])] == versions[2:]
    snapshot = await store.load()
    assert snapshot.version == version
    assert snapshot.values == changes | {digest(0): b"zero"}


async def test_loading_beside_writers_gives_one_version(connect: Connect) -> None:
    one, other = await connect(), await connect()
    version = (await one.load()).version
    history = {version: {}}
    values: dict[bytes, bytes] = {}
    stop = False

    async def write() -> None:
        nonlocal version
        turn = 0
        while not stop:
            turn += 1
            some = {digest(n): b"%d" % turn for n in range(turn % 7, 3_000, 7)}
            version = await one.write(some, version, name())
            values.update(some)
            history[version] = dict(values)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        for _ in range(20):
            snapshot = await other.load()
            # Its writer may not have heard yet.
            await until(lambda known=snapshot.version: known in history)  # type: ignore[misc]
            assert snapshot.values == history[snapshot.version]
        stop = True


async def test_a_closed_store_is_unavailable(store: SharedStore) -> None:
    version = (await store.load()).version
    await store.aclose()
    await store.aclose()
    for call in (
        lambda: store.enter(KEY),
        store.load,
        lambda: store.news(version),
        lambda: store.write({digest(1): b"one"}, version, name()),
    ):
        with pytest.raises(RegistryUnavailable):
            await call()


async def test_closing_ends_a_wait(store: SharedStore) -> None:
    version = (await store.load()).version

    async def wait() -> None:
        with pytest.raises(RegistryUnavailable):
            await store.news(version, wait=30.0)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await store.aclose()
