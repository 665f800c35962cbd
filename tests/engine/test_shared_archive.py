"""Nodes that share an archive: who seals it, what those may do that no longer do, and what if."""

import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import attrs
import msgspec
import pytest
import trio

from mist.archive import Archive, ArchiveError
from mist.archive.claiming import claim
from mist.archive.locking import lock_alone
from mist.archive.open_segment import OpenSegment, SealPolicy
from mist.archive.opening import LOCK_TIMEOUT, open_shared_sealer
from mist.archive.segments import read_segment
from mist.archive.sharing import SharedSealer
from mist.archive.tenure import LEASE, Superseded
from mist.engine.eraser import Eraser
from mist.engine.node import open_node
from mist.history import Mark, Policy
from mist.history.erasure import Erasure
from tests.engine.nodes import Server, Start, same
from tests.history.messages import one as message
from tests.sessions.storing import bulk
from tests.waiting import until

SECRET = frozenset({"secret"})


@pytest.fixture
def realm() -> str:
    """The members' engine does not matter here: what counts is checked where it is written."""
    return f"memory://{secrets.token_hex(4)}"


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.create(tmp_path / "archive", lock_timeout=LOCK_TIMEOUT)


@attrs.define(eq=False)
class Sealing:
    """A node that shares the archive."""

    server: Server
    sealer: SharedSealer
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def run(self) -> None:
        with self.scope:
            await self.sealer.run()

    async def wait(self) -> None:
        """Until it seals."""
        await until(lambda: self.sealer.sealing)

    async def lose_lease(self, seconds: float) -> None:
        """As where it was stopped, and another has taken the lease, for so many seconds."""
        members = self.server.engine.members
        await members.give_up(LEASE, self.server.node.name)
        assert await members.take(LEASE, "another", seconds) is not None


Share = Callable[[Server], Awaitable[Sealing]]


@pytest.fixture
async def share(archive: Archive, nursery: trio.Nursery) -> AsyncIterator[Share]:
    """Has a node share the archive; it seals at once what is published."""
    async with AsyncExitStack() as stack:

        async def share(server: Server) -> Sealing:
            sealer = await open_shared_sealer(
                archive,
                server.node,
                SealPolicy(seconds=0.05),
                give_ids=server.sequencer.give_ids,
                ask=trio.lowlevel.checkpoint,
            )
            stack.push_async_callback(sealer.aclose)
            sealing = Sealing(server, sealer)
            nursery.start_soon(sealing.run)
            return sealing

        yield share
        nursery.cancel_scope.cancel()


def rows(archive: Archive) -> list[tuple[int, bytes]]:
    table = archive.messages
    return [
        (row["id"], row["data"])
        for segment in table.current().segments
        for row in read_segment(table, segment, ["id", "data"]).to_pylist()
    ]


def unlisted(archive: Archive) -> set[str]:
    listed = {each.file for each in archive.messages.current().segments}
    lying = {str(path.relative_to(archive.folder)) for path in archive.folder.glob("date=*/*")}
    return lying - listed


async def published(server: Server, *texts: bytes) -> None:
    for text in texts:
        await server.hub.store(SECRET if text.startswith(b"s") else frozenset("a"), text)


async def test_one_node_seals_and_the_other_knows(
    start: Start, share: Share, archive: Archive
) -> None:
    one, two = await start(), await start()
    first = await share(one)
    await first.wait()
    second = await share(two)
    await published(one, b"1")
    await published(two, b"2")
    await until(lambda: second.sealer.sealed == 2)
    assert (first.sealer.sealing, second.sealer.sealing) == (True, False)
    assert rows(archive) == [(1, b"1"), (2, b"2")]
    assert second.sealer.manifest.segments == first.sealer.manifest.segments


async def test_it_is_handed_over_where_a_node_stops(
    start: Start, share: Share, archive: Archive
) -> None:
    one, two = await start(), await start()
    first, second = await share(one), await share(two)
    await until(lambda: first.sealer.sealing or second.sealer.sealing)
    if second.sealer.sealing:
        one, two, first, second = two, one, second, first
    await published(one, b"1")
    with trio.fail_after(2.5):  # sooner than the lease would end
        await first.sealer.retire()
        await second.wait()
    assert rows(archive) == [(1, b"1")]
    await published(one, b"2")
    await until(lambda: second.sealer.sealed == 2)
    assert rows(archive) == [(1, b"1"), (2, b"2")]
    assert not first.sealer.sealing


