"""Tokens of nodes: nothing that comes behind a revocation reaches the revoked session, anywhere."""

from collections.abc import AsyncIterator, Awaitable, Callable

import attrs
import pytest
import trio
import trio.testing

from mist.auth.shared_registry import SharedRegistry
from mist.commands import AddTags, Register, RemoveTags, Unregister
from mist.engine.checkpointing import Checkpointer
from mist.engine.tokens import open_shared_store
from mist.errors import HistoryUnavailable
from mist.history import Durability
from mist.sessions.close_reason import TOKEN_EXPIRED
from mist.sessions.receiving import CommandSession
from mist.terms import Terms
from tests.auth.shared_stores import FlakyStore
from tests.engine.nodes import Server, Start
from tests.history.messages import replay
from tests.sessions.storing import join, take
from tests.waiting import until

A, AB = frozenset("a"), frozenset("ab")
KEY = b"k" * 32


@attrs.define(eq=False)
class Member:
    """A node with a registry of its own over the realm's tokens."""

    server: Server
    registry: SharedRegistry
    store: FlakyStore

    def log_in(self, token: str, *tags: str) -> CommandSession:
        """A session of a token."""
        record = self.registry.lookup(token)
        assert record is not None
        session = join(self.server.hub)
        session.adopt(record)
        for each in tags:
            session.subscribe(frozenset(each))
        return session


StartMember = Callable[..., Awaitable[Member]]


@pytest.fixture
async def start_member(
    realm: str, start: Start, nursery: trio.Nursery
) -> AsyncIterator[StartMember]:
    opened: list[SharedRegistry] = []

    async def start_member(*, follows: bool = True, timeout: float = 5.0) -> Member:
        """Starts another node.

        Args:
            follows: whether it hears what others change before it has to ask.
            timeout: of its sequencer.
        """
        store = await open_shared_store(realm, durability=Durability.PROCESS)
        assert store is not None
        flaky = FlakyStore(store)
        registry = await SharedRegistry.open(flaky, KEY)
        opened.append(registry)
        flaky.deaf = not follows
        nursery.start_soon(registry.run)
        return Member(await start(registry=registry, timeout=timeout), registry, flaky)

    yield start_member
    nursery.cancel_scope.cancel()
    for each in opened:
        await each.aclose()


async def arrived(member: Member, id_: int) -> None:
    await until(lambda: member.server.sequencer.newest >= id_)


async def test_what_is_published_after_a_revocation_reaches_no_revoked_session(
    start_member: StartMember,
) -> None:
    one, two = await start_member(), await start_member(follows=False)
    await one.registry.execute([Register("t", A), Register("u", A)])
    await two.registry.sync()
    revoked, other = two.log_in("t", "a"), two.log_in("u", "a")
    await one.server.hub.store(A, b"before")
    await arrived(two, 1)
    assert take(revoked) == b"publish a before\n"
    await one.registry.execute([Unregister("t")])
    assert two.registry.lookup("t") is not None  # it has not heard of it
    await one.server.hub.store(A, b"behind")
    await arrived(two, 2)
    assert two.registry.lookup("t") is None
    assert (take(revoked), revoked.ended is not None) == (b"", True)
    assert take(other) == b"publish a before\npublish a behind\n"


async def test_a_tag_that_is_taken_is_gone_before_what_comes_behind(
    start_member: StartMember,
) -> None:
    one, two = await start_member(), await start_member(follows=False)
    await one.registry.execute([Register("t", AB)])
    await two.registry.sync()
    session = two.log_in("t", "a", "b")
    await one.registry.execute([RemoveTags("t", A)])
    await one.server.hub.store_all([(A, b"1"), (frozenset("b"), b"2")])
    await arrived(two, 2)
    lines = take(session).splitlines()
    assert b"publish b 2" in lines
    assert b"publish a 1" not in lines


