"""From the history to live: nothing missing, nothing twice, in order, at whatever moment."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from mist.auth.opening import open_registry
from mist.broker.outbox_limits import OutboxLimits
from mist.commands import Register, RemoveTags, Since
from mist.errors import HistoryUnavailable
from mist.history import History, Page, Policy, Publication, Selection, shared_pages
from mist.history.opening import open_history
from mist.protocols.line import LineProtocol
from mist.protocols.line.forms import PLAIN
from mist.protocols.topics.forms import TopicForm
from mist.replies import Behind, CaughtUp, Reply
from mist.sessions.close_reason import DISCONNECTED, INTERNAL_ERROR
from mist.sessions.hub import Hub
from mist.sessions.page_turns import Replay
from mist.sessions.receiving import CommandSession
from mist.sessions.recovery import Recovery
from mist.turns import Account, Turns
from mist.wire import Entry
from tests.sessions.storing import sequence


@asynccontextmanager
async def hub_over(history: History, **bounds: int) -> AsyncIterator[Hub]:
    hub = Hub(await open_registry("memory://"), outbox_limits=OutboxLimits(**bounds))
    hub.sequencer = await sequence(hub.broker, history)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hub.sequencer.run)
        yield hub
        nursery.cancel_scope.cancel()


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with hub_over(await open_history("memory://")) as hub:
        yield hub


def join(hub: Hub) -> CommandSession:
    session = CommandSession(hub, LineProtocol(hub.limits), transport="tcp")
    hub.sessions.attach(session)
    return session


def take(session: CommandSession, most: int = 1 << 30) -> bytes:
    """What the peer reads, `most` bytes of it."""
    found = b""
    while session.outbox.size and len(found) < most:
        data = bytes(session.outbox.peek())[: most - len(found)]
        session.outbox.sent(len(data))
        found += data
    return found


async def publish(hub: Hub, *messages: str) -> None:
    session = join(hub)
    await session.receive("".join(f"publish {m}\n" for m in messages).encode() + b"ping\n")
    assert take(session) == b"pong\n"
    await session.aclose()


def epoch(hub: Hub) -> bytes:
    assert hub.sequencer is not None
    return hub.sequencer.epoch.encode()


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (b"0", [1, 3, 4]),
        (b"1", [3, 4]),
        (b"2", [3, 4]),
        (b"4", []),
        (b"5", []),
        (b"-1", [4]),
        (b"-2", [3, 4]),
        (b"-99", [1, 3, 4]),
    ],
)
async def test_what_was_comes_first_and_then_what_is(
    hub: Hub, since: bytes, expected: list[int]
) -> None:
    await publish(hub, "a 1", "b 2", "a,b 3", "a 4", "c 5")
    session = join(hub)
    await session.receive(b"ids on\nsubscribe a %b\nping\n" % since)
    await publish(hub, "a 6", "b 7")
    lines = take(session).splitlines()
    fence = lines.index(b"pong")
    assert [int(line.split()[1]) for line in lines[:fence]] == expected
    assert lines[fence + 1 :] == [b"message 6 a 6"]


async def test_several_come_as_one_in_the_order_of_their_ids(hub: Hub) -> None:
    await publish(hub, "a 1", "b 2", "a,b 3", "c 4", "b,c 5")
    session = join(hub)
    await session.receive(b"ids on\nresume 0 a b,c a,b\nping\n")
    assert [line.split()[1] for line in take(session).splitlines()[:-1]] == [b"1", b"3", b"5"]
    await session.receive(b"list\n")
    assert take(session) == b"list a b,c a,b\n"


@pytest.mark.parametrize(
    ("since", "gap"),
    [
        (b"%b:2", False),
        (b"%b:9", True),  # beyond the newest
        (b"9", True),
        (b"another:2", True),
        (b"another:0", True),
        (b"%b:0", False),
    ],
)
async def test_what_cannot_be_resumed_is_said_before_all_that_is_kept(
    hub: Hub, since: bytes, gap: bool
) -> None:
    await publish(hub, "a 1", "a 2", "a 3")
    session = join(hub)
    place = since % epoch(hub) if b"%" in since else since
    await session.receive(b"subscribe a %b\nping\n" % place)
    first, *rest = take(session).splitlines()
    if gap:
        assert first == b"gap %b 1" % epoch(hub)
        assert rest == [b"publish a 1", b"publish a 2", b"publish a 3", b"pong"]
    else:
        after = int(place.rpartition(b":")[2])
        assert [first, *rest] == [b"publish a %d" % n for n in range(after + 1, 4)] + [b"pong"]


async def test_what_was_trimmed_is_said(hub: Hub) -> None:
    assert hub.sequencer is not None
    history = hub.sequencer.history
    for n in range(1, 41):
        await publish(hub, f"a {n}" + "x" * 40_000)
    while (await history.trim(Policy(max_bytes=400_000), now=0)).more:
        pass
    first = (await history.position()).first
    assert first > 2
    session = join(hub)
    await session.receive(b"ids on\nsubscribe a 1\n")
    lines = take(session).splitlines()
    assert lines[0] == b"gap %b %d" % (epoch(hub), first)
    assert [int(line.split()[1]) for line in lines[1:]] == list(range(first, 41))


async def test_a_live_subscription_stays_whole_while_another_is_replayed(hub: Hub) -> None:
    session = join(hub)
    await session.receive(b"ids on\nsubscribe b\n")
    await publish(hub, "a 1", "b 2", "a 3")
    await session.receive(b"subscribe a 0\n")
    await publish(hub, "b 4", "a,b 5")
    got = [int(line.split()[1]) for line in take(session).splitlines()]
    assert got == [2, 1, 3, 4, 5]


@pytest.mark.parametrize("seed", range(20))
async def test_the_hand_over_is_exact_at_random_moments_under_load(hub: Hub, seed: int) -> None:
    await hand_over_at_random_moments(hub, seed)


async def hand_over_at_random_moments(hub: Hub, seed: int) -> None:
    """Ten subscribers that come at any moment and begin anywhere, beside a busy publisher."""
    assert hub.sequencer is not None
    random = Random(seed)
    done = trio.Event()
    begin = hub.sequencer.newest
    expected: list[int] = []
    published = begin

    async def load() -> None:
        nonlocal published
        publisher = join(hub)
        while not done.is_set():
            lines = b""
            for _ in range(random.randint(1, 30)):
                published += 1
                if tagged := random.random() < 0.5:
                    expected.append(published)
                lines += b"publish %b %d\n" % (b"a,x" if tagged else b"b", published)
            await publisher.receive(lines)
            for _ in range(random.randint(0, 3)):
                await trio.lowlevel.checkpoint()
        await publisher.receive(b"ping\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load)
        for _ in range(10):
            for _ in range(random.randint(0, 40)):
                await trio.lowlevel.checkpoint()
            since = random.randint(begin, hub.sequencer.newest)
            session = join(hub)
            await session.receive(b"ids on\nsubscribe a %d\n" % since)
            for _ in range(random.randint(0, 40)):
                await trio.lowlevel.checkpoint()
            await session.receive(b"last\n")
            got_so_far, _, last = take(session).partition(b"last ")
            lines = got_so_far.splitlines()
            newest = int(last.split()[1])
            got = [int(line.split()[1]) for line in lines]
            assert got == [n for n in expected if since < n <= newest]
            await session.aclose()
        done.set()


@pytest.mark.parametrize("seed", range(5))
async def test_who_asked_for_history_and_falls_behind_misses_nothing(seed: int) -> None:
    random = Random(seed)
    async with hub_over(await open_history("memory://"), bytes=20_000, messages=200) as hub:
        session, careless = join(hub), join(hub)
        await session.receive(b"ids on\nsubscribe a 0\n")
        await careless.receive(b"ids on\nsubscribe a\n")
        received = b""
        for n in range(1, 101):
            await publish(hub, *[f"a {n}.{k} {'x' * 100}" for k in range(random.randint(1, 40))])
            received += take(session, random.randint(0, 6_000))
            if random.random() < 0.2:
                await trio.testing.wait_all_tasks_blocked()
            assert session.outbox.size < 20_000 + (1 << 20)
        assert hub.sequencer is not None
        while not received.endswith(b"\n") or int(received.splitlines()[-1].split()[1]) < (
            hub.sequencer.newest
        ):
            received += take(session, 5_000)
            await trio.testing.wait_all_tasks_blocked()
        ids = [int(line.split()[1]) for line in received.splitlines()]
        assert ids == list(range(1, hub.sequencer.newest + 1))
        assert session.outbox.dropped_full == 0
        assert careless.outbox.dropped_full > 0  # the way that is without history


async def test_one_goes_live_under_a_publisher_that_never_rests(hub: Hub) -> None:
    await publish(hub, *[f"a {n}" for n in range(5_000)])
    publisher, session = join(hub), join(hub)
    stop = trio.Event()
    published = 5_000

    async def keep_publishing() -> None:
        nonlocal published
        while not stop.is_set():
            await publisher.receive(b"publish a %d\n" % published * 20 + b"ping\n")
            publisher.outbox.sent(publisher.outbox.size)
            published += 20

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_publishing)
        with trio.fail_after(20):
            await session.receive(b"ids on\nsubscribe a 0\n")
        assert session.recovery is not None
        assert not session.recovery.behind
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        stop.set()
    ids = [int(line.split()[1]) for line in take(session).splitlines()]
    assert ids == list(range(1, published + 1))


async def test_what_is_held_for_one_who_catches_up_is_not_given_to_a_revoked_subscription(
    hub: Hub,
) -> None:
    await publish(hub, "a 1", "b 2")
    await hub.registry.execute([Register("t", frozenset({"a", "b"}))])
    session = join(hub)
    record = hub.registry.lookup("t")
    assert record is not None
    session.adopt(record)
    await session.receive(b"ids on\nresume 2 a b\n")
    session.outbox.pause()
    session.outbox.hold()
    await publish(hub, "a 3", "b 4")
    assert session.outbox.holding
    await hub.registry.execute([RemoveTags("t", frozenset("b"))])
    assert not session.outbox.holding
    assert session.recovery is not None
    session.recovery.fell_behind(2)
    await session.recovery.catch_up()
    await publish(hub, "a 5", "b 6")
    assert [line.split()[1] for line in take(session).splitlines()] == [b"3", b"5"]


async def fall_behind(hub: Hub) -> tuple[CommandSession, int]:
    """A session that was withheld messages, and the newest id."""
    session = join(hub)
    await session.receive(b"ids on\nsubscribe a 0\nping\n")
    take(session)
    for n in range(40):
        await publish(hub, f"a {n} {'x' * 1_000}")
    assert session.outbox.paused
    assert hub.sequencer is not None
    return session, hub.sequencer.newest


@pytest.mark.parametrize(
    ("command", "answer"),
    [(b"ping", b"pong"), (b"last", b"last "), (b"list", b"list a"), (b"x", b"error ")],
)
async def test_the_reply_to_one_who_fell_behind_comes_behind_all_it_missed(
    command: bytes, answer: bytes
) -> None:
    async with hub_over(await open_history("memory://"), bytes=20_000, messages=200) as hub:
        session, newest = await fall_behind(hub)
        received = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.receive, command + b"\n")
            while answer not in received:
                await trio.testing.wait_all_tasks_blocked()
                received += take(session, 5_000)
        *messages, last = received.splitlines()
        assert last.startswith(answer)
        assert [int(line.split()[1]) for line in messages] == list(range(1, newest + 1))


async def test_one_who_falls_behind_on_its_way_to_another_replay_gets_all_of_both_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an engine, that way may take seconds."""
    async with hub_over(await open_history("memory://"), bytes=20_000, messages=200) as hub:
        await publish(hub, "b 1")
        session = join(hub)
        await session.receive(b"ids on\nsubscribe a 0\nping\n")
        assert take(session) == b"pong\n"
        assert hub.sequencer is not None
        reached = trio.Event()

        async def reach(since: Since) -> None:
            await reached.wait()

        monkeypatch.setattr(hub.sequencer, "reach", reach)
        received = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.receive, b"subscribe b 0\nping\n")
            await trio.testing.wait_all_tasks_blocked()
            for n in range(40):
                await publish(hub, f"a {n} {'x' * 1_000}")
            assert session.outbox.paused
            reached.set()
            while b"pong" not in received:
                await trio.testing.wait_all_tasks_blocked()
                received += take(session, 5_000)
        await publish(hub, "a 42", "b 43")
        received += take(session)
        ids = [int(line.split()[1]) for line in received.splitlines() if b"pong" not in line]
        assert sorted(ids) == list(range(1, 44))
        assert [n for n in ids if n > 1] == list(range(2, 44))


