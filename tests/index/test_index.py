"""Matching is exactly ⊆, through every shape the tree takes, and memory is given back."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mist.index import Index, Thresholds
from mist.index.chunk import Chunk
from mist.index.entry import Entry
from mist.index.tree import Child, Node

# So small that lists overflow, tags turn heavy, chunks fill up and nodes go down a level
# within a handful of entries. A chunk's first capacity is one machine word.
TINY = Thresholds(leaf=1, light=1, capacity=64, area=64 * 6)
SMALL = Thresholds(leaf=2, light=2, capacity=128, area=1 << 12)
EACH = pytest.mark.parametrize("thresholds", [TINY, SMALL, Thresholds()], ids=str)

tag_sets = st.frozensets(st.sampled_from("abcdefgh"), min_size=1, max_size=8)


def expected(model: dict[frozenset[str], int], tags: frozenset[str]) -> list[int]:
    return sorted(group for wanted, group in model.items() if wanted <= tags)


@given(
    st.lists(tag_sets, unique=True, max_size=150),
    st.lists(st.frozensets(st.sampled_from("abcdefghxy")), max_size=10),
    st.sampled_from([TINY, SMALL]),
)
@settings(max_examples=200)
def test_a_match_is_every_subset_once(
    entries: list[frozenset[str]], messages: list[frozenset[str]], thresholds: Thresholds
) -> None:
    index: Index[int] = Index(thresholds)
    model = {tags: n for n, tags in enumerate(entries)}
    for tags, n in model.items():
        index.add(tags, n)
    for message in messages:
        assert sorted(index.match(message)) == expected(model, message)


@EACH
def test_thousands_of_entries_match_like_the_definition(thresholds: Thresholds) -> None:
    rng = random.Random(7)
    vocabulary = [f"t{n}" for n in range(40)]
    model: dict[frozenset[str], int] = {}
    index: Index[int] = Index(thresholds)
    for n in range(3_000):
        tags = frozenset(rng.sample(vocabulary, rng.randint(1, 5)))
        if tags not in model:
            model[tags] = n
            index.add(tags, n)
    if thresholds is not EACH.args[1][-1]:
        assert index.statistics().chunks > 10
    for _ in range(150):
        message = frozenset(rng.sample(vocabulary, rng.randint(1, 30)))
        assert sorted(index.match(message)) == expected(model, message)
    gone = rng.sample(sorted(model, key=sorted), len(model) // 2)
    for tags in gone:
        assert index.remove(tags) == model.pop(tags)
    for _ in range(100):
        message = frozenset(rng.sample(vocabulary, rng.randint(1, 30)))
        assert sorted(index.match(message)) == expected(model, message)


def test_sets_that_share_all_tags_but_two_are_told_apart() -> None:
    index: Index[int] = Index(TINY)
    shared = frozenset({"x", "y", "z"})
    for n in range(400):
        index.add(shared | {f"own{n % 20}", f"more{n // 20}"}, n)
    assert index.statistics().nodes > 0
    assert index.match(shared | {"own3", "more4"}) == [83]
    assert len(index.match(shared | {f"own{n}" for n in range(20)} | {"more0"})) == 20


def test_popular_tags_only_are_packed_into_chunks() -> None:
    index: Index[int] = Index()
    rng = random.Random(3)
    words = [f"w{n}" for n in range(60)]
    entries = {frozenset(rng.sample(words, 4)) for _ in range(20_000)}
    for n, tags in enumerate(entries):
        index.add(tags, n)
    assert index.statistics().chunks > 0
    message = frozenset(words[:30])
    assert len(index.match(message)) == sum(tags <= message for tags in entries)


def check_structure(index: Index[int]) -> None:
    """Every entry is where it says it is, once; nothing is kept that holds none."""
    found: list[Entry[int]] = []
    nodes = [index._tree._root]
    for node in nodes:
        path = node.path()
        if node.exact is not None:
            assert (node.exact.node, node.exact.place) == (node, None)
            assert set(node.exact.tags) == path
            found.append(node.exact)
        for tag, child in node.children.items():
            if isinstance(child, Node):
                assert (child.parent, child.tag) == (node, tag)
                assert child.exact or child.children or child.chunk
                nodes.append(child)
            else:
                found += check_hung(node, tag, child)
        if node.chunk is not None:
            check_chunk(node.chunk)
    entries = [entry for shard in index._shards for entry in shard.values()]
    chunks = [node.chunk for node in nodes if node.chunk is not None]
    hung = {id(entry) for entry in found}
    packed = [entry for entry in entries if id(entry) not in hung]
    assert len(hung) == len(found)
    for entry in packed:
        assert entry.node is not None
        assert entry.node.chunk is not None
        assert isinstance(entry.place, int)
        assert entry.node.chunk.slots[entry.place] == entry.group
    assert len(packed) == sum(map(len, chunks))
    statistics = index.statistics()
    assert len(entries) == len(index) == statistics.entries
    assert (statistics.nodes, statistics.chunks) == (len(nodes) - 1, len(chunks))


def check_hung(node: Node[int], tag: str, child: Child[int]) -> list[Entry[int]]:
    hung = child if isinstance(child, list) else [child]
    assert len(hung) > isinstance(child, list), "a lone entry needs no list"
    for entry in hung:
        assert isinstance(entry, Entry)
        assert (entry.node, entry.place) == (node, tag)
        assert node.path() | {tag} <= set(entry.tags)
    return hung  # type: ignore[return-value]


def check_chunk(chunk: Chunk[int]) -> None:
    assert len(chunk) > 0
    assert all(posting.any() for posting in chunk.postings.values())
    bitmaps = [*chunk.planes, *chunk.postings.values()]
    assert {len(bitmap) for bitmap in bitmaps} == {chunk.capacity}
    for slot in [*chunk.free, *range(len(chunk.slots), chunk.capacity)]:
        assert [plane[slot] for plane in chunk.planes] == [1, *[0] * (len(chunk.planes) - 1)]
        assert not any(posting[slot] for posting in chunk.postings.values())


class IndexMachine(RuleBasedStateMachine):
    """Adding, removing and matching in any order against a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.index: Index[int] = Index(TINY)
        self.model: dict[frozenset[str], int] = {}
        self.serial = 0

    @rule(tags=tag_sets)
    def add(self, tags: frozenset[str]) -> None:
        self.serial += 1
        if tags in self.model:
            with pytest.raises(ValueError, match="there already"):
                self.index.add(tags, self.serial)
        else:
            self.index.add(tags, self.serial)
            self.model[tags] = self.serial

    @rule(seed=st.integers(0, 1 << 16), count=st.integers(1, 90))
    def add_many(self, seed: int, count: int) -> None:
        rng = random.Random(seed)
        for _ in range(count):
            tags = frozenset(rng.sample("abcdefgh", rng.randint(1, 8)))
            if tags not in self.model:
                self.serial += 1
                self.index.add(tags, self.serial)
                self.model[tags] = self.serial

    @rule(tags=tag_sets)
    def remove(self, tags: frozenset[str]) -> None:
        if tags in self.model:
            assert self.index.remove(tags) == self.model.pop(tags)
        else:
            with pytest.raises(KeyError):
                self.index.remove(tags)

    @rule(data=st.data())
    def remove_one_there_is(self, data: st.DataObject) -> None:
        if self.model:
            tags = data.draw(st.sampled_from(sorted(self.model, key=sorted)))
            assert self.index.remove(tags) == self.model.pop(tags)

    @rule(tags=st.frozensets(st.sampled_from("abcdefghxy")))
    def match(self, tags: frozenset[str]) -> None:
        assert sorted(self.index.match(tags)) == expected(self.model, tags)

    @rule(tags=tag_sets)
    def get(self, tags: frozenset[str]) -> None:
        assert self.index.get(tags) == self.model.get(tags)

    @invariant()
    def sizes_agree(self) -> None:
        assert len(self.index) == len(self.model)
        assert frozenset(self.index.tags()) == frozenset().union(*self.model)
        check_structure(self.index)

    def teardown(self) -> None:
        for tags, group in self.model.items():
            assert self.index.remove(tags) == group
        check_empty(self.index)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=40)


