"""Pages for many readers that wait: found together, and the same as each would find alone."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.errors import HistoryDamaged
from mist.history import History, Selection, Stored, page_readers, page_walk
from mist.history.block import Block
from mist.history.block_cache import Blocks
from mist.history.block_store import State
from mist.history.erasure import Erasure
from mist.history.layout import Row
from mist.history.log import Log
from mist.history.memory import MemoryBlockStore
from mist.history.opening import open_history
from mist.history.page_cache import KeptPage
from mist.history.page_readers import PAGE_BYTES, PAGE_MESSAGES, Keep, Wanted
from mist.history.page_walk import PageWalk
from mist.history.pieces import AnyRow
from mist.history.record import Loose, StoredMessage
from mist.history.replay import read_page
from tests.history.messages import block_of, ids, one, publication, run, select, some

PLENTY = 1 << 30


class Calls:
    """What a log reads: a page for one reader, or a walk for so many."""

    def __init__(self) -> None:
        self.alone = 0
        self.walks: list[int] = []


@pytest.fixture
def calls(history: History, monkeypatch: pytest.MonkeyPatch) -> Calls:
    assert isinstance(history, Log)
    calls, page, walk = Calls(), history._page, history._walk

    async def read_alone(*arguments):
        calls.alone += 1
        return await page(*arguments)

    async def read_together(wanted: Sequence[Wanted], max_cost: int, keep: Keep) -> None:
        calls.walks.append(len(wanted))
        await walk(wanted, max_cost, keep)

    monkeypatch.setattr(history, "_page", read_alone)
    monkeypatch.setattr(history, "_walk", read_together)
    return calls


@contextmanager
def waiting(history: History, *each: tuple[Selection, int, int]) -> Iterator[None]:
    """Some wait, each for what is selected behind an id, up to another."""
    with ExitStack() as stack:
        for selection, after, upto in each:
            stack.enter_context(history.expecting(selection, after, upto))
        yield


async def page_of(history: History, selection: Selection, after: int, upto: int):
    return await history.read(selection, after=after, upto=upto, packed=True)


async def test_a_walk_is_made_for_those_whose_turns_are_next(
    history: History, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.append([one(f"room-{n % 50}") for n in range(500)])
    monkeypatch.setattr("mist.history.shared_pages._READERS", 10)
    with ExitStack() as stack:
        for n in range(50):  # who came last is next
            stack.enter_context(history.expecting(select(f"room-{n}"), 0, 500, (50 - n,)))
        for n in range(49, 39, -1):
            await page_of(history, select(f"room-{n}"), 0, 500)
    assert calls.walks == [10]
    assert calls.alone == 0


async def test_who_waits_is_served_by_one_walk(history: History, calls: Calls) -> None:
    await history.append([one(f"room-{n % 50}") for n in range(500)])
    rooms = [(select(f"room-{n}"), n, 500) for n in range(50)]
    with waiting(history, *rooms):
        for n, room in enumerate(rooms):
            page = await page_of(history, *room)
            assert ids(page.messages()) == list(range(n + 1, 501, 50))
            assert (page.after, page.complete) == (500, True)
    assert calls.walks == [50]
    assert calls.alone == 0


async def test_small_blocks_in_which_nobody_finds_anything_end_no_page(
    history: History, calls: Calls
) -> None:
    await history.append([one(f"room-{n % 50}") for n in range(500)])
    for _ in range(300):
        await history.append([one("elsewhere")])
    await history.append([one(f"room-{n}") for n in range(50)])
    rooms = [(select(f"room-{n}"), 0, 850) for n in range(50)]
    with waiting(history, *rooms):
        for n, room in enumerate(rooms):
            page = await page_of(history, *room)
            assert ids(page.messages()) == [*range(n + 1, 501, 50), 801 + n]
            assert page.complete
    assert calls.walks == [50]


async def test_who_waits_no_more_is_read_for_by_nobody(history: History, calls: Calls) -> None:
    await history.append([one("a"), one("b")])
    with waiting(history, (select("a"), 0, 2)):
        pass
    assert ids((await page_of(history, select("b"), 0, 2)).messages()) == [2]
    assert calls.walks == []


async def test_what_comes_meanwhile_is_not_on_the_page(history: History, calls: Calls) -> None:
    await history.append([one("a"), one("b")])
    with waiting(history, (select("a"), 0, 2), (select("b"), 0, 2)):
        assert ids((await page_of(history, select("a"), 0, 2)).messages()) == [1]
        await history.append([one("b")])
        page = await page_of(history, select("b"), 0, 2)
        assert (ids(page.messages()), page.complete) == ([2], True)
        assert calls.walks == [2]
        assert ids((await page_of(history, select("b"), 0, 3)).messages()) == [2, 3]


async def test_what_was_erased_meanwhile_is_on_no_page(history: History, calls: Calls) -> None:
    await history.append([one("a"), one("b,x"), one("b")])
    with waiting(history, (select("a"), 0, 3), (select("b"), 0, 3)):
        assert ids((await page_of(history, select("a"), 0, 3)).messages()) == [1]
        await history.erase(Erasure(frozenset({"x"})))
        assert ids((await page_of(history, select("b"), 0, 3)).messages()) == [3]
    assert calls.walks == [2, 2]


async def test_a_walk_that_is_overtaken_by_an_erasure_is_made_in_vain(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.append([one("a,x"), one("b,x"), one("b"), one("a")])
    assert isinstance(history, Log)
    walk = history._walk

    async def overtaken(wanted: Sequence[Wanted], max_cost: int, keep: Keep) -> None:
        found: list[tuple[Wanted, KeptPage]] = []
        await walk(wanted, max_cost, lambda *page: found.append(page))
        await history.erase(Erasure(frozenset({"x"})))
        assert len(found) == 2
        for page in found:
            keep(*page)

    monkeypatch.setattr(history, "_walk", overtaken)
    with waiting(history, (select("a"), 0, 4), (select("b"), 0, 4)):
        assert ids((await page_of(history, select("a"), 0, 4)).messages()) == [4]
        assert ids((await page_of(history, select("b"), 0, 4)).messages()) == [3]


async def test_one_walk_is_made_at_a_time_and_the_next_reader_finds_its_page(
    history: History, calls: Calls
) -> None:
    await history.append([one(f"room-{n % 50}") for n in range(500)])
    rooms = [(select(f"room-{n}"), n, 500) for n in range(50)]
    with waiting(history, *rooms):
        async with trio.open_nursery() as nursery:
            for room in rooms[:20]:
                nursery.start_soon(page_of, history, *room)
    assert calls.walks == [50]
    assert calls.alone == 0


async def test_two_who_wait_before_a_long_log_are_read_for_alone(
    history: History, calls: Calls
) -> None:
    for _ in range(20):
        await history.append([some("b", 1_000), one("a")])
    rooms = [(select("a"), 0, 20_020), (select("c"), 0, 20_020)]
    with waiting(history, *rooms):
        assert len(list((await page_of(history, *rooms[0])).messages())) == 20
        assert not list((await page_of(history, *rooms[1])).messages())
    assert calls.walks == []
    assert calls.alone == 2


async def test_who_is_far_behind_is_left_to_itself(history: History, calls: Calls) -> None:
    await history.append([one(f"room-{n % 10}") for n in range(1_000)])
    rooms = [(select(f"room-{n}"), 900, 1_000) for n in range(10)]
    with waiting(history, (select("room-3"), 700, 1_000), *rooms):
        await page_of(history, *rooms[0])
    assert calls.walks == [10]


async def test_pages_for_who_waits_are_not_lost_to_those_for_who_comes_later(
    history: History, calls: Calls
) -> None:
    """Of pages that together take more than is kept, none is found in vain."""
    for _ in range(100):
        await history.append([one(f"room-{n}", "x" * 50) for n in range(300)])
    upto = 30_000
    # What a page takes is not known before some are found.
    before = [(select(f"room-{n}"), 1_000, upto) for n in range(20)]
    with waiting(history, *before):
        await page_of(history, *before[0])
    # In turns from the beginning and from far behind it: these are not found by the same walk.
    rooms = [(select(f"room-{n}"), n % 2 * 19_800, upto) for n in range(300)]
    with waiting(history, *rooms):
        for n, (selection, begin, _) in enumerate(rooms):
            found, after = [], begin
            while after < upto:
                page = await page_of(history, selection, after, upto)
                found += ids(page.messages())
                after = page.after
            assert found == list(range(begin + n + 1, upto + 1, 300))
    assert sum(calls.walks) < 500


async def test_long_replays_of_the_same_are_read_alone(history: History, calls: Calls) -> None:
    """Their pages are large, and those of a walk would be small."""
    for _ in range(50):
        await history.append([some("a", 1_000)])
    places = [n * 1_000 for n in range(10)]
    while min(places) < 50_000:
        for n, after in enumerate(places):
            with waiting(history, *[(select("a"), each, 50_000) for each in places]):
                places[n] = (await page_of(history, select("a"), after, 50_000)).after
    assert calls.alone > 3 * len(calls.walks)


@pytest.mark.parametrize("limits", [{"limit": 1_000}, {"max_bytes": PAGE_BYTES}])
async def test_a_smaller_page_is_read_alone(
    history: History, calls: Calls, limits: dict[str, int]
) -> None:
    await history.append([some("a", 2_000), some("b", 2_000)])
    with waiting(history, (select("a"), 0, 4_000), (select("b"), 0, 4_000)):
        page = await history.read(select("a"), upto=4_000, packed=True, **limits)
        assert 500 < page.count <= 2_000
    assert calls.walks == []


async def test_pages_that_begin_within_a_large_run_leave_nothing_out(
    history: History, calls: Calls
) -> None:
    data = ["x" * 100] * 900
    await history.append([publication(run("a", *data), run("b", "x"), run("a", "x"))])
    with waiting(history, (select("a"), 600, 902), (select("b"), 600, 902)):
        found = await page_of(history, select("a"), 600, 902)
    assert calls.walks
    assert ids(found.messages()) == [*range(601, 901), 902]


async def test_many_alternatives_are_read_alone(history: History, calls: Calls) -> None:
    await history.append([one("t1"), one("a")])
    wanted = select(*(f"t{n}" for n in range(9)))
    with waiting(history, (wanted, 0, 2), (select("a"), 0, 2)):
        assert ids((await page_of(history, wanted, 0, 2)).messages()) == [1]
        assert ids((await page_of(history, select("a"), 0, 2)).messages()) == [2]
    assert calls.walks == []


async def test_of_another_process_s_log_nothing_is_expected(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    async with await open_history(url) as writer:
        await writer.append([one("a")])
        async with await open_history(url, read_only=True) as reader:
            with reader.expecting(select("a"), 0, 1), reader.expecting(None, 0, 1):
                assert ids((await page_of(reader, select("a"), 0, 1)).messages()) == [1]


# walks by themselves


def store_of(*blocks: Sequence) -> tuple[MemoryBlockStore, int]:
    """A store with blocks of these publications; and the newest id."""
    store, newest = MemoryBlockStore(State("e")), 0
    for publications in blocks:
        row = block_of(publications, newest + 1)
        store.append([row])
        newest = row.head.last
    return store, newest


def messages_of(page: KeptPage) -> list[StoredMessage]:
    return [message for step in page.unpack() for stored in step for message in stored.messages()]


def texts(page: KeptPage) -> list[bytes]:
    return [message.data for message in messages_of(page)]


def take(walk: PageWalk, store: MemoryBlockStore, blocks: Blocks) -> bool:
    """Walk a bit further; whether that was the end."""
    for _ in walk.take(walk.read(store), blocks):
        pass
    return walk.ended


class Pages(dict[int, KeptPage]):
    """The pages that a walk found."""

    def keep(self, wanted: Wanted, page: KeptPage) -> None:
        self[id(wanted)] = page

    def of(self, wanted: Sequence[Wanted]) -> list[KeptPage | None]:
        """The page of each reader, if the walk came to it."""
        return [self.get(id(each)) for each in wanted]


def walked(
    store: MemoryBlockStore, wanted: Sequence[Wanted], max_cost: int = PLENTY
) -> list[KeptPage | None]:
    pages, blocks = Pages(), Blocks()
    walk = PageWalk(wanted, max_cost, pages.keep)
    while not take(walk, store, blocks):
        pass
    return pages.of(wanted)


def pages_of(
    store: MemoryBlockStore, wanted: Sequence[Wanted], max_cost: int = PLENTY
) -> list[KeptPage]:
    """A walk that comes to all readers."""
    pages = [page for page in walked(store, wanted, max_cost) if page is not None]
    assert len(pages) == len(wanted)
    return pages


def test_a_page_is_full_with_so_many_messages_and_the_next_goes_on() -> None:
    store, newest = store_of(*[[some("a", 400), one("b", str(n))] for n in range(6)])
    wanted = [Wanted(select("a"), 0, newest), Wanted(select("b"), 0, newest)]
    full, other = pages_of(store, wanted)
    assert (full.count, full.complete, full.known) == (PAGE_MESSAGES, False, 1_026)
    assert (other.count, other.complete) == (6, True)
    (rest,) = pages_of(store, [Wanted(select("a"), full.known, newest)])
    both = texts(full) + texts(rest)
    assert both == [b"%d" % (n % 400) for n in range(PAGE_MESSAGES + rest.count)]


def test_a_page_is_full_with_so_many_bytes() -> None:
    store, newest = store_of(*[[one("a", "x" * 10_000)] * 3 for _ in range(20)])
    (page,) = pages_of(store, [Wanted(select("a"), 0, newest)])
    assert PAGE_BYTES <= page.size < PAGE_BYTES + 20_000
    assert page.known == page.count < newest


def test_a_step_is_short() -> None:
    rows = [publication(run("a", "x"), run("b", "y")) for _ in range(900)]
    store, newest = store_of(rows, [some("a", 10)])
    (page,) = pages_of(store, [Wanted(select("a"), 0, newest)])
    sizes = [sum(each.count for each in step) for step in page.unpack()]
    assert sum(sizes) == 910
    assert max(sizes) <= 256


def test_all_end_where_it_costs_enough() -> None:
    store, newest = store_of(*[[one("a", "x" * 1_000), one("b")] for _ in range(20)])
    wanted = [Wanted(select("a"), 0, newest), Wanted(select("b"), 0, newest)]
    for page in pages_of(store, wanted, 10_000):
        assert not page.complete
        assert 4 <= page.known < 20
        assert page.count == page.known // 2


def test_who_begins_behind_the_end_of_a_walk_got_no_page() -> None:
    store, newest = store_of(*[[one("a", "x" * 1_000), one("b")] for _ in range(20)])
    wanted = [Wanted(select("a"), 0, newest), Wanted(select("b"), 35, newest)]
    early, late = walked(store, wanted, 10_000)
    assert early is not None
    assert late is None


def test_however_many_want_a_block_no_more_is_found_than_may_be() -> None:
    store, newest = store_of([one("a")], [some("a", 500)], [one("b")])
    wanted = [Wanted(select("a"), 0, newest) for _ in range(50)]
    pages = pages_of(store, wanted, 100_000)
    assert sum(page.known == 501 for page in pages) in range(1, 10)
    for page in pages:
        assert page.known in (1, 501)
        assert page.count == page.known


def test_a_walk_ends_where_all_pages_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    store, newest = store_of(*[[some("a", 600)] for _ in range(20)])
    looked_at: list[int] = []
    ascend = store.ascend

    def watched(after: int, upto: int, selection: Selection | None) -> Iterator[Row]:
        for row in ascend(after, upto, selection):
            looked_at.append(row.head.first)
            yield row

    monkeypatch.setattr(store, "ascend", watched)
    monkeypatch.setattr(page_walk, "_STEP_BLOCKS", 4)
    pages = pages_of(store, [Wanted(select("a"), 0, newest)] * 3)
    assert [page.count for page in pages] == [PAGE_MESSAGES] * 3
    assert len(looked_at) == 4


@pytest.mark.parametrize("few", [0, 8])
def test_blocks_may_be_joined_between_two_steps(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(page_walk, "_FEW", few)
    messages = [one("ab"[n % 2], str(n)) for n in range(100)]
    apart, newest = store_of(*[messages[n : n + 2] for n in range(0, 100, 2)])
    joined, _ = store_of(*[messages[n : n + 25] for n in range(0, 100, 25)])
    wanted = [Wanted(select(tag), 0, newest) for tag in "ab"]
    pages, blocks = Pages(), Blocks()
    walk = PageWalk(wanted, PLENTY, pages.keep)
    assert [take(walk, store, blocks) for store in (apart, joined)] == [False, True]
    for number, page in enumerate(pages.of(wanted)):
        assert page is not None
        assert texts(page) == [b"%d" % n for n in range(number, 100, 2)]


def test_a_tag_that_all_have_leads_nobody_to_a_block() -> None:
    store, newest = store_of(*[[one(f"chat,room-{n}")] for n in range(20)])
    decoded: list[int] = []

    class Watched(Blocks):
        def decode(self, row: AnyRow, *, keep: bool = True) -> Block:
            decoded.append(row.head.first)
            return super().decode(row, keep=keep)

    wanted = [Wanted(select(f"chat,room-{n}"), 0, newest) for n in (3, 8, 17, 30)]
    pages, blocks = Pages(), Watched()
    walk = PageWalk(wanted, PLENTY, pages.keep)
    assert [take(walk, store, blocks) for _ in range(2)] == [False, True]
    assert [page.count for page in pages.of(wanted) if page is not None] == [1, 1, 1, 0]
    assert decoded == [4, 9, 18]


def test_a_large_block_is_taken_in_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many want something of it: the event loop does nothing else within a step."""
    store, newest = store_of([one(f"room-{n},org-{n % 50}", str(n)) for n in range(10_000)])
    wanted = [Wanted(select(f"org-{n}"), 0, newest) for n in range(50)]
    unpacked: list[int] = []
    loose = Block.loose

    def noted(block: Block, runs: Sequence[int]) -> dict[int, Loose]:
        unpacked.append(len(runs))
        return loose(block, runs)

    monkeypatch.setattr(Block, "loose", noted)
    pages = Pages()
    walk = PageWalk(wanted, PLENTY, pages.keep)
    steps = sum(1 for _ in walk.take(walk.read(store), Blocks()))
    assert [page.count for page in pages.of(wanted) if page is not None] == [200] * 50
    assert sum(unpacked) == 10_000
    assert max(unpacked) <= 256
    # To find, to choose, to unpack, to take, and to end.
    assert steps >= 2 * (10_000 // 512) + 50 + 10_000 // 256 + 50 + 50


def test_a_walk_that_has_ended_on_the_way_makes_pages_of_what_it_found() -> None:
    store, newest = store_of(*[[one("a", "x" * 1_000)] for _ in range(10)])
    pages = Pages()
    wanted = [Wanted(select("a"), 0, newest), Wanted(select("a,b"), 0, newest)]
    walk = PageWalk(wanted, 5_000, pages.keep)
    for _ in walk.take(walk.read(store), Blocks()):
        assert not walk.ended
    assert walk.ended
    found, none = pages.of(wanted)
    assert found is not None
    assert found.count == found.known < 10
    assert none is not None
    assert (none.count, none.known) == (0, found.known)


class Damaged(MemoryBlockStore):
    """A store whose third block can't be read."""

    def ascend(self, after, upto, selection) -> Iterator[Row]:
        for number, row in enumerate(super().ascend(after, upto, selection)):
            if number == 2:
                raise HistoryDamaged(row.head.first, "it is gone", row.head.last)
            yield row


def test_damage_ends_a_walk_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store, newest = store_of(*[[one("a"), one("b")] for _ in range(5)])
    monkeypatch.setattr(store, "__class__", Damaged)
    for page in pages_of(store, [Wanted(select(tag), 0, newest) for tag in "ab"]):
        assert (page.count, page.known, page.complete) == (2, 4, False)


# against pages that are read alone

tags = st.sampled_from(["a", "b", "c", "aa", "/x/y", "/x/z", "/x", ".k.l"])
tag_lists = st.sets(tags, min_size=1, max_size=3).map(lambda some: ",".join(sorted(some)))
beside = st.fixed_dictionaries(
    {
        "time": st.sampled_from([1000.0, 1000.5]),
        "publisher": st.sampled_from(["", "p"]),
        "audience": st.sampled_from([None, "users=1"]),
        "meta": st.sampled_from([None, {"k": b"v"}]),
    }
)
publications = st.lists(
    st.tuples(tag_lists, st.integers(1, 4), st.booleans(), beside), min_size=1, max_size=4
)
asked = st.sampled_from(["a", "b", "c", "aa", "/x", "/x/*", "/x/#", ".k.l", ".k.>", "q"])
alternatives = st.frozensets(st.frozensets(asked, min_size=1, max_size=2), min_size=1, max_size=3)
readers = st.lists(
    st.tuples(alternatives, st.integers(0, 40), st.integers(0, 60)), min_size=1, max_size=12
)


def framable(every: Sequence[Stored]) -> list[tuple[int, bool]]:
    """Of each entry, by its first id."""
    return [(id_, stored.framable) for stored in every for id_ in stored.firsts]


@given(st.lists(publications, min_size=1, max_size=8), readers, st.booleans())
@settings(max_examples=300, deadline=None)
def test_each_page_is_what_its_reader_finds_alone(blocks, readers, small) -> None:
    numbers = iter(range(10_000))
    store, newest = store_of(
        *[
            [
                publication(
                    run(each, *(str(next(numbers)) for _ in range(count))),
                    framable=count > 1 or lines,
                    **options,
                )
                for each, count, lines, options in rows
            ]
            for rows in blocks
        ]
    )
    wanted = [
        Wanted(selection, after, min(upto, newest))
        for chosen, after, upto in readers
        if (selection := Selection.asked(chosen)) is not None
        and selection.lookups is not None
        and after < min(upto, newest)
    ]
    if not wanted:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_walk, "_FEW", 1)
        if small:
            patch.setattr(page_readers, "PAGE_MESSAGES", 3)
            patch.setattr(page_walk, "_MAX_BLOCKS", 4)
            patch.setattr(page_walk, "_STEP_BLOCKS", 2)
        pages = walked(store, wanted)
    assert any(pages)
    for each, page in zip(wanted, pages, strict=True):
        if page is None:
            continue
        alone = read_page(
            *(store, Blocks(), each.selection, each.after, page.known, PLENTY, PLENTY)
        )
        assert messages_of(page) == list(alone.messages())
        assert page.count == alone.count
        every = [stored for step in page.steps for stored in step]
        assert framable(every) == framable(alone.stored)
        for apart in (part for stored in every for part in stored.by_time()):
            assert apart.times is None
            assert {message.time for message in apart.messages()} == {apart.time}