@pytest.mark.parametrize("published", [10, 1_000])
async def test_what_comes_while_one_resumes_is_held_for_it_as_far_as_that_is_little(
    monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    """And then nothing is read for it a second time."""
    async with hub_over(await open_history("memory://"), bytes=20_000, messages=2_000) as hub:
        await publish(hub, "a 1", "a 2")
        session, publisher = join(hub), join(hub)
        assert hub.sequencer is not None
        history, pages = hub.sequencer.history, 0
        read = history.read

        async def read_late(*args: Any, **options: Any) -> Page:
            nonlocal pages
            page = await read(*args, **options)
            pages += 1
            if pages == 1:
                await publisher.receive(b"publish a %s\n" % (b"x" * 20) * published + b"ping\n")
            return page

        monkeypatch.setattr(history, "read", read_late)
        received = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.receive, b"ids on\nsubscribe a 0\nping\n")
            while b"pong" not in received:
                await trio.testing.wait_all_tasks_blocked()
                received += take(session, 5_000)
        lines = received.splitlines()[:-1]
        assert [int(line.split()[1]) for line in lines] == list(range(1, published + 3))
        assert (pages > 1) == (published == 1_000)
        assert hub.broker.dropped["gone"] == 0


async def test_what_was_held_is_written_though_nothing_is_published_later(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(hub, "a 1")
    session = join(hub)
    assert hub.sequencer is not None
    history = hub.sequencer.history
    read = history.read

    async def read_late(*args: Any, **options: Any) -> Page:
        page = await read(*args, **options)
        await hub.store(frozenset("a"), b"2")
        return page

    written = []
    monkeypatch.setattr(history, "read", read_late)
    session.outbox.flush = lambda: written.append(take(session))
    await session.resume([frozenset("a")], Since(0), lambda _: None)
    assert b"".join(written) == b"publish a 1\npublish a 2\n"


async def test_what_one_who_fell_behind_stores_comes_to_it_before_the_answer() -> None:
    async with hub_over(await open_history("memory://"), bytes=20_000, messages=200) as hub:
        session, newest = await fall_behind(hub)
        received = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                session.receive, b"store a first\npublish a,, bad\nstore a second\nping\n"
            )
            while b"pong" not in received:
                await trio.testing.wait_all_tasks_blocked()
                received += take(session, 5_000)
        lines = [line[:40] for line in received.splitlines()][newest:]
        assert lines == [
            b"message %d a first" % (newest + 1),
            b"stored %d" % (newest + 1),
            b"error Empty tag",
            b"message %d a second" % (newest + 2),
            b"stored %d" % (newest + 2),
            b"pong",
        ]