def check_empty(index: Index[int]) -> None:
    statistics = index.statistics()
    assert (statistics.entries, statistics.tags) == (0, 0)
    assert (statistics.nodes, statistics.chunks) == (0, 0)
    assert not index._tree._root.children
    assert not any(index._shards)


@EACH
def test_what_was_removed_leaves_nothing_behind(thresholds: Thresholds) -> None:
    rng = random.Random(5)
    index: Index[int] = Index(thresholds)
    words = [f"w{n}" for n in range(25)]
    for _ in range(3):
        entries = {frozenset(rng.sample(words, rng.randint(1, 6))) for _ in range(2_000)}
        for n, tags in enumerate(entries):
            index.add(tags, n)
        check_structure(index)
        for tags in rng.sample(sorted(entries, key=sorted), len(entries)):
            index.remove(tags)
        check_empty(index)


def test_an_entry_needs_a_tag() -> None:
    with pytest.raises(ValueError, match="at least one tag"):
        Index[int]().add(frozenset(), 1)


def test_freed_slots_of_a_chunk_are_used_again() -> None:
    chunk: Chunk[int] = Chunk()
    slots = [chunk.insert(n, ["a", f"b{n}"]) for n in range(70)]
    assert chunk.capacity == 128
    for n in range(0, 70, 2):
        chunk.discard(slots[n], ("a", f"b{n}"))
    again = [chunk.insert(100 + n, ["c"]) for n in range(35)]
    assert sorted(again) == slots[::2]
    assert chunk.capacity == 128
    found: list[int] = []
    chunk.match(frozenset({"c", "b1", "a"}), found)
    assert sorted(found) == [1, *range(100, 135)]


def test_entries_with_more_tags_than_planes_can_count_get_more_planes() -> None:
    chunk: Chunk[int] = Chunk()
    many = [f"t{n}" for n in range(40)]
    chunk.insert(1, many)
    chunk.insert(2, many[:7])
    for size, wanted in ((40, [1, 2]), (39, [2]), (7, [2]), (6, [])):
        found: list[int] = []
        chunk.match(frozenset(many[:size]), found)
        assert sorted(found) == wanted
