"""Tokens that expire, and their names, over every kind of registry."""

import math
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import mist.auth.registry as registry_module
from mist.attributes import Attributes
from mist.auth import Amend, Enroll, Record
from mist.auth.changes import Change, Discard, Outcome
from mist.auth.registry import Registry
from mist.auth.shared_memory import SharedMemory, SharedMemoryStore
from mist.auth.shared_registry import SharedRegistry
from mist.commands import AddTags, Register, RemoveTags, SetTerms, Unregister
from mist.engine.tokens import open_tokens
from mist.errors import InvalidExpiry, RegistryUnavailable, TokenExists, TokenNotFound
from mist.history import Durability
from mist.terms import Terms
from tests.auth.stores import Failing
from tests.processes import token_key

A, AB = frozenset("a"), frozenset("ab")
NOW = 1_800_000_000.0


async def one(registry: Registry, change: Change) -> Outcome:
    [outcome] = await registry.execute([change])
    return outcome


async def made(registry: Registry, change: Change) -> Record:
    record = await one(registry, change)
    assert isinstance(record, Record)
    return record


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has expired is removed without delay, unless a test says otherwise."""
    monkeypatch.setattr(registry_module, "KEPT_EXPIRED", 0.0)


@pytest.fixture
def clock(registry: Registry) -> Clock:
    clock = Clock()
    registry.now = clock
    return clock


async def test_a_token_is_refused_from_the_moment_on_at_which_it_expires(
    registry: Registry, clock: Clock
) -> None:
    record = await made(registry, Register("t", A, Terms(NOW + 10, "ci")))
    assert (record.expires, record.name) == (NOW + 10, "ci")
    clock.now += 9.99
    assert registry.lookup("t") == record
    clock.now += 0.01
    assert registry.lookup("t") is None
    clock.now -= 1  # a clock that is set back
    assert registry.lookup("t") == record


async def test_an_expired_token_is_shown_until_it_is_removed_and_can_be_prolonged(
    registry: Registry, clock: Clock
) -> None:
    record = await made(registry, Register("t", A, Terms(NOW + 10)))
    clock.now += 20
    assert registry.tags("t") == A
    assert (await made(registry, AddTags("t", AB))).expires == NOW + 10
    assert registry.lookup("t") is None
    prolonged = await made(registry, SetTerms("t", Terms(NOW + 30)))
    assert prolonged.id == record.id
    assert registry.lookup("t") == prolonged


async def test_expired_tokens_are_removed_and_others_stay(
    registry: Registry, clock: Clock, seen: list[tuple[Record, Record | None]]
) -> None:
    changes = [Register(f"t{number}", A, Terms(NOW + 1 + number % 2)) for number in range(450)]
    outcomes = await registry.execute([*changes, Register("always", A)])
    await registry.discard_expired()
    assert registry.statistics().tokens == 451
    clock.now += 1
    await registry.discard_expired()
    assert registry.statistics().tokens == 226
    assert registry.expired == 225
    assert {old.id for old, new in seen} == {each.id for each in outcomes[:450:2]}  # type: ignore[union-attr]
    assert all(new is None for old, new in seen)
    clock.now += 1e9
    await registry.discard_expired()
    assert registry.statistics().tokens == 1
    assert registry.lookup("always") is not None


async def test_a_clock_that_is_ahead_for_a_moment_removes_nothing(
    registry: Registry, clock: Clock, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "KEPT_EXPIRED", 600.0)
    await registry.execute([Register("t", A, Terms(NOW + 10)), Register("u", A, Terms(NOW + 1e8))])
    clock.now += 1e9  # years
    for _ in range(9):
        await registry.discard_expired()
        await trio.sleep(60.0)
    clock.now -= 1e9
    await trio.sleep(600.0)
    await registry.discard_expired()
    assert registry.statistics().tokens == 2
    clock.now += 20
    await registry.discard_expired()
    await trio.sleep(599.0)
    await registry.discard_expired()
    assert registry.statistics().tokens == 2
    await trio.sleep(2.0)
    await registry.discard_expired()
    assert registry.lookup("u") is not None
    assert registry.statistics().tokens == 1


async def test_a_token_that_was_prolonged_is_not_removed(registry: Registry, clock: Clock) -> None:
    record = await made(registry, Register("t", A, Terms(NOW + 10)))
    await registry.execute([SetTerms("t", Terms(NOW + 100)), Register("u", A, Terms(NOW + 10))])
    await registry.execute([SetTerms("u", Terms(math.inf))])
    clock.now += 50
    # As another server asks for it, which has not heard of the change.
    assert await made(registry, Discard(record.id)) == registry.lookup("t")
    await registry.discard_expired()
    assert registry.statistics().tokens == 2
    clock.now += 50
    await registry.discard_expired()
    assert [record.expires for record in registry.page(9)] == [None]


async def test_an_expired_token_can_be_registered_anew(
    registry: Registry, clock: Clock, seen: list[tuple[Record, Record | None]]
) -> None:
    old = await made(registry, Register("t", A, Terms(NOW + 10)))
    assert isinstance(await one(registry, Register("t", A)), TokenExists)
    clock.now += 10
    new = await made(registry, Enroll("t", AB, Attributes(user="7"), Terms(NOW + 20, "again")))
    assert new.id != old.id
    assert (new.tags, new.expires, new.name) == (AB, NOW + 20, "again")
    assert registry.lookup("t") == new == registry.find(new.id)
    assert registry.find(old.id) is None
    assert seen == [(old, None)]
    assert registry.statistics().tokens == 1


async def test_terms_are_changed_each_alone(registry: Registry, clock: Clock) -> None:
    record = await made(registry, Register("t", A, Terms(NOW + 10, "a")))
    assert (await made(registry, SetTerms("t", Terms(name="b")))).expires == NOW + 10
    changed = await made(registry, Amend(record.id, add=AB, terms=Terms(NOW + 20)))
    assert (changed.name, changed.expires, changed.tags) == ("b", NOW + 20, AB)
    changed = await made(registry, SetTerms("t", Terms(math.inf, "")))
    assert (changed.name, changed.expires) == ("", None)
    assert (await made(registry, RemoveTags("t", AB))).tags == frozenset()
    assert isinstance(await one(registry, SetTerms("u", Terms(name="b"))), TokenNotFound)
    await registry.execute([Unregister("t")])
    assert isinstance(await one(registry, Amend(record.id, terms=Terms(name="b"))), TokenNotFound)


async def test_an_expiry_that_has_passed_is_refused_and_changes_nothing(
    registry: Registry, clock: Clock
) -> None:
    before = await made(registry, Register("t", A, Terms(NOW + 10)))
    for change in [
        Register("u", A, Terms(NOW)),
        Enroll("u", A, Attributes(), Terms(1.0)),
        SetTerms("t", Terms(NOW, "b")),
        Amend(before.id, add=AB, terms=Terms(NOW - 1)),
    ]:
        assert isinstance(await one(registry, change), InvalidExpiry)
    assert registry.page(9) == [before]


async def test_a_store_that_fails_is_tried_again(
    local: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    local.now = clock
    store = Failing(local._store)  # type: ignore[attr-defined]
    monkeypatch.setattr(local, "_store", store)
    await local.execute([Register("t", A, Terms(NOW + 1))])
    clock.now += 1
    store.full = True
    with pytest.raises(RegistryUnavailable):
        await local.discard_expired()
    assert local.statistics().tokens == 1
    store.full = False
    await local.discard_expired()
    assert local.statistics().tokens == 0


async def test_terms_last(tmp_path: Path, shared_url: str) -> None:
    key = token_key(tmp_path)
    options: dict[str, Any] = {"key_file": key, "durability": Durability.PROCESS}
    for url in (f"sqlite:///{tmp_path}/tokens.db", shared_url):
        async with await open_tokens(url, **options) as registry:
            registry.now = Clock()
            first = await made(registry, Register("t", A, Terms(NOW + 0.25, "ä'b")))
            second = await made(registry, Register("u", A, Terms(name="named")))
        async with await open_tokens(url, **options) as registry:
            registry.now = clock = Clock()
            assert [registry.lookup(token) for token in "tu"] == [first, second]
            clock.now += 1
            await registry.discard_expired()
        async with await open_tokens(url, **options) as registry:
            assert registry.page(9) == [second]


async def test_of_two_servers_that_remove_it_one_does(autojump_clock: MockClock) -> None:
    memory, clock = SharedMemory(), Clock()
    registries = [await SharedRegistry.open(SharedMemoryStore(memory), b"k" * 32) for _ in range(2)]
    for registry in registries:
        registry.now = clock
    record = await made(registries[0], Register("t", A, Terms(NOW + 10)))
    await registries[1].sync()
    # The second has not heard of it when its turn comes.
    clock.now += 10
    await registries[0].execute([SetTerms("t", Terms(NOW + 30))])
    await registries[1].discard_expired()
    for registry in registries:
        await registry.sync()
        found = registry.lookup("t")
        assert found is not None
        assert (found.id, found.expires) == (record.id, NOW + 30)
    clock.now += 20
    for registry in registries:
        await registry.discard_expired()
        assert registry.statistics().tokens == 0
    assert sum(registry.expired for registry in registries) == 1