async def test_one_who_fell_behind_may_publish_without_reading() -> None:
    async with hub_over(await open_history("memory://"), bytes=20_000, messages=200) as hub:
        session, newest = await fall_behind(hub)
        with trio.fail_after(5):
            for _ in range(20):
                await session.receive(b"publish b %b\n" % (b"y" * 100_000))
            await session.receive(b"store b once\n")
        await trio.testing.wait_all_tasks_blocked()
        assert session.recovery is not None
        assert session.recovery.behind
        assert session.recovery.owes
        assert hub.sequencer is not None
        assert hub.sequencer.newest == newest + 21


async def test_one_who_fell_behind_and_is_gone_leaves_nobody_waiting() -> None:
    async with hub_over(await open_history("memory://"), bytes=20_000, messages=200) as hub:
        session, _ = await fall_behind(hub)
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                with session.scope:
                    await session.receive(b"ping\n")
                await session.aclose()

            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            assert session.ended is None
            session.end(DISCONNECTED)
        assert hub.sessions.connected == 0


async def test_a_replay_stops_at_a_tag_that_the_token_lost(hub: Hub) -> None:
    await publish(hub, *[f"a {n} {'x' * 50_000}" for n in range(200)])
    await hub.registry.execute([Register("t", frozenset("a"))])
    session = join(hub)
    record = hub.registry.lookup("t")
    assert record is not None
    session.adopt(record)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.receive, b"ids on\nsubscribe a 0\nping\n")
        await trio.testing.wait_all_tasks_blocked()  # the outbox is as full as it gets
        list(session.token_changed(attrs.evolve(record, tags=frozenset("b"))))
        got = b""
        while not got.endswith(b"pong\n"):
            got += take(session)
            await trio.testing.wait_all_tasks_blocked()
    assert 0 < got.count(b"message ") < 200


