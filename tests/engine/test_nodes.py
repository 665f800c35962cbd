"""Nodes of one realm: what is published at one is stored and delivered at all, alike."""

import secrets
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from mist.auth.opening import open_registry
from mist.bus.inside import Bus
from mist.commands import Since
from mist.engine.checkpointing import Checkpointer
from mist.engine.contract import EngineUnavailable
from mist.engine.entries import ForgottenKeys, StagedBatch, encode
from mist.engine.node import open_node
from mist.errors import HistoryUnavailable, StartupError
from mist.history import Bulk, Key, Mark
from mist.history.arrivals import Arrival
from mist.history.commits import make_blocks
from mist.history.layout import Row
from mist.history.opening import open_history
from mist.message import Envelope
from mist.sessions.slices import Slice, plain_slices
from tests.engine.nodes import Server, Start, same
from tests.history.messages import publication, replay, run
from tests.sessions.storing import bulk, join, numbers, take
from tests.waiting import until

A = frozenset("a")


async def test_what_is_published_at_one_is_delivered_at_all_with_the_same_ids(
    start: Start,
) -> None:
    one, two = await start(), await start()
    subscribers = [join(each.hub, "a") for each in (one, two)]
    for subscriber in subscribers:
        await subscriber.receive(b"ids on\n")
    assert await one.hub.store(A, b"1") == 1
    assert await two.hub.store(A, b"2") == 2
    assert await one.hub.store(frozenset("b"), b"3") == 3
    assert await two.hub.store_all([(A, b"4"), (frozenset("ab"), b"two\nlines")]) == 4
    await same(one, two)
    got = [take(subscriber) for subscriber in subscribers]
    assert got[0] == got[1] == b"message 1 a 1\nmessage 2 a 2\nmessage 4 a 4\n"
    assert [data for _, _, data in await same(one, two)] == [b"1", b"2", b"3", b"4", b"two\nlines"]


async def test_a_node_counts_what_is_published_at_it_apart_from_what_others_publish(
    start: Start,
) -> None:
    one, two = await start(), await start()
    subscriber = join(two.hub, "a")
    publisher = join(one.hub)
    await publisher.receive(b"publish a 1\npublish b 2\npublish a* 3\n")
    await one.hub.store_all([(A, b"4"), (frozenset("b"), b"5")])
    await one.sequencer.commit(bulk(numbers("a", 1), numbers("b", 1)), Mark("", "w", 1))
    await same(one, two)
    ours, theirs = [each.hub.broker.statistics() for each in (one, two)]
    assert (ours.published, ours.published_by_peers, ours.relayed) == (6, 2, 0)
    assert (ours.rejected, ours.unmatched) == (1, 6)
    assert (theirs.published, theirs.published_by_peers, theirs.relayed) == (0, 0, 6)
    assert (theirs.rejected, theirs.unmatched, theirs.matched) == (0, 0, 3)
    assert len(take(subscriber).splitlines()) == 3


