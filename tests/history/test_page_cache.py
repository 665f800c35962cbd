"""Pages that many ask for are read once, and nobody is given one that isn't what the log has."""

import gc
import tracemalloc
from collections.abc import Callable

import attrs
import pytest

from mist.history import History, Page, Policy, Stored
from mist.history.block import Block
from mist.history.erasure import Erasure
from mist.history.log import Log
from mist.history.opening import open_history
from mist.history.page_cache import KeptPage
from mist.history.shared_pages import SharedPages
from mist.history.tag_lists import TagLists
from tests.history.messages import block_of, ids, one, publication, run, select, some, texts


@attrs.define
class Reads:
    """How often a log was read, beside what is known of it without."""

    count: int = 0


@pytest.fixture
def reads(history: History, monkeypatch: pytest.MonkeyPatch) -> Reads:
    assert isinstance(history, Log)
    executor = history._access.executor
    found, read = Reads(), executor.read

    async def counted(work, *, long=False, scan=False):
        found.count += scan
        return await read(work, long=long, scan=scan)

    monkeypatch.setattr(executor, "read", counted)
    return found


async def asked(history: History, selection, after=0, upto=None, **options) -> list[int]:
    """The ids on a page that was asked for, complete or not."""
    page = await history.read(selection, after=after, upto=upto, packed=True, **options)
    return ids(page.messages())


async def asked_by_many(history: History, selection, after=0) -> list[int]:
    """The same, by so many that it is kept if it ever is."""
    (found, *others) = [await asked(history, selection, after) for _ in range(3)]
    assert others == [found] * 2
    return found


async def test_what_many_ask_for_is_read_twice(history: History, reads: Reads) -> None:
    await history.append([one("a"), one("b"), one("a,c")])
    for _ in range(10):
        assert await asked(history, select("a")) == [1, 3]
    assert reads.count == 2


async def test_each_selection_and_each_beginning_has_its_own(
    history: History, reads: Reads
) -> None:
    await history.append([one("a"), one("b"), one("a,c")])
    for _ in range(10):
        assert await asked(history, select("a")) == [1, 3]
        assert await asked(history, select("a"), after=1) == [3]
        assert await asked(history, select("a", "b")) == [1, 2, 3]
        assert await asked(history, select("a,c")) == [3]
    assert reads.count == 8


async def test_it_is_known_though_others_were_published_since(
    history: History, reads: Reads
) -> None:
    await history.append([one("a")])
    assert await asked_by_many(history, select("a")) == [1]
    for number in range(400):
        await history.append([one(f"b{number}")])
        page = await history.read(select("a"), packed=True)
        assert ids(page.messages()) == [1]
        assert page.complete
        assert page.after == 2 + number
    assert reads.count == 2


async def test_where_it_is_unsure_it_is_read_once_more(history: History, reads: Reads) -> None:
    await history.append([one("a")])
    assert await asked_by_many(history, select("a")) == [1]
    for number in range(200):  # the hashes of the oldest are joined with those of the first one
        await history.append([one(f"b{number}")])
    for _ in range(10):
        assert await asked(history, select("a")) == [1]
    assert reads.count == 3


async def test_what_is_published_since_is_there(history: History, reads: Reads) -> None:
    await history.append([one("a")])
    for number in range(10):
        assert await asked_by_many(history, select("a")) == [1, *range(3, 3 + 2 * number, 2)]
        await history.append([one("b"), one("a")])
    assert reads.count == 2 + 9


async def test_what_was_published_since_the_upper_bound_is_not_there(
    history: History, reads: Reads
) -> None:
    await history.append([one("a"), one("b"), one("a"), one("b")])
    assert await asked_by_many(history, select("a")) == [1, 3]
    for upto in (3, 4):
        page = await history.read(select("a"), upto=upto, packed=True)
        assert (page.after, page.complete, ids(page.messages())) == (upto, True, [1, 3])
    assert reads.count == 2
    assert await asked(history, select("a"), upto=2) == [1]
    assert reads.count == 3


async def test_a_smaller_page_is_read(history: History) -> None:
    await history.append([one("a"), one("b"), one("a")])
    assert await asked_by_many(history, select("a")) == [1, 3]
    assert await asked(history, select("a"), limit=1) == [1]
    assert await asked(history, select("a"), max_bytes=1) == [1]
    for options in ({"limit": 0}, {"max_bytes": 0}):
        with pytest.raises(ValueError, match="room"):
            await asked(history, select("a"), **options)


async def test_nothing_lies_behind_the_end(history: History) -> None:
    await history.append([one("a")])
    for _ in range(3):
        page = await history.read(select("a"), after=5, packed=True)
        assert (page.after, page.count) == (5, 0)


async def test_that_there_is_nothing_is_known_too(history: History, reads: Reads) -> None:
    await history.append([one("a"), one("b")])
    for _ in range(10):
        assert await asked(history, select("c")) == []
    assert reads.count == 2


async def test_what_is_trimmed_is_there_no_more(history: History) -> None:
    await history.append([one("a", time=1.0)])
    await history.append([one("a", time=100.0)])
    assert await asked_by_many(history, select("a")) == [1, 2]
    while (await history.trim(Policy(max_age=50.0), 110.0)).more:
        pass
    assert await asked_by_many(history, select("a")) == [2]


async def test_what_is_erased_is_there_no_more(history: History) -> None:
    await history.append([one("a,x"), one("a")])
    assert await asked_by_many(history, select("a")) == [1, 2]
    await history.erase(Erasure(frozenset({"x"})))
    assert await asked_by_many(history, select("a")) == [2]