async def test_all_or_none_are_subscribed_to(hub: Hub) -> None:
    await hub.registry.execute([Register("t", frozenset("a"))])
    session = join(hub)
    record = hub.registry.lookup("t")
    assert record is not None
    session.adopt(record)
    await session.receive(b"resume 0 a b\nlist\n")
    assert take(session) == b"error not granted by the token\nlist \n"


async def test_a_history_that_cannot_be_read_leaves_everything_as_it_was(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub.sequencer is not None

    async def fail(*args: Sequence[object], **more: object) -> int:
        raise HistoryUnavailable("gone")

    await publish(hub, "a 1")
    session = join(hub)
    await session.receive(b"subscribe b\n")
    with monkeypatch.context() as patch:
        patch.setattr(hub.sequencer.history, "last", fail)
        await session.receive(b"subscribe a -1\nlist\n")
    await publish(hub, "b 2")
    assert take(session) == b"error History is unavailable\nlist b\npublish b 2\n"
    assert session.ended is None


async def test_what_retention_takes_during_a_replay_is_a_gap_and_nothing_else() -> None:
    async with hub_over(await open_history("memory://"), bytes=40_000) as hub:
        assert hub.sequencer is not None
        history = hub.sequencer.history
        for n in range(1, 101):
            await publish(hub, f"a {n} {'x' * 20_000}")
        session = join(hub)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.receive, b"ids on\nsubscribe a 0\nping\n")
            await trio.testing.wait_all_tasks_blocked()  # the outbox is as full as it gets
            while (await history.trim(Policy(max_bytes=300_000), now=0)).more:
                pass
            kept = (await history.position()).first
            got = b""
            while not got.endswith(b"pong\n"):
                assert session.ended is None
                got += take(session, 30_000)
                await trio.testing.wait_all_tasks_blocked()
        lines = got.splitlines()[:-1]
        [told] = [n for n, line in enumerate(lines) if line.startswith(b"gap ")]
        assert lines.pop(told) == b"gap %b %d" % (epoch(hub), kept)
        ids = [int(line.split()[1]) for line in lines]
        assert ids[:told] == list(range(1, told + 1))  # it had begun before
        assert ids[told:] == list(range(kept, 101))