async def test_a_block_that_nobody_asks_for_is_counted_and_not_taken_apart(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await start(), await start()
    taken = []

    def count(row: Row) -> list[Slice] | None:
        taken.append(row.head.messages)
        return plain_slices(row)

    monkeypatch.setattr("mist.sessions.delivery.plain_slices", count)
    early = join(two.hub, "a,b")
    await one.hub.store_all([(A, b"1"), (frozenset("c"), b"2")])
    await same(one, two)
    assert two.hub.sequencer is two.sequencer
    assert (two.hub.broker.statistics().relayed, taken, take(early)) == (2, [], b"")
    late = join(two.hub, "c")
    await one.hub.store_all([(frozenset("ab"), b"3"), (frozenset("c"), b"4")])
    await same(one, two)
    assert (two.hub.broker.statistics().relayed, taken) == (4, [2])
    assert (take(early), take(late)) == (b"publish a,b 3\n", b"publish c 4\n")
    await early.receive(b"unsubscribe a,b\n")
    await one.hub.store(frozenset("ab"), b"5")
    await same(one, two)
    assert (two.hub.broker.statistics().relayed, taken) == (5, [2])
    # What was passed over is in the history, for whoever comes back.
    await early.receive(b"subscribe a since:0\n")
    await until(lambda: early.outbox.queued == 3)


async def test_many_publishers_at_many_nodes_come_in_one_order(start: Start) -> None:
    servers = [await start() for _ in range(3)]
    subscribers = [join(each.hub, "a") for each in servers]
    for subscriber in subscribers:
        await subscriber.receive(b"ids on\n")

    async def publish(server: Server, name: int) -> None:
        publisher = join(server.hub)
        for n in range(40):
            await publisher.receive(b"publish a,t%d %d.%d\n" % (n % 3, name, n))
        await publisher.receive(b"ping\n")

    async with trio.open_nursery() as publishers:
        for name in range(6):
            publishers.start_soon(publish, servers[name % 3], name)
    stored = await same(*servers)
    got = [take(subscriber).splitlines() for subscriber in subscribers]
    assert got[0] == got[1] == got[2]
    assert [int(line.split(b" ")[1]) for line in got[0]] == list(range(1, 241))
    for name in range(6):
        mine = [data for _, _, data in stored if data.startswith(b"%d." % name)]
        assert mine == [b"%d.%d" % (name, n) for n in range(40)]


async def test_all_of_a_message_is_the_same_at_all_nodes(start: Start) -> None:
    one, two = await start(), await start()
    meta = {"h": b"\0\xff"}
    await one.hub.store_all([(A, b"x")], "tok", envelopes=[Envelope(meta=meta)])
    await same(one, two)
    (message,) = await replay(two.node.history)
    assert (message.publisher, message.meta, message.tags) == ("tok", meta, A)
    assert not await two.node.history.verify()


async def test_messages_of_channels_have_the_same_numbers(start: Start) -> None:
    one, two = await start(), await start()
    for n in range(6):
        await (one, two)[n % 2].hub.store_all([(frozenset({"/c"}), b"x")] * (n + 1))
    await same(one, two)
    for server in (one, two):
        positions = await server.node.history.channels(["/c"])
        assert positions["/c"].last == 21
        assert not await server.node.history.verify()


async def test_a_reader_goes_on_where_it_was_though_a_node_has_yet_to_deliver_what_it_has(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await start(), await start()
    await two.hub.store(A, b"1")
    await same(one, two)
    go_on, deliver = trio.Event(), two.sequencer.delivery.deliver_rows

    async def deliver_late(rows: Sequence[Row]) -> None:
        await go_on.wait()
        await deliver(rows)

    monkeypatch.setattr(two.sequencer.delivery, "deliver_rows", deliver_late)
    for data in (b"2", b"3"):
        await one.hub.store(A, data)
    await until(lambda: two.node.mirror.newest >= 2)
    assert two.sequencer.newest == 1
    session, resumed = join(two.hub), trio.Event()

    async def resume() -> None:
        since = Since(after=2, epoch=two.sequencer.epoch)
        await session.resume([A], since, lambda answer: found.append(answer.recovered))
        resumed.set()

    found: list[bool] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(resume)
        await trio.testing.wait_all_tasks_blocked(0.01)
        go_on.set()
        await resumed.wait()
    await same(one, two)
    await one.hub.store(A, b"4")
    await same(one, two)
    assert found == [True]
    assert take(session) == b"publish a 3\npublish a 4\n"


async def test_a_reader_of_a_channel_goes_on_where_it_was_at_a_node_that_is_behind(
    start: Start,
) -> None:
    one, two = await start(), await start()
    await two.hub.store(frozenset({"/c"}), b"1")
    await same(one, two)
    two.engine.held = trio.Event()  # while it isn't set, this node hears nothing
    for data in (b"2", b"3"):
        await one.hub.store(frozenset({"/c"}), data)
    found: list[tuple[int, object]] = []

    async def read() -> None:
        async with Bus(two.hub).subscribe("/c", last_id=3) as messages:
            async for message in messages:
                found.append((message.message_id, message.data))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked(0.01)
        two.engine.held.set()
        await same(one, two)
        await one.hub.store(frozenset({"/c"}), b"4")
        await until(lambda: bool(found))
        nursery.cancel_scope.cancel()
    assert found == [(4, "4")]


async def test_a_reader_of_a_channel_is_refused_where_it_is_not_known_what_there_is(
    start: Start,
) -> None:
    one, two = await start(), await start()
    await one.hub.store(frozenset({"/c"}), b"1")
    await same(one, two)
    two.engine.down = True
    assert await Bus(two.hub).backlog("/c", 0)
    with pytest.raises(HistoryUnavailable):
        await Bus(two.hub).backlog("/c", 2)


# a log that does not go on where the mirror ends


async def test_what_is_read_wrongly_once_costs_a_reconnect_and_nothing_of_the_mirror(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await start(), await start()
    subscriber = join(two.hub, "a")
    await one.hub.store(A, b"1")
    await same(one, two)
    two.engine.skew = 1
    await one.hub.store(A, b"2")
    await same(one, two)
    assert [each.data for each in await replay(two.node.history)] == [b"1", b"2"]
    assert take(subscriber) == b"publish a 1\n"
    assert subscriber.ended is not None
    assert "begins anew" not in caplog.text


async def test_a_mirror_that_does_not_fit_begins_anew(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await start(), await start()
    await one.hub.store(A, b"1")
    await same(one, two)
    two.engine.held = trio.Event()
    mirror = two.node.mirror
    # As nothing should do: it takes the place of what the log has there.
    await mirror.apply([Arrival(mirror.offset + 1, mirror.newest + 1, 2, void=5)])
    await one.hub.store(A, b"2")
    await one.hub.store(A, b"3")
    two.engine.held.set()
    await same(one, two)
    assert [each.data for each in await replay(two.node.history)] == [b"1", b"2", b"3"]
    assert "does not fit the engine's log" in caplog.text
    assert await two.hub.store(A, b"4") == 4


# a reply that is lost, an engine that is not there


async def test_what_was_appended_is_there_once_though_its_reply_was_lost(start: Start) -> None:
    one, two = await start(), await start()
    subscriber = join(two.hub, "a")
    one.engine.lose_replies = 3
    assert await one.hub.store(A, b"1") == 1
    one.engine.lose_requests = 2
    assert await one.hub.store(A, b"2") == 2
    await same(one, two)
    assert take(subscriber) == b"publish a 1\npublish a 2\n"
    assert not one.sequencer.failing


async def test_what_is_back_before_its_reply_is_acknowledged(start: Start) -> None:
    one = await start()
    one.engine.lose_replies = 10_000
    with trio.fail_after(4):  # less than its timeout
        assert await one.hub.store(A, b"1") == 1


async def test_without_the_engine_publishers_are_refused_and_others_stay(start: Start) -> None:
    one, two = await start(timeout=0.05), await start()
    session = join(one.hub, "a")
    await session.receive(b"store a 1\nping\n")
    one.engine.down = True
    await session.receive(b"store a 2\npublish a 3\nping\n")
    assert take(session) == (
        b"publish a 1\nstored 1\npong\n" + b"error History is unavailable\n" * 2 + b"pong\n"
    )
    assert one.sequencer.failing
    await until(lambda: not one.sequencer.ready)
    assert await two.hub.store(A, b"of another") == 2
    one.engine.down = False
    await session.receive(b"store a 4\nping\n")
    await same(one, two)
    assert take(session) == b"publish a of another\npublish a 4\nstored 3\npong\n"
    assert one.sequencer.ready
    assert not one.sequencer.failing


async def test_the_wait_for_an_engine_that_is_frozen_counts_from_when_it_was_asked(
    start: Start,
) -> None:
    one = await start(timeout=0.1)
    one.engine.stalls = 0.1
    with pytest.raises(HistoryUnavailable):
        await one.hub.store(A, b"1")
    assert one.engine.appends == 1


async def test_what_waits_behind_a_group_is_refused_with_it_once_the_time_is_over(
    start: Start,
) -> None:
    one = await start(timeout=0.1)
    session = join(one.hub)
    one.engine.stalls = 0.1
    await session.receive(b"store a 1\n")
    await until(lambda: one.engine.appends == 1)
    await session.receive(b"store a 2\nstore a 3\nping\n")
    assert take(session) == b"error History is unavailable\n" * 3 + b"pong\n"
    assert one.engine.appends == 1
    # From now on each has one attempt.
    await session.receive(b"store a 4\nping\n")
    assert one.engine.appends == 2
    one.engine.stalls = 0.0
    assert await one.hub.store(A, b"5") == 1


async def test_an_attempt_is_given_up_once_the_time_is_over(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await start(timeout=0.1)
    attempts = []

    async def append(*arguments: object) -> None:
        attempts.append(arguments)
        if len(attempts) > 1:
            await trio.sleep_forever()
        raise EngineUnavailable

    with monkeypatch.context() as patched, trio.fail_after(10):
        patched.setattr(one.engine, "append", append)
        with pytest.raises(HistoryUnavailable):
            await one.hub.store(A, b"1")
    assert len(attempts) == 2
    assert await one.hub.store(A, b"2") == 1


async def test_a_node_that_was_forgotten_goes_by_the_name_under_which_it_is_known_again(
    start: Start,
) -> None:
    one = await start()
    before = one.node.name
    one.engine.strangers = 1
    with pytest.raises(HistoryUnavailable):
        await one.hub.store(A, b"1")
    assert await one.hub.store(A, b"2") == 1
    (record,) = await one.engine.read(0)
    assert record.node == one.node.name != before


async def test_a_number_is_used_once_under_the_name_of_a_node_that_entered_twice(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = await open_registry("memory://")
    may_go_on = trio.Event()

    async def reach(number: int) -> None:
        if number == sys.maxsize:  # the follower has entered anew
            await may_go_on.wait()

    monkeypatch.setattr(registry, "reach", reach)
    one, two = await start(registry=registry), await start()
    before = one.node.name
    one.engine.skew = 1
    assert await two.hub.store(A, b"1") == 1
    await until(lambda: one.node.name != before)
    one.engine.strangers = 1
    with pytest.raises(HistoryUnavailable):
        await one.hub.store(A, b"2")
    session = join(one.hub)
    await session.receive(b"store a 3\n")
    await until(lambda: one.engine.appends == 2)
    may_go_on.set()
    await session.receive(b"store a 4\nping\n")
    assert [data for _, _, data in await same(one, two)] == [b"1", b"3", b"4"]
    assert take(session) == b"error History is unavailable\nstored 3\npong\n"


async def test_a_publisher_hears_in_its_order_also_where_one_is_refused(start: Start) -> None:
    one = await start(timeout=0.05)
    session = join(one.hub)
    one.engine.held = trio.Event()  # what is appended is not back
    await session.receive(b"store a 1\n")
    await trio.testing.wait_all_tasks_blocked(0.02)
    one.engine.down = True
    await session.receive(b"store a 2\nping\n")
    assert take(session) == b"error History is unavailable\n" * 2 + b"pong\n"
    one.engine.down = False
    one.engine.held.set()
    await session.receive(b"store a 3\nping\n")
    assert take(session) == b"stored 2\npong\n"  # the first was stored, and is delivered
    assert [data for _, _, data in await same(one)] == [b"1", b"3"]


def has_appended(server: Server, records: int) -> bool:
    return server.engine.appends >= records


@pytest.mark.parametrize(
    ("gathering", "little", "appended", "records"),
    [(60.0, 1_000, 1, 2), (0.001, 1_000, 4, 4), (60.0, 10, 4, 4)],
    ids=["soon", "late", "much in flight"],
)
async def test_what_comes_while_a_record_is_on_its_way_is_gathered_for_the_next_one(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    gathering: float,
    little: int,
    appended: int,
    records: int,
) -> None:
    monkeypatch.setattr("mist.sessions.node_sequencer._GATHERING", gathering)
    monkeypatch.setattr("mist.sessions.node_sequencer._LITTLE", little)
    one = await start()
    publisher = join(one.hub)
    one.engine.held = trio.Event()  # what is appended is not back
    for n in range(4):
        await publisher.receive(b"publish a %d\n" % n)
        await until(partial(has_appended, one, min(n + 1, appended)))
        await trio.testing.wait_all_tasks_blocked(0.02)
    assert one.engine.appends == appended
    one.engine.held.set()
    await publisher.receive(b"ping\n")
    assert [data for _, _, data in await same(one)] == [b"0", b"1", b"2", b"3"]
    assert one.engine.appends == records


# idempotency


async def test_one_key_at_three_nodes_at_once_is_stored_once(start: Start) -> None:
    servers = [await start() for _ in range(3)]
    subscribers = [join(each.hub, "a") for each in servers]
    for server in servers:
        server.engine.held = trio.Event()  # so that none of them knows of the others
    key = Key(b"k" * 32, b"d" * 32)
    outcomes: list[int | None] = []

    async def store(server: Server) -> None:
        outcomes.append(
            await server.sequencer.keys_in_flight.once(
                key, lambda: server.hub.store_all([(A, b"1"), (A, b"2")], key=key)
            )
        )

    async with trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(store, server)
        await trio.testing.wait_all_tasks_blocked(0.02)
        for server in servers:
            server.engine.held.set()
    assert outcomes == [1, 1, 1]
    assert await servers[0].hub.store(A, b"3") == 7  # ids of what was left out are not given again
    assert [(id_, data) for id_, _, data in await same(*servers)] == [
        (1, b"1"),
        (2, b"2"),
        (7, b"3"),
    ]
    for server, subscriber in zip(servers, subscribers, strict=True):
        assert take(subscriber) == b"publish a 1\npublish a 2\npublish a 3\n"
        assert not await server.node.history.verify()


async def test_one_key_for_two_things_at_once_is_a_conflict_for_one(start: Start) -> None:
    one, two = await start(), await start()
    for server in (one, two):
        server.engine.held = trio.Event()
    outcomes: dict[bytes, int | None] = {}

    async def store(server: Server, data: bytes) -> None:
        key = Key(b"k" * 32, data * 32)
        outcomes[data] = await server.sequencer.keys_in_flight.once(
            key, lambda: server.hub.store_all([(A, data)], key=key)
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store, one, b"1")
        await trio.testing.wait_all_tasks_blocked(0.02)
        nursery.start_soon(store, two, b"2")
        await trio.testing.wait_all_tasks_blocked(0.02)
        one.engine.held.set()
        two.engine.held.set()
    assert outcomes == {b"1": 1, b"2": None}
    assert [data for _, _, data in await same(one, two)] == [b"1"]


async def test_keys_are_forgotten_at_all_nodes_at_the_same_place(start: Start) -> None:
    one, two = await start(), await start()
    keys = [Key(bytes([n]) * 32, b"d" * 32) for n in range(5)]
    for key in keys:
        await one.hub.store_all([(A, b"x")], key=key)
    assert not await one.sequencer.forget_keys(0.0, 10, 10)
    assert one.engine.appends == 5  # there was nothing to forget
    await one.sequencer.forget_keys(0.0, 2, 10)
    await one.hub.store(A, b"behind")
    await same(one, two)
    for server in (one, two):
        known = [await server.node.history.recall(key.name) for key in keys]
        assert [each is None for each in known] == [True, True, True, False, False]


# a writer's batches


async def test_a_batch_is_committed_once_at_all_nodes(start: Start) -> None:
    one, two = await start(), await start()
    subscribers = [join(each.hub, "a") for each in (one, two)]
    publications = [numbers("a", 3_000), numbers("a", 2, framable=False), numbers("b", 4_000)]
    mark = Mark("", "w", 1)
    commit, fresh = await one.sequencer.commit(bulk(*publications), mark)
    assert (commit.first, commit.last, commit.count, fresh) == (1, 7_002, 7_002, True)
    await same(one, two)
    assert await two.sequencer.commit(bulk(*publications), mark) == (commit, False)
    stored = await same(one, two)
    assert len(stored) == 7_002
    for subscriber in subscribers:
        lines: list[bytes] = []
        while chunk := take(subscriber):
            lines += chunk.splitlines()
        assert lines == [b"publish a %d" % n for n in range(3_000)]


async def test_a_batch_committed_at_two_nodes_at_once_is_stored_once(start: Start) -> None:
    one, two = await start(), await start()
    for server in (one, two):
        server.engine.held = trio.Event()
    outcomes = []

    async def commit(server: Server) -> None:
        outcomes.append(await server.sequencer.commit(bulk(numbers("a", 300)), Mark("", "w", 1)))

    async with trio.open_nursery() as nursery:
        for server in (one, two):
            nursery.start_soon(commit, server)
        await trio.testing.wait_all_tasks_blocked(0.05)
        for server in (one, two):
            server.engine.held.set()
    assert sorted((done.first, fresh) for done, fresh in outcomes) == [(1, False), (1, True)]
    assert len(await same(one, two)) == 300


async def test_a_batch_that_is_not_what_it_says_stops_no_node(start: Start) -> None:
    one, two = await start(), await start()
    rows = make_blocks([numbers("a", 3)])
    with pytest.raises(ValueError, match="another number"):
        await one.sequencer.commit(Bulk(lambda: iter(rows), 4), Mark("", "w", 1))
    broken = attrs.evolve(rows[0], body=b"?")
    with pytest.raises(ValueError, match=r"."):
        await one.sequencer.commit(Bulk(lambda: iter([broken]), 3), Mark("", "w", 1))
    assert await two.hub.store(A, b"1") == 1
    assert len(await same(one, two)) == 1


async def test_a_batch_whose_parts_are_not_there_holds_the_node_up_and_says_so(
    start: Start,
) -> None:
    one = await start()
    entry = encode(StagedBatch("", "w", 1, "nowhere", 2))
    await one.engine.enter("by hand")
    await one.engine.append("by hand", 1, entry, 3, one.sequencer.epoch)
    await until(lambda: not one.sequencer.ready)
    assert one.sequencer.newest == 0


async def test_a_record_of_a_later_version_holds_the_node_up_and_says_so(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    one = await start()
    await one.engine.enter("by hand")
    entry = b"\x92\xa5later\x01"  # a list of its kind and one field
    await one.engine.append("by hand", 1, entry, 0, one.sequencer.epoch)
    await until(lambda: not one.sequencer.ready)
    (found,) = [each for each in caplog.records if each.msg == "the engine can't be followed"]
    assert found.reason.startswith("a record is of a later version of mist, or damaged: ")  # type: ignore[attr-defined]


async def test_a_batch_that_is_trimmed_before_it_is_applied_holds_the_node_up_no_longer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await start(), await start()
    reading = trio.Event()

    async def away(batch: str, part: int) -> bytes | None:
        reading.set()
        raise EngineUnavailable

    monkeypatch.setattr(two.engine, "staged", away)
    await one.sequencer.commit(bulk(numbers("a", 3)), Mark("", "w", 1))
    await reading.wait()
    # Others go on: the log is trimmed behind two checkpoints, and the batch's parts with it.
    for size in (1, 100_000):
        await one.hub.store(A, secrets.token_bytes(size).hex().encode())
        assert await Checkpointer(one.node, least=1).step()
    monkeypatch.undo()
    with trio.fail_after(10):
        assert len(await same(one, two)) == 5
    assert two.node.overtaken == 1


async def test_what_was_staged_of_a_batch_that_failed_is_discarded(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await start()
    staged: set[str] = set()

    async def stage(batch: str, part: int, body: bytes) -> None:
        staged.add(batch)
        if part:
            raise EngineUnavailable

    async def discard(batch: str) -> None:
        staged.discard(batch)

    monkeypatch.setattr("mist.sessions.pieces._parts_of", lambda _: iter([b"1", b"2"]))
    monkeypatch.setattr(one.engine, "stage", stage)
    monkeypatch.setattr(one.engine, "discard", discard)
    with pytest.raises(HistoryUnavailable):
        await one.sequencer.commit(bulk(numbers("a", 3)), Mark("", "w", 1))
    await until(lambda: not staged)


# mirrors


async def test_a_mirror_goes_on_where_it_was(start: Start, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mirror.db"
    one, two = await start(), await start(url)
    await one.hub.store(A, b"1")
    await same(one, two)
    await two.stop()
    await one.hub.store(A, b"2")
    two = await start(url)
    assert two.node.mirror.offset >= 1
    assert [data for _, _, data in await same(one, two)] == [b"1", b"2"]


async def test_a_node_that_comes_late_gets_all(start: Start) -> None:
    one = await start()
    await one.hub.store_all([(A, b"x")] * 5_000)
    await one.sequencer.commit(bulk(numbers("b", 3_000)), Mark("", "w", 1))
    two = await start()
    assert len(await same(one, two)) == 8_000
    await until(lambda: two.sequencer.ready)


async def test_a_node_that_comes_late_is_ready_while_others_publish_all_the_time(
    start: Start,
) -> None:
    one = await start()
    await one.hub.store_all([(A, b"x")] * 10)
    two = await start(busy=True)
    await until(lambda: two.sequencer.ready)
    assert len(await same(one, two)) == 10


async def test_a_mirror_may_be_deleted(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "mirror.db"
    one, two = await start(), await start(f"sqlite:///{path}")
    for n in range(3):
        await two.hub.store(A, b"%d" % n)
    await two.stop()
    for each in tmp_path.glob("mirror.db*"):
        each.unlink()
    two = await start(f"sqlite:///{path}")
    assert len(await same(one, two)) == 3


async def test_a_mirror_of_another_log_begins_anew(start: Start, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mirror.db"
    async with await open_node("memory://", url) as node:
        assert node.mirror.offset == 0
        await node.engine.append(
            node.name, 1, encode(ForgottenKeys(0.0, 1, 1)), 0, node.standing.epoch
        )
        await node.mirror.apply([Arrival(1, 1, 1)])
    one = await start(url)
    assert one.node.mirror.offset <= 1  # at which the log says that it had others before
    assert await replay(one.node.history) == []
    assert await one.hub.store(A, b"1") == 1
    assert (await one.node.history.position()).epoch == one.node.standing.epoch


async def test_a_history_with_messages_of_its_own_is_no_mirror(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    async with await open_history(url) as history:
        await history.append([publication(run("a", "1"))])
    with pytest.raises(StartupError, match="messages of its own"):
        await open_node("memory://", url)
    async with await open_history(url) as history:
        assert (await history.position()).newest == 1