async def test_what_comes_by_a_checkpoint_is_behind_revocations_too(
    start_member: StartMember,
) -> None:
    one, two = await start_member(), await start_member(follows=False)
    await one.registry.execute([Register("t", A)])
    await two.registry.sync()
    await one.server.hub.store_all([(A, b"1"), (A, b"2")])
    await arrived(two, 2)
    two.server.engine.deaf = True
    await one.registry.execute([Unregister("t")])
    await one.server.hub.store_all([(A, b"3"), (A, b"4")])
    assert await Checkpointer(one.server.node, least=1).step()
    await one.server.engine.trim((await one.server.engine.standing()).offset)
    two.server.engine.deaf = False
    await until(lambda: two.server.sequencer.ready and two.server.sequencer.newest == 4)
    assert two.registry.lookup("t") is None


async def test_a_token_expires_at_all_nodes_by_the_clock_of_the_engine(
    start_member: StartMember, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.auth.registry.KEPT_EXPIRED", 0.0)
    one, two = await start_member(), await start_member()
    for member in (one, two):
        nursery.start_soon(member.server.hub.expiry.run)
    hub = one.server.hub
    # A node's own time of day doesn't matter.
    monkeypatch.setattr("mist.sessions.hub.time.time", lambda: 9e9)
    assert abs(hub.now() - two.server.hub.now()) < 5.0
    late = hub.now() + 1_000.0
    terms = Terms(hub.now() + 0.5, "n")
    [made, _] = await one.registry.execute([Register("t", A, terms), Register("u", A, Terms(late))])
    await two.registry.sync()
    assert two.registry.lookup("t") == made
    sessions = [one.log_in("t", "a"), two.log_in("t", "a")]
    other = two.log_in("u", "a")
    await until(lambda: all(session.ended is TOKEN_EXPIRED for session in sessions))
    assert other.ended is None
    assert one.registry.lookup("t") is two.registry.lookup("t") is None
    # One of them removes it, and the other hears of it.
    await two.registry.discard_expired()
    await one.registry.sync()
    assert [each.expires for each in one.registry.page(9)] == [late]
    await one.registry.discard_expired()
    assert (one.registry.expired, two.registry.expired) == (0, 1)


async def test_where_nothing_is_revoked_nothing_is_asked(start_member: StartMember) -> None:
    one, two = await start_member(), await start_member(follows=False)
    await one.registry.execute([Register("t", A)])
    await two.registry.sync()
    two.log_in("t", "a")
    await one.server.hub.store(A, b"first")  # by now it has all that was changed
    await arrived(two, 1)
    asked: list[bool] = []
    news = two.store.news

    async def count(*args: object, wait: float = 0.0) -> object:
        asked.append(wait == 0)
        return await news(*args, wait=wait)  # type: ignore[arg-type]

    two.store.news = count  # type: ignore[assignment, method-assign]
    for number in range(20):
        await one.server.hub.store(A, b"%d" % number)
    await arrived(two, 21)
    assert not any(asked)


async def test_without_its_tokens_a_node_delivers_nothing_and_is_not_ready(
    start_member: StartMember,
) -> None:
    one, two = await start_member(), await start_member(follows=False)
    await one.registry.execute([Register("t", A)])
    await two.registry.sync()
    session = two.log_in("t", "a")
    two.store.down = True
    await one.registry.execute([AddTags("t", frozenset("b"))])
    await one.server.hub.store(A, b"one")
    await until(lambda: not two.server.sequencer.ready)
    assert take(session) == b""
    assert await replay(two.server.node.history) == []
    two.store.down = False
    await until(lambda: two.server.sequencer.ready)
    await arrived(two, 1)
    assert take(session) == b"publish a one\n"
    assert len(await replay(two.server.node.history)) == 1


async def test_publishers_of_a_node_without_its_tokens_are_refused_in_time(
    start_member: StartMember,
) -> None:
    one, two = await start_member(), await start_member(follows=False, timeout=0.1)
    two.store.down = True
    await one.registry.execute([Register("t", A)])
    with trio.fail_after(10):
        for _ in range(2):
            with pytest.raises(HistoryUnavailable):
                await two.server.hub.store(A, b"refused, and stored")
    two.store.down = False
    with trio.fail_after(10):
        await until(lambda: two.server.sequencer.ready)
        assert await two.server.hub.store(A, b"stored") == 3