@pytest.mark.slow
async def test_ten_thousand_random_hand_overs(hub: Hub) -> None:
    for seed in range(1_000):
        await hand_over_at_random_moments(hub, seed)


# who is told


class Told(LineProtocol):
    """The line protocol, if it told what is brought because the peer is behind."""

    keeps_up = True

    def notice(self, notice: Reply) -> bytes:
        match notice:
            case Behind(counts):
                return b"behind %b\n" % b" ".join(
                    b"%b=%d" % (",".join(sorted(tags)).encode(), count) for tags, count in counts
                )
            case CaughtUp():
                return b"caught up\n"
            case _:
                return super().notice(notice)


def join_told(hub: Hub) -> CommandSession:
    session = CommandSession(hub, Told(hub.limits), transport="tcp")
    hub.sessions.attach(session)
    return session


async def test_who_falls_behind_is_told_what_comes_around_all_that_comes() -> None:
    async with hub_over(await open_history("memory://"), bytes=20_000, messages=50) as hub:
        session = join_told(hub)
        await session.receive(b"subscribe b\nsubscribe a\nsubscribe z\n")
        await publish(hub, *[f"{'a,b' if n % 3 else 'a'} {n}" for n in range(1, 121)])
        await publish(hub, "c 0", "b 121")
        await trio.testing.wait_all_tasks_blocked()
        found = b""
        while data := take(session):
            found += data
            await trio.testing.wait_all_tasks_blocked()
        await publish(hub, "a 122")
        found += take(session)
        lines = found.splitlines()
        assert [int(line.split()[2]) for line in lines if line[:1] == b"p"] == list(range(1, 123))
        assert lines[-1] == b"publish a 122"
        words = [place for place, line in enumerate(lines) if line[:1] != b"p"]
        # Whatever the stretches are: each says how many follow, up to where it has caught up.
        assert words
        for start, end in zip(words[::2], words[1::2], strict=True):
            assert lines[end] == b"caught up"
            counts = [field.split(b"=") for field in lines[start].split()[1:]]
            assert sum(int(count) for _, count in counts) == end - start - 1
            assert {name for name, _ in counts} <= {b"a", b"b"}