async def test_what_is_erased_while_it_is_read_is_not_kept(history: History) -> None:
    await history.append([one("a,x"), one("a")])
    await asked(history, select("a"))
    page = await history.read(select("a"), packed=True)
    await history.erase(Erasure(frozenset({"x"})))
    assert ids(page.messages()) == [1, 2]  # as with whatever was read before
    for _ in range(3):
        assert await asked(history, select("a")) == [2]


async def test_it_is_known_though_blocks_are_joined(history: History, reads: Reads) -> None:
    for number in range(100):
        await history.append([one("a" if number < 3 else "b", str(number))])
    assert await asked_by_many(history, select("a")) == [1, 2, 3]
    while await history.compact():
        pass
    before = reads.count
    page = await history.read(select("a"), packed=True)
    assert texts(page.messages()) == ["0", "1", "2"]
    assert reads.count == before


async def test_what_is_unpacked_in_part_is_not_kept(history: History, reads: Reads) -> None:
    await history.append([some("a", 3)])
    for number in range(1, 5):
        page = await history.read(select("a"), packed=True)
        assert next(iter(page.unpack()))
        assert reads.count == number


async def test_a_large_page_is_read_each_time(history: History, reads: Reads) -> None:
    await history.append([some("a", 2_000)])
    for number in range(1, 5):
        assert len(await asked(history, select("a"))) == 2_000
        assert reads.count == number


@pytest.mark.parametrize("tags", [9, 40])
async def test_of_many_tags_it_is_read_each_time(history: History, reads: Reads, tags: int) -> None:
    await history.append([one("t1")])
    wanted = select(*(f"t{n}" for n in range(tags)))
    for number in range(1, 5):
        assert await asked(history, wanted) == [1]
        assert reads.count == number


async def test_another_process_s_log_is_read_each_time(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    writer = await open_history(url)
    reader = await open_history(url, read_only=True)
    for number in range(1, 5):
        await writer.append([one("a")])
        assert await asked(reader, select("a")) == list(range(1, number + 1))
    await reader.close()
    await writer.close()


# the cache by itself


class Clock:
    """Seconds, as a test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Source:
    """A log of one page, which counts how often it is read."""

    def __init__(self, *stored: Stored) -> None:
        self.reads = 0
        self._page = Page(stored, 100, True)

    async def __call__(self, upto: int, limit: int, max_bytes: int) -> Page:
        self.reads += 1
        return self._page


def stored(size: int) -> Stored:
    (found,) = Block(block_of([one("a", "x" * size)]), TagLists()).select()
    return found


async def no_walk(wanted: object, max_cost: int) -> list[KeptPage | None]:
    raise AssertionError("nobody waits")


async def take(cache: SharedPages, source: Source, after: int = 0) -> None:
    page = await cache.read(source, no_walk, select("a"), after, 100, 1_000, 1 << 20)
    assert list(page.unpack())


async def test_what_nobody_asks_for_is_forgotten() -> None:
    clock = Clock()
    cache, source = SharedPages(clock=clock), Source(stored(5))
    for after in (0, 1):
        for _ in range(2):
            await take(cache, source, after)
    assert len(cache) == 2
    clock.now = 6.0
    await take(cache, source, 1)
    clock.now = 12.0
    for _ in range(2):
        await take(cache, source, 2)
    assert len(cache) == 2  # the last two
    assert source.reads == 6
    await take(cache, source, 1)
    assert source.reads == 6


async def test_no_more_is_kept_than_was_said() -> None:
    cache, source = SharedPages(max_bytes=100_000), Source(stored(9_000))
    for after in range(50):
        for _ in range(2):
            await take(cache, source, after)
    assert 5 <= len(cache) <= 11


def stored_together(count: int) -> Stored:
    """One publication, each of whose messages has a tag list of its own."""
    runs = [run(f"{'t' * 30}{n}", "x") for n in range(count)]
    (found,) = Block(block_of([publication(*runs)]), TagLists()).select()
    return found


@pytest.mark.parametrize(
    "page",
    [
        lambda: [stored(20)],
        lambda: [stored(2_000)],
        lambda: [stored(100) for _ in range(20)],
        lambda: [stored_together(100)],
    ],
    ids=["small", "large", "some", "many tag lists"],
)
async def test_no_more_memory_is_taken_than_was_said(
    page: Callable[[], list[Stored]],
) -> None:
    cache = SharedPages(max_bytes=200_000)
    gc.collect()
    tracemalloc.start()
    try:
        for after in range(3_000):
            source = Source(*page())
            for _ in range(2):
                await take(cache, source, after)
            if after > 50 and len(cache) < after - 50:  # it is full
                break
        del source
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 60_000 < taken < 220_000


async def test_the_tags_of_so_many_blocks_are_known_that_they_take_little() -> None:
    cache, source = SharedPages(), Source(stored(5))
    row = attrs.evolve(block_of([one("b")]), hashes=b"none" * 4_000)
    rows = [
        attrs.evolve(row, head=attrs.evolve(row.head, first=n, last=n)) for n in range(101, 201)
    ]
    cache.appended(rows[:20])
    for _ in range(2):
        await take(cache, source)

    async def asked_again() -> int:
        before = source.reads
        page = await cache.read(source, no_walk, select("a"), 0, 200, 1_000, 1 << 20)
        assert page.count == 1
        return source.reads - before

    assert await asked_again() == 0
    for _ in range(2):
        await take(cache, source, 1)
    cache.appended(rows[20:])  # a megabyte and a half
    before = source.reads
    await cache.read(source, no_walk, select("a"), 1, 200, 1_000, 1 << 20)
    assert source.reads == before + 1
