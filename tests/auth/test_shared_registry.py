"""Registries over one store: what one changes is in effect at all, in one order."""

import logging
import math
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mist.attributes import Attributes
from mist.auth import Enroll, Record, Remove
from mist.auth.changes import Change, Outcome
from mist.auth.key import make_key_file
from mist.auth.shared import Snapshot, Update, Version
from mist.auth.shared_memory import SharedMemory, SharedMemoryStore
from mist.auth.shared_registry import MAX_SILENCE, SharedRegistry
from mist.commands import AddTags, Register, RemoveTags, Unregister
from mist.engine.tokens import open_tokens
from mist.errors import RegistryUnavailable, StartupError, TokenExists, TokenNotFound
from mist.history import Durability
from tests.auth.shared_stores import FlakyStore
from tests.waiting import until

A, B, AB = frozenset("a"), frozenset("b"), frozenset("ab")
KEY = b"k" * 32

Seen = list[tuple[Record, Record | None]]


@attrs.define(eq=False)
class Server:
    """A registry, the store that it sees, and what it announces."""

    registry: SharedRegistry
    store: FlakyStore
    seen: Seen = attrs.field(factory=list)

    async def one(self, change: Change) -> Outcome:
        [outcome] = await self.registry.execute([change])
        return outcome


class Realm:
    """Servers that share tokens in memory."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.memory = SharedMemory()
        self._nursery = nursery

    async def server(self, *, follows: bool = True, **options: float) -> Server:
        """Another server.

        Args:
            follows: or else it hears news only where it asks.
        """
        store = FlakyStore(SharedMemoryStore(self.memory))
        registry = await SharedRegistry.open(store, KEY, **options)
        server = Server(registry, store)
        registry.watch(lambda old, new: server.seen.append((old, new)))
        store.deaf = not follows
        self._nursery.start_soon(registry.run)
        await trio.testing.wait_all_tasks_blocked()
        return server


@pytest.fixture
async def realm(nursery: trio.Nursery) -> AsyncIterator[Realm]:
    yield Realm(nursery)
    nursery.cancel_scope.cancel()


def record(outcome: Outcome) -> Record:
    assert isinstance(outcome, Record)
    return outcome


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


# What one changes is in effect at all


async def test_what_one_registers_is_known_at_the_others(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(), await realm.server()
    made = record(await one.one(Enroll("t", A, Attributes(user="1"))))
    await settled()
    found = two.registry.lookup("t")
    assert found == made
    assert two.registry.find(made.id) == made
    assert two.registry.page(9) == [made]
    assert two.registry.attributes("t").user == "1"
    assert (one.seen, two.seen) == ([], [])


async def test_what_one_revokes_is_announced_at_all(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    servers = [await realm.server() for _ in range(3)]
    made = record(await servers[0].one(Register("t", AB)))
    await settled()
    less = record(await servers[1].one(RemoveTags("t", B)))
    await servers[2].one(Unregister("t"))
    await settled()
    for server in servers:
        assert server.seen == [(made, less), (less, None)]
        assert server.registry.lookup("t") is None
        assert server.registry.find(made.id) is None
        assert server.registry.page(9) == []


async def test_own_changes_are_in_effect_on_return_and_announced_once(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    server = await realm.server()
    made = record(await server.one(Register("t", A)))
    assert server.registry.lookup("t") is made
    more = record(await server.one(AddTags("t", B)))
    assert server.registry.lookup("t") is more
    assert server.seen == [(made, more)]
    await settled()
    assert server.registry.lookup("t") is more
    assert server.seen == [(made, more)]
    assert server.registry.statistics().changes == 2


async def test_a_token_registered_anew_is_another_one_at_all(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(), await realm.server()
    old = record(await one.one(Register("t", A)))
    await settled()
    _, new = await one.registry.execute([Unregister("t"), Register("t", B)])
    await settled()
    for server in (one, two):
        assert server.seen == [(old, None)]
        assert server.registry.lookup("t") == new
        assert server.registry.find(old.id) is None


async def test_changes_of_one_call_take_effect_together_elsewhere(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(), await realm.server()
    await one.registry.execute([Register("t", A), Register("u", A)])
    await settled()
    at_once: list[tuple[bool, bool]] = []
    two.registry.watch(
        lambda old, new: at_once.append(
            tuple(two.registry.lookup(each) is None for each in "tu")  # type: ignore[arg-type]
        )
    )
    await one.registry.execute([Unregister("t"), Unregister("u")])
    await settled()
    assert at_once[-1] == (True, True)


async def test_records_survive_all_servers(shared_url: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    make_key_file(key)
    options = {"key_file": key, "durability": Durability.PROCESS}
    async with await open_tokens(shared_url, **options) as one:  # type: ignore[arg-type]
        (made,) = await one.execute([Enroll("t", A, Attributes(user="1"))])
        async with await open_tokens(shared_url, **options) as two:  # type: ignore[arg-type]
            assert two.lookup("t") == made
            await two.execute([AddTags("t", B)])
        await one.sync()
        assert one.tags("t") == AB


# Changes at several servers at once


async def test_of_two_that_register_a_token_at_once_one_succeeds(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    servers = [await realm.server(follows=False) for _ in range(3)]
    outcomes: list[tuple[Server, Outcome]] = []

    async def register(server: Server, tags: frozenset[str]) -> None:
        outcomes.append((server, await server.one(Register("t", tags))))

    async with trio.open_nursery() as nursery:
        for server, tags in zip(servers, (A, B, AB), strict=True):
            nursery.start_soon(register, server, tags)
    made = [outcome for _, outcome in outcomes if isinstance(outcome, Record)]
    assert len(made) == 1
    assert sum(isinstance(outcome, TokenExists) for _, outcome in outcomes) == 2
    for server in servers:
        await server.registry.sync()
        assert server.registry.lookup("t") == made[0]


async def test_what_is_refused_is_refused_by_what_is_there_now(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(), await realm.server(follows=False)
    await one.one(Register("t", A))
    assert isinstance(await two.one(Register("t", A)), TokenExists)
    await one.one(Unregister("t"))
    assert two.registry.lookup("t") is not None  # it has not heard
    assert isinstance(await two.one(AddTags("t", B)), TokenNotFound)
    await one.one(Register("t", A))
    assert two.registry.lookup("t") is None
    assert record(await two.one(AddTags("t", B))).tags == AB


async def test_nothing_to_change_is_so_by_what_is_there_now(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(), await realm.server(follows=False)
    made = record(await one.one(Register("t", AB)))
    await two.registry.sync()
    await one.one(RemoveTags("t", B))
    assert record(await two.one(AddTags("t", B))).tags == AB
    await settled()
    assert one.registry.tags("t") == AB
    assert await two.one(Unregister("nobody's")) is None
    await one.one(Remove(made.id))
    assert isinstance(await two.one(Remove(made.id)), TokenNotFound)


async def test_changes_that_build_on_others_are_planned_again(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    servers = [await realm.server() for _ in range(3)]
    await servers[0].one(Register("t", frozenset()))

    async def add(server: Server, name: int) -> None:
        for turn in range(20):
            await server.one(AddTags("t", frozenset({f"{name}.{turn}"})))

    async with trio.open_nursery() as nursery:
        for name, server in enumerate(servers):
            nursery.start_soon(add, server, name)
            nursery.start_soon(add, server, name + 3)
    await settled()
    tags = {f"{name}.{turn}" for name in range(6) for turn in range(20)}
    assert [server.registry.tags("t") for server in servers] == [tags] * 3


# A store that fails


async def test_a_lost_reply_is_no_second_write(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(), await realm.server()
    one.store.lose_replies = 1
    made = record(await one.one(Register("t", A)))
    assert one.store.writes == 2
    one.store.lose_requests = 2
    assert record(await one.one(AddTags("t", B))).tags == AB
    await settled()
    assert two.registry.lookup("t") == attrs.evolve(made, tags=AB)
    assert one.registry.version.number == realm.memory.log[0].version.number + 2


async def test_a_lost_reply_is_found_out_behind_the_writes_of_others(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(follows=False), await realm.server()
    one.store.lose_replies = 1

    async def other() -> None:
        await until(lambda: one.store.writes)
        for _ in range(5):
            await two.one(AddTags("t", B))
            await two.one(RemoveTags("t", B))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        made = record(await one.one(Register("t", A)))
    await one.registry.sync()
    assert one.registry.lookup("t") == made


@pytest.mark.parametrize("how", ["down", "frozen"])
async def test_where_the_store_is_away_changes_are_refused_in_time(
    autojump_clock: MockClock, realm: Realm, how: str
) -> None:
    server = await realm.server(timeout=5.0)
    await server.one(Register("t", A))
    setattr(server.store, how, True)
    start = trio.current_time()

    async def change() -> None:
        with pytest.raises(RegistryUnavailable):
            await server.one(AddTags("t", B))

    async with trio.open_nursery() as nursery:
        for _ in range(10):  # one after the other, and all in the same time
            nursery.start_soon(change)
    assert trio.current_time() - start <= 5.1
    assert server.registry.statistics().failed_writes == 10
    setattr(server.store, how, False)
    await trio.sleep(1)
    assert server.registry.tags("t") == A
    assert record(await server.one(AddTags("t", B))).tags == AB


async def test_a_cancelled_change_is_done_or_not_and_the_next_one_knows(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    server = await realm.server()
    server.store.frozen = True
    with trio.move_on_after(0.5):
        await server.one(Register("t", A))
    assert server.registry.statistics().tokens == 0
    server.store.frozen = False
    assert isinstance(await server.one(Register("t", B)), Record)


async def test_without_contact_for_a_second_nobody_is_let_in(
    autojump_clock: MockClock, realm: Realm, caplog: pytest.LogCaptureFixture
) -> None:
    server = await realm.server()
    await server.one(Register("t", A))
    await trio.sleep(10)
    assert server.registry.lookup("t") is not None
    server.store.down = True
    await trio.sleep(MAX_SILENCE - 0.5)
    assert server.registry.lookup("t") is not None
    await trio.sleep(0.6)
    for call in (server.registry.lookup, server.registry.tags, server.registry.attributes):
        for token in ("t", "unknown"):
            with pytest.raises(RegistryUnavailable):
                call(token)
    questions = server.store.questions
    with pytest.raises(RegistryUnavailable):
        await server.registry.refresh("unknown")
    assert server.store.questions == questions
    assert server.registry.silence > MAX_SILENCE
    server.store.down = False
    await trio.sleep(0.6)
    assert server.registry.lookup("t") is not None
    assert server.registry.silence < 0.5
    assert [each.message for each in caplog.records] == ["the token registry can't be followed"]


async def test_a_server_that_stood_still_itself_asks_before_it_refuses(
    autojump_clock: MockClock, realm: Realm
) -> None:
    server = await realm.server(follows=False)
    await server.one(Register("t", A))
    server.registry._contact -= 10
    with pytest.raises(RegistryUnavailable):
        server.registry.lookup("t")
    await server.registry.refresh("t")
    assert server.registry.lookup("t") is not None


async def test_an_answer_that_was_long_on_its_way_is_no_contact(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    server = await realm.server()
    server.store.frozen = server.store.deaf = True
    await trio.sleep(5)
    server.store.frozen = False
    await trio.sleep(0.24)  # what it was asked five seconds ago is answered after a quarter of one
    with pytest.raises(RegistryUnavailable):
        server.registry.lookup("t")
    await trio.sleep(0.3)
    assert server.registry.lookup("t") is None


async def test_what_was_missed_is_made_up_for(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(), await realm.server()
    made = record(await one.one(Register("t", A)))
    await settled()
    two.store.down = True
    await trio.sleep(5)
    await one.registry.execute([Unregister("t"), Register("u", A)])
    assert two.seen == []
    two.store.down = False
    await trio.sleep(0.6)
    assert two.seen == [(made, None)]
    assert two.registry.tags("u") == A


# Tokens that were registered elsewhere a moment ago


async def test_an_unknown_token_is_asked_for(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(), await realm.server(follows=False)
    made = record(await one.one(Register("t", A)))
    assert two.registry.lookup("t") is None
    await two.registry.refresh("t")
    assert two.registry.lookup("t") == made


async def test_a_token_that_had_no_tags_is_asked_for(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(), await realm.server(follows=False)
    await one.one(Register("t", frozenset()))
    await two.registry.sync()
    await one.one(AddTags("t", A))
    await two.registry.refresh("t")
    assert two.registry.tags("t") == A


async def test_a_known_token_costs_no_question_and_no_wait(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    server = await realm.server(follows=False)
    await server.one(Register("t", A))
    questions, now = server.store.questions, trio.current_time()
    with trio.testing.assert_no_checkpoints():
        await server.registry.refresh("t")
        await server.registry.refresh("no token")
    assert (server.store.questions, trio.current_time()) == (questions, now)


async def test_guesses_at_tokens_cause_few_questions(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    server = await realm.server()
    await trio.sleep(1)
    before, start = server.store.questions, trio.current_time()

    async def guess(name: int) -> None:
        for turn in range(100):
            await server.registry.refresh(f"{name}.{turn}")

    async with trio.open_nursery() as nursery:
        for name in range(50):
            nursery.start_soon(guess, name)
    seconds = trio.current_time() - start
    assert seconds < 3
    assert server.store.questions - before <= (200 + 4) * seconds + 4


async def test_reaching_a_version_asks_once_where_it_is_not_there(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(), await realm.server(follows=False)
    made = record(await one.one(Register("t", A)))
    await two.registry.sync()
    await one.one(Unregister("t"))
    questions = two.store.questions
    await two.registry.reach(two.registry.version.number)
    await two.registry.reach(0)
    assert two.store.questions == questions
    await two.registry.reach(one.registry.version.number)
    assert two.seen == [(made, None)]
    assert two.store.questions == questions + 1
    # A version that isn't there yet, or not any more, keeps nobody waiting.
    await two.registry.reach(one.registry.version.number + 1_000)
    assert two.store.questions == questions + 2
    two.store.down = True
    with pytest.raises(RegistryUnavailable):
        await two.registry.reach(one.registry.version.number + 1)


# Registries that are not what they were


async def test_where_changes_are_forgotten_the_differences_are_announced(
    autojump_clock: MockClock, realm: Realm, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await realm.server(), await realm.server()
    outcomes = await one.registry.execute([Register(each, AB) for each in "tuvw"])
    t, u, v, _ = map(record, outcomes)
    await settled()
    two.store.down = True
    await trio.sleep(1)
    less = record(await one.one(RemoveTags("u", B)))
    await one.registry.execute([Unregister("t"), Unregister("v"), Register("v", A)])
    await one.one(Register("x", A))
    del realm.memory.log[:-1]
    two.store.down = False
    await trio.sleep(0.6)
    assert sorted(two.seen, key=lambda each: each[0].id) == sorted(
        [(t, None), (u, less), (v, None)], key=lambda each: each[0].id
    )
    assert two.registry.page(9) == one.registry.page(9)
    assert two.registry.version == one.registry.version
    assert "loaded anew" in caplog.text


class SlowlyLoaded(SharedMemoryStore):
    """Loads what it has now, and hands it over when it is let go on."""

    def __init__(self, memory: SharedMemory) -> None:
        super().__init__(memory)
        self.go_on = trio.Event()
        self.go_on.set()

    async def load(self) -> Snapshot:
        snapshot = await super().load()
        await self.go_on.wait()
        return snapshot


async def test_a_revocation_during_a_load_is_known_after_sync(
    autojump_clock: MockClock, realm: Realm, nursery: trio.Nursery
) -> None:
    one = await realm.server()
    await one.one(Register("t", A))
    store = SlowlyLoaded(realm.memory)
    flaky = FlakyStore(store)
    registry = await SharedRegistry.open(flaky, KEY)
    store.go_on = trio.Event()
    await one.one(Register("u", A))
    del realm.memory.log[:-1]
    nursery.start_soon(registry.run)
    await settled()
    await one.one(Unregister("t"))
    found: list[Record | None] = []

    async def ask() -> None:
        await registry.sync()
        found.append(registry.lookup("t"))

    nursery.start_soon(ask)
    await settled()
    flaky.deaf = True
    store.go_on.set()
    await until(lambda: found)
    assert found == [None]


async def test_another_registry_in_its_place_is_loaded(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one = await realm.server()
    made = record(await one.one(Register("t", A)))
    number = one.registry.version.number
    # Removed, made anew by another server, and by chance at the same version.
    realm.memory.log[:] = [Update(Version(number - 1, "f" * 32), {})]
    realm.memory.values.clear()
    two = await realm.server()
    await two.one(Register("u", A))
    assert two.registry.version.number == number
    await trio.sleep(1)
    assert one.seen == [(made, None)]
    assert one.registry.tags("u") == A
    assert one.registry.version == two.registry.version


async def test_a_damaged_token_is_not_accepted_and_may_be_registered_again(
    autojump_clock: MockClock, realm: Realm, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await realm.server(), await realm.server()
    made = record(await one.one(Register("t", A)))
    await one.one(Register("u", A))
    value = realm.memory.values[made.digest]
    bad = {made.digest: value.replace(b'"a"', b'"b"')}
    store = SharedMemoryStore(realm.memory)
    await store.write(bad, one.registry.version, secrets.token_hex(16))
    await settled()
    three = await realm.server()
    for server in (one, two, three):
        assert server.registry.lookup("t") is None
        assert server.registry.tags("u") == A
    assert two.seen == [(made, None)]
    assert [each.tokens for each in caplog.records] == [1, 1, 1]  # type: ignore[attr-defined]
    assert "t" not in [str(each.args) for each in caplog.records]
    assert isinstance(await three.one(Register("t", B)), Record)
    await settled()
    assert one.registry.tags("t") == B


async def test_servers_with_another_key_are_refused(shared_url: str, tmp_path: Path) -> None:
    for name in ("one", "other"):
        make_key_file(tmp_path / name)
    options = {"durability": Durability.PROCESS}
    async with await open_tokens(shared_url, key_file=tmp_path / "one", **options) as one:
        (made,) = await one.execute([Register("t", A)])
        with pytest.raises(StartupError, match="another key") as error:
            await open_tokens(shared_url, key_file=tmp_path / "other", **options)
        assert "\n" not in str(error.value)
        await one.sync()
        assert one.lookup("t") == made


async def test_a_missing_key_file_is_told_and_not_made(shared_url: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="mist token key") as error:
        await open_tokens(shared_url, key_file=tmp_path / "key")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", [0, 31, 33, 1_000])
async def test_a_key_file_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(bytes(length))
    path.chmod(0o600)
    with pytest.raises(StartupError, match="32 bytes"):
        await open_tokens("memory://name", key_file=path)


async def test_a_key_file_that_others_can_read_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "key"
    make_key_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        make_key_file(path)
    path.chmod(0o644)
    async with await open_tokens(f"memory://{secrets.token_hex(4)}", key_file=path):
        pass
    assert "chmod 600" in caplog.text


async def test_a_closed_registry_changes_nothing(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    server = await realm.server()
    await server.one(Register("t", A))
    await server.registry.aclose()
    await server.registry.aclose()
    start = trio.current_time()
    with pytest.raises(RegistryUnavailable):
        await server.one(AddTags("t", B))
    assert trio.current_time() == start


async def test_a_thousand_changes_are_one_write(
    autojump_clock: MockClock,
    realm: Realm,
) -> None:
    one, two = await realm.server(), await realm.server()
    await one.registry.execute([Register(f"t{n}", A) for n in range(2_000)])
    assert one.store.writes == 1
    await settled()
    assert two.registry.page(3_000) == one.registry.page(3_000)
    assert len(two.registry.page(3_000)) == 2_000


def test_before_it_is_loaded_it_lets_nobody_in() -> None:
    async def main() -> None:
        registry = SharedRegistry(SharedMemoryStore(SharedMemory()), KEY)
        assert registry.silence == math.inf
        with pytest.raises(RegistryUnavailable):
            registry.lookup("t")

    trio.run(main)


async def test_nothing_secret_is_logged(
    autojump_clock: MockClock, realm: Realm, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = await realm.server(timeout=1.0)
    await server.one(Register("s3cret-t0ken", A))
    server.store.down = True
    with pytest.raises(RegistryUnavailable):
        await server.one(AddTags("s3cret-t0ken", B))
    assert "no route to host" in caplog.text or caplog.records[-1].reason  # type: ignore[attr-defined]
    assert "s3cret" not in "".join(str(vars(each)) for each in caplog.records)