async def test_who_falls_behind_is_told_when_there_is_room_for_it() -> None:
    async with hub_over(await open_history("memory://"), bytes=4_000) as hub:
        session = join_told(hub)
        tags = [f"{n:02}{'x' * 250}" for n in range(30)]
        await session.receive("".join(f"subscribe {each}\n" for each in tags).encode())
        assert session.recovery is not None
        announce, room = session.recovery.announce, []

        def noting(notice: Behind | CaughtUp) -> None:
            room.append(session.outbox.has_room_to_replay)
            assert announce is not None
            announce(notice)

        session.recovery.announce = noting
        await publish(hub, *[f"{each} {'y' * 750}" for each in tags[:3]])
        await publish(hub, *[f"{each} {'y' * 750}" for each in tags[3:]])
        await trio.testing.wait_all_tasks_blocked()
        assert session.recovery.behind
        assert not room
        take(session)
        await trio.testing.wait_all_tasks_blocked()
        assert room[0]


async def test_who_falls_behind_without_being_told_loses_what_it_never_asked_for() -> None:
    async with hub_over(await open_history("memory://"), messages=50) as hub:
        session = join(hub)
        await session.receive(b"subscribe a\n")
        await publish(hub, *[f"a {n}" for n in range(120)])
        assert take(session).count(b"\n") < 120


@pytest.mark.parametrize("held", [True, False])
async def test_what_is_published_while_it_resumes_is_told_as_a_stretch_where_it_was_not_held(
    hub: Hub, held: bool
) -> None:
    assert hub.sequencer is not None
    await publish(hub, "a 1", "a 2")
    session = join_told(hub)
    read, interrupted = hub.sequencer.history.position, False

    async def position() -> object:
        # At the first moment after the place was found.
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            await publish(hub, "a 3", "b 4", "a 5")
            if not held:
                session.outbox.let_go()
        return await read()

    hub.sequencer.history.position = position  # type: ignore[method-assign, assignment]
    await session.receive(b"subscribe a 0\n")
    assert take(session).splitlines() == [
        b"publish a 1",
        b"publish a 2",
        b"caught up",
        *([] if held else [b"behind a=2"]),
        b"publish a 3",
        b"publish a 5",
        *([] if held else [b"caught up"]),
    ]