@pytest.mark.parametrize("step", ["reading", "written", "checked"])
async def test_a_node_that_wakes_with_an_ended_lease_changes_nothing(
    start: Start, share: Share, archive: Archive, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Stopped at a step of sealing; the other seals meanwhile."""
    one, two = await start(), await start()
    first = await share(one)
    await first.wait()
    sealer = first.sealer._sealer
    assert sealer is not None
    reached, released = threading.Event(), threading.Event()

    def stop() -> None:
        reached.set()
        assert released.wait(20)

    if step == "reading":
        columns = sealer.history.columns

        async def late_columns(*args: object, **options: object) -> object:
            page = await columns(*args, **options)  # type: ignore[arg-type]
            await trio.to_thread.run_sync(stop)
            return page

        monkeypatch.setattr(sealer.history, "columns", late_columns)
    elif step == "written":
        finish = OpenSegment.finish

        def late_finish(segment: OpenSegment) -> object:
            found = finish(segment)
            stop()
            return found

        monkeypatch.setattr(OpenSegment, "finish", late_finish)
    else:
        add = archive.messages._generations.add

        def late_add(data: bytes, number: int, *, locked: bool) -> None:
            stop()
            add(data, number, locked=locked)

        monkeypatch.setattr(archive.messages._generations, "add", late_add)
    await published(one, b"1", b"2")
    await until(reached.is_set)
    monkeypatch.undo()
    await first.lose_lease(0.01)
    await trio.sleep(0.02)
    second = await share(two)
    await second.wait()
    await until(lambda: second.sealer.sealed == 2)
    others = archive.messages.current()
    released.set()
    await until(lambda: not first.sealer.sealing)
    after = archive.messages.current()
    assert after.fence == others.fence
    assert after.segments == others.segments
    assert rows(archive) == [(1, b"1"), (2, b"2")]
    await until(lambda: not unlisted(archive))
    await published(one, b"3")
    await until(lambda: second.sealer.sealed == 3)
    assert rows(archive) == [(1, b"1"), (2, b"2"), (3, b"3")]


async def test_an_earlier_fence_takes_nothing_over(start: Start, archive: Archive) -> None:
    one = await start()
    await published(one, b"1")
    await (await open_shared(archive, one.node)).aclose()
    first = await claim(archive, one.node.history, 5)
    assert (first.fence, first.epoch) == (5, one.sequencer.epoch)
    assert await claim(archive, one.node.history, 5) == first
    with pytest.raises(Superseded):
        await claim(archive, one.node.history, 4)
    assert (await claim(archive, one.node.history, 7)).fence == 7


async def test_a_log_in_another_epoch_takes_it_over_with_any_fence(
    start: Start, archive: Archive
) -> None:
    one = await start()
    await published(one, b"1")
    await (await open_shared(archive, one.node)).aclose()
    await claim(archive, one.node.history, 5)
    await fork(one)
    assert (await claim(archive, one.node.history, 1)).epoch == one.sequencer.epoch


async def fork(server: Server, lost: int = 0) -> None:
    before = server.sequencer.epoch
    server.engine.lose(lost)
    await until(lambda: server.sequencer.epoch != before)


async def test_it_goes_on_in_another_epoch(start: Start, share: Share, archive: Archive) -> None:
    one, two = await start(), await start()
    first, second = await share(one), await share(two)
    await published(one, b"1", b"2")
    await until(lambda: first.sealer.sealed == 2 == second.sealer.sealed)
    await fork(one)
    await until(lambda: two.sequencer.epoch == one.sequencer.epoch)
    await published(two, b"3")
    newest = two.sequencer.newest
    await until(lambda: first.sealer.sealed >= newest <= second.sealer.sealed)
    assert rows(archive)[:2] == [(1, b"1"), (2, b"2")]
    assert rows(archive)[-1] == (newest, b"3")
    assert archive.messages.current().epoch == one.sequencer.epoch


@pytest.mark.parametrize("sealed", [False, True])
async def test_what_the_engine_has_lost_stays_where_it_was_sealed(
    start: Start, share: Share, archive: Archive, sealed: bool
) -> None:
    one, two = await start(), await start()
    first = await share(one)
    await first.wait()
    if not sealed:
        await first.lose_lease(60.0)
        await until(lambda: not first.sealer.sealing)
    await published(one, b"1", b"2", b"3")
    await same(one, two)
    if sealed:
        await until(lambda: first.sealer.sealed == 3)
    await fork(one, lost=2)
    await until(lambda: two.sequencer.epoch == one.sequencer.epoch)
    if not sealed:
        await one.engine.members.give_up(LEASE, "another")
    await published(two, b"new")
    newest = two.sequencer.newest
    assert newest == 4  # no id means two messages
    second = await share(two)
    await until(lambda: second.sealer.sealed == newest)
    kept = [(1, b"1"), (2, b"2"), (3, b"3")] if sealed else [(1, b"1")]
    assert rows(archive) == [*kept, (newest, b"new")]
    manifest = archive.messages.current()
    assert (manifest.epoch, manifest.lost) == (one.sequencer.epoch, ())


async def test_it_keeps_what_the_log_has_lost_and_ids_go_on_above(
    start: Start, share: Share, archive: Archive
) -> None:
    """As where the engine was restored from a backup, and no node had more."""
    one = await start()
    await published(one, b"1", b"2")
    first = await share(one)
    await until(lambda: first.sealer.sealed == 2)
    await first.sealer.retire()
    archive.messages.change(lambda manifest: msgspec.structs.replace(manifest, sealed=10))
    first = await share(one)
    await until(lambda: one.node.mirror.newest == 10)
    await published(one, b"11")
    await until(lambda: first.sealer.sealed == 11)
    assert rows(archive) == [(1, b"1"), (2, b"2"), (11, b"11")]


async def test_a_node_that_is_behind_the_archive_leaves_it_to_others(
    start: Start, share: Share, archive: Archive
) -> None:
    one, two = await start(), await start()
    first = await share(one)
    await first.wait()
    two.engine.deaf = True
    await published(one, b"1", b"2")
    await until(lambda: first.sealer.sealed == 2)
    second = await share(two)
    first.scope.cancel()
    await trio.sleep(1.5)
    assert not second.sealer.sealing
    assert one.sequencer.newest == 2  # no ids were given to nothing
    two.engine.deaf = False
    await second.wait()


async def test_a_node_without_what_is_missing_leaves_it_to_one_that_has_it(
    start: Start, share: Share, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await start()
    first = await share(one)
    await published(one, b"1")
    await until(lambda: first.sealer.sealed == 1)
    await first.sealer.retire()
    await published(one, b"2", b"3")
    await one.engine.trim(2)
    two = await start()  # whose mirror begins with the third
    await same_newest(one, two)
    second = await share(two)
    await trio.sleep(2.5)
    assert not second.sealer.sealing
    third = await share(one)
    await until(lambda: second.sealer.sealed == 3)
    assert third.sealer.sealing
    assert rows(archive) == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert archive.messages.current().lost == ()


async def test_what_no_node_has_is_listed_as_lost(
    start: Start, share: Share, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.archive.sharing._PASSED", 2)
    one = await start()
    first = await share(one)
    await published(one, b"1")
    await until(lambda: first.sealer.sealed == 1)
    await first.sealer.retire()
    await published(one, b"2", b"3")
    await one.engine.trim(2)
    two = await start()
    await same_newest(one, two)
    second = await share(two)
    await until(lambda: second.sealer.sealed == 3)
    assert rows(archive) == [(1, b"1"), (3, b"3")]
    assert archive.messages.current().lost == ((2, 2),)


async def same_newest(*servers: Server) -> None:
    await until(lambda: len({each.sequencer.newest for each in servers}) == 1)


async def test_a_mirror_keeps_what_is_not_sealed(start: Start, share: Share) -> None:
    one, two = await start(), await start()
    first = await share(one)
    await published(one, b"1")
    await until(lambda: first.sealer.sealed == 1)
    second = await share(two)
    first.scope.cancel()
    await second.wait()
    second.scope.cancel()
    await until(lambda: not second.sealer.sealing)
    await published(one, b"2")
    await same(one, two)
    everything = Policy(0.0, None, None, sealed=second.sealer.sealed)
    while (await two.node.history.trim(everything, trio.current_time() + 1e12)).more:
        pass
    assert (await two.node.history.position()).first == 2


async def test_what_a_mirror_lacks_that_began_anew_is_left_to_others(
    start: Start, share: Share, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins anew in the midst of sealing, behind the archive's end: that is no loss yet."""
    one, two = await start(), await start()
    first = await share(one)
    await published(one, b"1")
    await until(lambda: first.sealer.sealed == 1)
    columns = one.node.history.columns
    began: list[object] = []

    async def columns_anew(*args: object, **options: object) -> object:
        monkeypatch.undo()
        one.engine.held = trio.Event()
        await one.node.mirror.begin_anew(one.node.mirror.epoch, {}, 2, 2)
        one.engine.held.set()
        await until(lambda: one.node.mirror.newest == 3)
        began.append(None)
        return await columns(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(one.node.history, "columns", columns_anew)
    await published(two, b"2", b"3")
    await until(lambda: bool(began))
    await trio.sleep(1)
    manifest = archive.messages.current()
    assert (manifest.sealed, manifest.lost) == (1, ())
    second = await share(two)
    await until(lambda: second.sealer.sealed == 3)
    assert [id_ for id_, _ in rows(archive)] == [1, 2, 3]


async def test_nothing_is_listed_under_a_lease_that_has_ended(
    start: Start, share: Share, archive: Archive
) -> None:
    """Also where nobody has taken the archive over yet."""
    one = await start()
    first = await share(one)
    await published(one, b"1")
    await until(lambda: first.sealer.sealed == 1)
    members = one.engine.members
    await members.give_up(LEASE, one.node.name)
    assert await members.take(LEASE, "another", 60.0) is not None
    await published(one, b"2")
    await until(lambda: not first.sealer.sealing)
    assert rows(archive) == [(1, b"1")]
    await until(lambda: not unlisted(archive))


# Erasures


async def erase(*nodes: Sealing) -> list[Eraser]:
    server = nodes[0].server
    await server.sequencer.erase(Erasure(SECRET))
    return [Eraser(each.server.node, each.sealer.erase, each.sealer.note_erasure) for each in nodes]


async def test_what_was_read_before_an_erasure_is_not_listed(
    start: Start, share: Share, archive: Archive, nursery: trio.Nursery
) -> None:
    """The holder was stopped before it erased; another node has erased, and answered."""
    one, two = await start(), await start()
    first = await share(one)
    await first.wait()
    second = await share(two)
    sealer = first.sealer._sealer
    assert sealer is not None
    reached, released = threading.Event(), threading.Event()

    def late_finish(segment: OpenSegment) -> object:
        reached.set()
        assert released.wait(20)
        return finish(segment)

    finish = OpenSegment.finish
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(OpenSegment, "finish", late_finish)
        # As if it did not hear of it any more.
        patched.setattr(sealer._tenure, "check", trio.lowlevel.checkpoint)
        both = bulk(message("a", "1"), message("secret", "secret"))
        await one.sequencer.commit(both, Mark("", "w", 1))
        await until(lambda: two.sequencer.newest == 2)
        await until(reached.is_set)
        erasers = await erase(first, second)
        await until(lambda: len(two.node.mirror.erasures) == 1)
        nursery.start_soon(erasers[1].run)
        await until(lambda: not two.node.mirror.erasures)
        one.node.mirror.erasures.clear()  # nor of that
        one.node.mirror.offset -= 1
        released.set()
        await until(lambda: not first.sealer.sealing)
        assert archive.messages.current().segments == ()
        await until(lambda: not unlisted(archive))
        one.node.mirror.offset += 1
    await until(lambda: second.sealer.sealed == 2)
    assert b"secret" not in [data for _, data in rows(archive)]


async def test_nothing_is_sealed_while_an_erasure_waits(
    start: Start, share: Share, archive: Archive, nursery: trio.Nursery
) -> None:
    one = await start()
    first = await share(one)
    await first.wait()
    erasers = await erase(first)
    await published(one, b"1", b"secret")
    await trio.sleep(0.3)
    assert archive.messages.current().segments == ()
    nursery.start_soon(erasers[0].run)
    await until(lambda: first.sealer.sealed == 2)
    # It was published behind the erasure.
    assert rows(archive) == [(1, b"1"), (2, b"secret")]
    assert archive.messages.current().erasure == (one.sequencer.epoch, 1)


async def test_an_erasure_waits_for_the_archive(
    start: Start,
    share: Share,
    archive: Archive,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = await start()
    first = await share(one)
    await first.wait()
    await published(one, b"1")
    (eraser,) = await erase(first)
    with monkeypatch.context() as patched:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(archive.messages._generations, "add", full)
        nursery.start_soon(eraser.run)
        await trio.sleep(0.3)
        assert eraser.pending
    await until(lambda: not eraser.pending)
    await until(lambda: first.sealer.sealed == 1)


# What is refused


async def test_an_archive_of_another_log_is_refused(
    start: Start, share: Share, archive: Archive, tmp_path: Path
) -> None:
    one = await start()
    first = await share(one)
    await published(one, b"1")
    await until(lambda: first.sealer.sealed == 1)
    async with await open_node(f"memory://{secrets.token_hex(4)}", "memory://") as other:
        with pytest.raises(ArchiveError, match="of another log; restore that one"):
            await open_shared(archive, other)


async def open_shared(archive: Archive, node: object) -> SharedSealer:
    async def none(count: int) -> None:
        raise AssertionError(count)

    return await open_shared_sealer(
        archive,
        node,  # type: ignore[arg-type]
        give_ids=none,
        ask=trio.lowlevel.checkpoint,
    )


async def test_an_empty_archive_that_nodes_of_another_log_use_is_refused(
    start: Start, share: Share, archive: Archive
) -> None:
    first = await share(await start())
    async with await open_node(f"memory://{secrets.token_hex(4)}", "memory://") as other:
        with pytest.raises(ArchiveError, match="nodes of another log use it"):
            await open_shared(archive, other)
        first.scope.cancel()
        await first.sealer.aclose()
        sealer = await open_shared(archive, other)  # nobody uses it any more
        assert sealer.manifest.epoch == other.standing.epoch
        with pytest.raises(ArchiveError, match="another server uses it"):
            lock_alone(archive)
        await sealer.aclose()


async def test_a_file_system_without_hard_links_is_refused(
    start: Start, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(one: Path, two: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("mist.archive.generations.os.link", link)
    with pytest.raises(ArchiveError, match="nodes need hard links to share it"):
        await open_shared(archive, (await start()).node)


# On request


async def test_any_node_may_be_asked_to_seal(
    start: Start, share: Share, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await start(), await start()
    first, second = await share(one), await share(two)
    await until(lambda: first.sealer.sealing or second.sealer.sealing)
    holder, other = (first, second) if first.sealer.sealing else (second, first)
    assert holder.sealer._sealer is not None
    holder.sealer._sealer._policy = SealPolicy(seconds=3600.0)

    async def ask() -> None:
        holder.sealer.seal_soon()
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(other.sealer, "_ask", ask)
    await published(one, b"1", b"2")
    await same(one, two)
    with trio.fail_after(5):
        assert await other.sealer.seal_now() == 2
    await published(one, b"3")
    assert await holder.sealer.seal_now() == 3
    assert rows(archive) == [(1, b"1"), (2, b"2"), (3, b"3")]


async def test_without_a_node_that_seals_it_is_said(
    start: Start, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.archive.sharing._NOBODY", 0.5)
    one = await start()
    assert await one.engine.members.take(LEASE, "another", 60.0) is not None
    first = await share(one)
    await published(one, b"1")
    assert await first.sealer.seal_now(seconds=0.2) == 0
    with pytest.raises(ArchiveError, match="no node seals it"):
        await first.sealer.seal_now()


async def test_without_the_engine_nothing_is_sealed(
    start: Start, share: Share, archive: Archive
) -> None:
    one = await start(timeout=0.1)
    first = await share(one)
    await first.wait()
    await published(one, b"1")
    await until(lambda: first.sealer.sealed == 1)
    one.engine.down = True
    with suppress(Exception):
        await published(one, b"2")
    await trio.sleep(0.3)
    assert archive.messages.current().sealed == 1