async def test_a_literal_place_beyond_the_newest_is_where_nothing_is_yet(hub: Hub) -> None:
    await publish(hub, "a 1", "a 2")
    session = join(hub)
    for after, expected in ((99, b""), (1, b"publish a 2\n")):
        replies: list[Reply] = []
        since = Since(after=after, literal=True)
        await session.fetch(frozenset("a"), since, None, replies.append)
        assert take(session) == expected
    assert Since(after=99, literal=True).start("e", 7) == 7
    assert Since(after=99, epoch="other", literal=True).start("e", 7) == 0
    assert Since(after=99).start("e", 7) == 0


async def test_a_form_that_raises_in_a_replay_loses_what_it_can_not_write(hub: Hub) -> None:
    for message in ("a 1", "a bad", "a 3"):
        await publish(hub, message)

    class Faulty(type(PLAIN)):  # type: ignore[misc]
        def join(self, entries: Sequence[Entry], **options: object) -> tuple[bytes, int]:
            if any(b"bad" in wire for _, wire, _ in entries):
                raise ZeroDivisionError
            joined: tuple[bytes, int] = super().join(entries, **options)
            return joined

    session = join(hub)
    session.outbox.form = Faulty()
    await session.receive(b"subscribe a 0\nping\n")
    assert take(session) == b"publish a 1\npublish a 3\npong\n"
    assert hub.broker.statistics().dropped == {"error": 1}
    assert session.ended is None


async def test_messages_that_are_one_publication_on_a_page_are_shown_each_with_its_time(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_pages, "_ALONE", 1e9)  # to be read for several at once
    assert hub.sequencer is not None
    history = hub.sequencer.history
    times = [100.0, 100.0, 205.0, 307.0]
    for number, time in enumerate(times, 1):
        await history.append([Publication.of_runs([(b"/a", b"publish /a %d\n" % number, 1)], time)])
    hub.sequencer.delivery.newest = len(times)
    forms = TopicForm(lambda: 999), PLAIN
    found = []
    with history.expecting(Selection([frozenset({"/b"})]), 0, len(times)):
        for form in forms:
            session = join(hub)
            session.outbox.form = form
            await session.receive(b"subscribe /a 0\nping\n")
            found.append(take(session))
    shown, plain = found
    assert [line.split(b",")[-1] for line in shown.split(b"\n") if line.count(b",") == 5] == [
        b"%d" % time for time in times
    ]
    assert plain == b"".join(b"publish /a %d\n" % n for n in range(1, 5)) + b"pong\n"


async def test_a_catch_up_that_raises_ends_its_session_and_no_other(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(recovery: Recovery) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Recovery, "catch_up", fail)
    await publish(hub, "a 1")
    session, other = join(hub), join(hub)
    session._fell_behind(0)
    await other.receive(b"subscribe a 0\nping\n")
    assert session.ended is INTERNAL_ERROR
    assert take(other) == b"publish a 1\npong\n"
    assert hub.broker.statistics().failures == {"task": 1}


async def test_all_who_wait_hear_that_a_session_has_caught_up(hub: Hub) -> None:
    session = join(hub)
    assert session.recovery is not None
    session.outbox.pause()
    session.recovery.fell_behind(0)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(session.recovery.caught_up)
                await trio.testing.wait_all_tasks_blocked()
            await session.recovery.catch_up()


# in turns


class NeverEnough(Turns):
    """Turns that are always over.

    Attributes:
        waits: whom they were charged to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Account] = []
        self.meanwhile: Callable[[], None] = lambda: None

    @property
    def over(self) -> bool:
        return True

    async def wait(self, account: Account, *, late: bool = False) -> None:
        self.waits.append(account)
        await trio.lowlevel.checkpoint()
        self.meanwhile()


async def test_a_replay_is_done_in_turns_that_its_peer_is_charged_for(hub: Hub) -> None:
    await publish(hub, *[f"{'a' if n % 2 else 'a,b'} {n}" for n in range(10_000)])
    hub.turns = turns = NeverEnough()
    live, session = join(hub), join(hub)
    await live.receive(b"subscribe c\n")
    queued, heard = [0], [0]

    def meanwhile() -> None:
        queued.append(session.outbox.queued)
        heard.append(live.outbox.queued)
        if len(queued) == 5:
            hub.publish(frozenset("c"), b"live")

    turns.meanwhile = meanwhile
    await session.receive(b"subscribe a 0\nping\n")
    lines = take(session).splitlines()[:-1]
    assert [int(line.split()[2]) for line in lines] == [*range(10_000)]
    assert turns.waits.count(session.account) >= 39
    assert max(later - earlier for earlier, later in pairwise(queued)) <= 256
    # Delivered live in the midst of it.
    assert (heard[4], heard[-1]) == (0, 1)


async def test_one_page_is_replayed_at_a_time(hub: Hub) -> None:
    assert hub.sequencer is not None
    hub.turns = turns = NeverEnough()
    history = hub.sequencer.history
    await publish(hub, *[f"a {n}" for n in range(1_000)])
    read = history.read
    reading = 0
    most: list[int] = []

    async def counted(*arguments: Any, **options: Any) -> Page:
        nonlocal reading
        reading += 1
        most.append(reading)
        page = await read(*arguments, **options)
        reading -= 1
        return page

    history.read = counted  # type: ignore[method-assign]
    sessions = [join(hub) for _ in range(5)]
    async with trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(session.receive, b"subscribe a 0\nping\n")
    assert most == [1] * len(most)
    assert len(most) >= 5
    assert len(turns.waits) >= 5
    assert all(take(session).count(b"publish a ") == 1_000 for session in sessions)


async def test_a_replay_of_many_messages_lets_those_of_few_go_first(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub.sequencer is not None
    await publish(hub, *[f"a {n}" for n in range(30_000)])
    orders: list[tuple[int, ...]] = []
    order = hub.sequencer.pages.order

    def note(replay: Replay) -> tuple[int, ...]:
        orders.append(order(replay))
        return orders[-1]

    monkeypatch.setattr(hub.sequencer.pages, "order", note)
    for _ in range(2):  # the second one begins anew
        orders.clear()
        session = join(hub)
        await session.receive(b"subscribe a 0\n")
        assert take(session).count(b"\n") == 30_000
        assert [first for first, *_ in orders] == [0, *[1] * (len(orders) - 1)]
        assert len(orders) > 1


async def test_a_tag_lost_while_a_page_is_unpacked_is_replayed_no_further(hub: Hub) -> None:
    hub.turns = turns = NeverEnough()
    await publish(hub, *[f"{'ab'[n % 2]} {n}" for n in range(2_000)])
    await hub.registry.execute([Register("t", frozenset("ab"))])
    session = join(hub)
    record = hub.registry.lookup("t")
    assert record is not None
    session.adopt(record)
    before = 0

    def lose() -> None:
        nonlocal before
        queued = session.outbox.queued
        if queued and not before:
            before = queued
            list(session.token_changed(attrs.evolve(record, tags=frozenset("b"))))

    turns.meanwhile = lose
    await session.receive(b"resume 0 a b\nping\n")
    found = [line.split() for line in take(session).splitlines()[:-1]]
    assert 0 < before < 2_000
    assert [int(number) for _, _, number in found[:before]] == [*range(before)]
    rest = [(tag, int(number)) for _, tag, number in found[before:]]
    assert rest == [(b"b", number) for number in range(before, 2_000) if number % 2]
