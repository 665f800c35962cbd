"""Matching is exactly ⊆, through every shape the tree takes, and memory is given back."""

import gc
import random
from collections import Counter
from collections.abc import Iterable
from itertools import chain, combinations
from weakref import ref

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import mist.index.chunk
import mist.index.tree
from mist.index import Index, Thresholds
from mist.index.chunk import Chunk
from mist.index.nodes import Branch, Key, Node

# So small that lists overflow, tags turn heavy, chunks fill up and nodes go down a level
# within a handful of entries. A chunk's first capacity is one machine word.
TINY = Thresholds(leaf=1, light=1, capacity=64, area=64 * 6, filtered=1)
SMALL = Thresholds(leaf=2, light=2, capacity=128, area=1 << 12, near=0, filtered=16)
EACH = pytest.mark.parametrize("thresholds", [TINY, SMALL, Thresholds()], ids=str)

NEVER = 1 << 60  # slots in the time of one lookup: no chunk is as slow
ALWAYS = 1  # any chunk is slower than all subsets of eight tags

tag_sets = st.frozensets(st.sampled_from("abcdefgh"), min_size=1, max_size=8)


def projection(tags: Iterable[str]) -> str:
    return "".join([",", *(f"{tag}," for tag in tags)])


def come_or_go(
    index: Index[int], there: set[frozenset[str]], tags: frozenset[str], number: int
) -> None:
    """Remove an entry that is there, and add one that isn't."""
    if tags in there:
        index.remove(tags)
        there.remove(tags)
    else:
        index.add(tags, number)
        there.add(tags)


def match_each(index: Index[int], messages: Iterable[frozenset[str]]) -> list[list[int]]:
    """What `Index.match_each` finds for each message, sorted."""
    projections = list(map(projection, messages))
    found: list[list[int]] = []
    while len(found) < len(projections):
        some = index.match_each(projections[len(found) :], 3)
        assert some
        found += map(sorted, some)
    return found


def expected(model: dict[frozenset[str], int], tags: frozenset[str]) -> list[int]:
    return sorted(group for wanted, group in model.items() if wanted <= tags)


@given(
    st.lists(tag_sets, unique=True, max_size=150),
    st.lists(st.frozensets(st.sampled_from("abcdefghxy")), max_size=10),
    st.sampled_from([TINY, SMALL]),
    st.sampled_from([NEVER, ALWAYS]),
)
@settings(max_examples=200)
def test_a_match_is_every_subset_once(
    entries: list[frozenset[str]],
    messages: list[frozenset[str]],
    thresholds: Thresholds,
    lookup: int,
) -> None:
    index: Index[int] = Index(attrs.evolve(thresholds, lookup=lookup))
    model = {tags: n for n, tags in enumerate(entries)}
    for tags, n in model.items():
        index.add(tags, n)
    for message in messages:
        assert sorted(index.match(message)) == expected(model, message)
    assert match_each(index, messages) == [expected(model, message) for message in messages]


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
    narrow = [frozenset(rng.sample(vocabulary, rng.randint(1, 8))) for _ in range(300)]
    assert match_each(index, narrow) == [expected(model, message) for message in narrow]
    gone = rng.sample(sorted(model, key=sorted), len(model) // 2)
    for tags in gone:
        assert index.remove(tags) == model.pop(tags)
    for _ in range(100):
        message = frozenset(rng.sample(vocabulary, rng.randint(1, 30)))
        assert sorted(index.match(message)) == expected(model, message)


@given(
    st.lists(tag_sets, unique=True, min_size=1, max_size=150),
    st.frozensets(st.sampled_from("abcdefghxy")),
    st.lists(st.lists(tag_sets, max_size=5), max_size=30),
    st.sampled_from([TINY, SMALL]),
    st.sampled_from([NEVER, ALWAYS]),
    st.sampled_from([2, 16, 1_024]),
)
@settings(max_examples=200)
def test_a_match_in_steps_finds_what_is_there_all_the_while(
    entries: list[frozenset[str]],
    message: frozenset[str],
    changes: list[list[frozenset[str]]],
    thresholds: Thresholds,
    lookup: int,
    step: int,
) -> None:
    index: Index[frozenset[str]] = Index(attrs.evolve(thresholds, lookup=lookup))
    there = set(entries)
    for tags in entries:
        index.add(tags, tags)
    changed: set[frozenset[str]] = set()
    found: set[frozenset[str]] = set()
    turns = iter(changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mist.index.chunk, "_STEP", step)
        patch.setattr(mist.index.tree, "_NODES", min(step, 16))
        for groups in index.match_in_steps(message):
            found.update(groups)
            for tags in next(turns, ()):  # comes, or goes
                changed.add(tags)
                if tags in there:
                    there.remove(tags)
                    index.remove(tags)
                else:
                    there.add(tags)
                    index.add(tags, tags)
    matching = {tags for tags in set(entries) | changed if tags <= message}
    assert matching - changed <= found <= matching


def test_a_match_in_steps_is_the_same_as_one_at_once() -> None:
    rng = random.Random(11)
    vocabulary = [f"t{n}" for n in range(40)]
    index: Index[frozenset[str]] = Index(SMALL)
    for tags in {frozenset(rng.sample(vocabulary, rng.randint(1, 5))) for _ in range(3_000)}:
        index.add(tags, tags)
    for _ in range(50):
        message = frozenset(rng.sample(vocabulary, rng.randint(1, 30)))
        steps = list(index.match_in_steps(message))
        assert sorted(map(sorted, index.match(message))) == sorted(
            sorted(tags) for step in steps for tags in step
        )
    assert len(steps) > 3


def test_no_step_takes_very_many_hits_of_a_chunk() -> None:
    chunk: Chunk[int] = Chunk()
    for n in range(8_000):
        chunk.insert(n, [f"{n % 20}", f"x{n // 20}", "y"])
    message = frozenset([f"{n}" for n in range(20)] + [f"x{n}" for n in range(400)] + ["y"])
    steps = list(chunk.match_in_steps(message))
    assert sorted(chain(*steps)) == list(range(8_000))
    assert max(map(len, steps)) <= 1_024
    few = frozenset(["7", "y", *[f"x{n}" for n in range(400)]])
    assert [sorted(step) for step in chunk.match_in_steps(few)] == [list(range(7, 8_000, 20))]
    assert list(chain(*chunk.match_in_steps(frozenset("z")))) == []


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


def test_so_many_messages_are_matched_at_once_as_their_work_allows() -> None:
    index: Index[int] = Index()
    for n in range(200):
        index.add(frozenset(["a", f"b{n}"]), n)
    far, wide = projection("xy"), projection(f"x{n}" for n in range(79))
    hits = projection(["a", *(f"b{n}" for n in range(200))])
    assert len(index.match_each([far] * 20, 10)) == 10
    assert len(index.match_each([wide] * 20, 44)) == 4
    assert list(map(len, index.match_each([hits] * 3, 1))) == [200]
    assert index.match_each([far], 1) == [()]
    assert index.match_each([], 10) == []


def test_places_that_are_looked_at_count_as_work() -> None:
    """Messages that match nothing, but come near much: a thousand entries lack one tag."""
    index: Index[int] = Index()
    words = [f"w{n}" for n in range(12)]
    for n, some in enumerate(combinations(words, 3)):
        index.add(frozenset([*some, "lacks"]), n)
        index.add(frozenset([*some[:2], f"lacks{n}"]), 1_000 + n)
    near = projection(words[:10])
    assert index.match_each([near], 1) == [()]
    assert len(index.match_each([near] * 100, 100)) < 30


def test_narrow_messages_look_subsets_up_where_chunks_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index: Index[int] = Index(Thresholds(lookup=512))
    rng = random.Random(4)
    words = [f"w{n}" for n in range(40)]
    model = {frozenset(rng.sample(words, rng.randint(2, 4))): n for n in range(20_000)}
    for tags, n in model.items():
        index.add(tags, n)
    visits: list[Chunk[int]] = []
    visit = Chunk.match

    def visited(chunk: Chunk[int], tags: frozenset[str], groups: list[int]) -> None:
        visits.append(chunk)
        visit(chunk, tags, groups)

    monkeypatch.setattr(Chunk, "match", visited)
    for _ in range(50):
        message = frozenset([*rng.sample(words, 4), "unknown"])
        assert sorted(index.match(message)) == expected(model, message)
        assert match_each(index, [message]) == [expected(model, message)]
    assert not visits
    message = frozenset(rng.sample(words, 20))
    assert sorted(index.match(message)) == expected(model, message)
    assert visits


def check_structure(index: Index[int]) -> None:
    """Every entry is in one place, where a match or a removal gets to; nothing is kept empty."""
    entries = {key: group for shard in index._groups for key, group in shard.items()}
    found: list[Key] = []
    packed: list[int] = []
    nodes: list[tuple[Node[int], set[str]]] = []
    uses = Counter(name for key in entries for name in key)
    for shard in index._tags.table:
        for name, tag in shard.items():
            assert (name, tag.uses, tag.rarity) == (tag.name, uses[name], uses[name].bit_length())
            if isinstance(tag, Branch):
                nodes.append((tag, {name}))
            elif tag.listed is not None:
                found += check_listed(tag.listed, {name})
    for node, path in nodes:
        assert node or node.chunk
        for below, child in node.items():
            assert below not in path
            if below is None:
                assert isinstance(child, tuple)
                assert set(child) == path
                found.append(child)
            elif isinstance(child, Node):
                nodes.append((child, path | {below}))
            else:
                found += check_listed(child, path | {below})
        if node.chunk is not None:
            check_chunk(node.chunk, path, entries)
            packed += [group for group in node.chunk.slots if group is not None]
    assert len(set(found)) == len(found)
    assert sorted([entries[key] for key in found] + packed) == sorted(entries.values())
    assert index._tree._subsets._entries == Counter(map(len, entries))
    statistics = index.statistics()
    chunks = sum(node.chunk is not None for node, _ in nodes)
    assert len(entries) == len(index) == statistics.entries
    assert len(uses) == statistics.tags
    assert (statistics.nodes, statistics.chunks) == (len(nodes), chunks)


def check_listed(child: Key | list[Key], path: set[str]) -> list[Key]:
    listed = child if isinstance(child, list) else [child]
    assert len(listed) > isinstance(child, list), "a lone entry needs no list"
    for key in listed:
        assert path <= set(key)
    return listed


def check_chunk(chunk: Chunk[int], path: set[str], entries: dict[Key, int]) -> None:
    assert len(chunk) > 0
    assert all(posting.any() for posting in chunk.postings.values())
    assert path.isdisjoint(chunk.postings)
    bitmaps = [chunk.vacant, *chunk.planes, *chunk.postings.values()]
    assert {len(bitmap) for bitmap in bitmaps} == {chunk.capacity}
    assert chunk.vacant.count(0) == len(chunk)
    tags = {group: set(key) for key, group in entries.items()}
    for slot, vacant in enumerate(chunk.vacant):
        held = {tag for tag, posting in chunk.postings.items() if posting[slot]}
        need = sum(plane[slot] << n for n, plane in enumerate(chunk.planes))
        if vacant:
            assert (need, held) == (1, set())
            assert slot >= len(chunk.slots) or chunk.slots[slot] is None
        else:
            group = chunk.slots[slot]
            assert group is not None
            assert need == len(held)
            assert path | held == tags[group]


class IndexMachine(RuleBasedStateMachine):
    """Adding, removing and matching in any order against a dict."""

    thresholds = attrs.evolve(TINY, lookup=NEVER)

    def __init__(self) -> None:
        super().__init__()
        self.index: Index[int] = Index(self.thresholds)
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
        assert match_each(self.index, [tags]) == [expected(self.model, tags)]

    @rule(tags=tag_sets)
    def get(self, tags: frozenset[str]) -> None:
        assert self.index.get(tags) == self.model.get(tags)

    @invariant()
    def sizes_agree(self) -> None:
        assert len(self.index) == len(self.model)
        assert frozenset(
            tag.name for some in self.index.tag_slices() for tag in some
        ) == frozenset().union(*self.model)
        check_structure(self.index)

    def teardown(self) -> None:
        for tags, group in self.model.items():
            assert self.index.remove(tags) == group
        check_empty(self.index)


class LookingUp(IndexMachine):
    """The same, where every match that would visit a chunk looks all subsets up."""

    thresholds = attrs.evolve(TINY, lookup=ALWAYS)


class Far(IndexMachine):
    """The same, where matches look their own tags up in nodes, never the nodes' in them."""

    thresholds = attrs.evolve(TINY, lookup=NEVER, near=0)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=40)
TestLookingUp = LookingUp.TestCase
TestLookingUp.settings = settings(max_examples=60, stateful_step_count=40)
TestFar = Far.TestCase
TestFar.settings = settings(max_examples=60, stateful_step_count=40)


def check_empty(index: Index[int]) -> None:
    statistics = index.statistics()
    assert (statistics.entries, statistics.tags) == (0, 0)
    assert (statistics.nodes, statistics.chunks) == (0, 0)
    assert not any(index._tags.table)
    assert not any(index._groups)


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


def test_removal_finds_what_was_filed_when_other_tags_were_rare() -> None:
    # What is popular moves on while entries stay where they were filed.
    rng = random.Random(11)
    index: Index[int] = Index()
    words = [f"w{n}" for n in range(90)]
    model: dict[frozenset[str], int] = {}
    for n in range(12_000):
        popular = n // 200
        tags = frozenset(rng.sample(words[popular : popular + 30], rng.randint(2, 4)))
        if tags not in model:
            model[tags] = n
            index.add(tags, n)
    assert index.statistics().chunks > 0
    for tags in list(model)[::2]:
        assert index.remove(tags) == model.pop(tags)
    check_structure(index)
    for _ in range(50):
        message = frozenset(rng.sample(words, 20))
        assert sorted(index.match(message)) == expected(model, message)


class Subscribers:
    """A group that can be watched."""


def test_the_collector_has_nothing_to_do() -> None:
    rng = random.Random(2)
    index: Index[Subscribers] = Index()
    words = [f"w{n}" for n in range(50)]
    for tags in {frozenset(rng.sample(words, 3)) for _ in range(5_000)}:
        index.add(tags, Subscribers())
    watched = [ref(group) for group in index.match(frozenset(words))]
    assert len(watched) == len(index)
    gc.collect()
    assert not any(gc.is_tracked(key) for shard in index._groups for key in shard)
    gc.disable()
    try:
        del index
        assert not any(group() for group in watched)
    finally:
        gc.enable()


def test_an_entry_needs_a_tag() -> None:
    with pytest.raises(ValueError, match="at least one tag"):
        Index[int]().add(frozenset(), 1)


def test_freed_slots_of_a_chunk_are_used_again() -> None:
    chunk: Chunk[int] = Chunk()
    for n in range(70):
        chunk.insert(n, ["a", f"b{n}"])
    assert chunk.capacity == 128
    for n in range(0, 70, 2):
        assert chunk.discard(["a", f"b{n}"])
    for n in range(35):
        chunk.insert(100 + n, ["c", f"d{n}"])
    assert len(chunk.slots) == 70
    assert chunk.capacity == 128
    found: list[int] = []
    chunk.match(frozenset({"c", "d3", "d8", "b1", "a", "b2"}), found)
    assert sorted(found) == [1, 103, 108]


def test_a_chunk_discards_nothing_but_just_these_tags() -> None:
    chunk: Chunk[int] = Chunk()
    chunk.insert(1, ["a", "b"])
    chunk.insert(2, ["b", "c", "d"])
    others = (["a"], ["b"], ["a", "c"], ["a", "b", "c"], ["b", "c"], ["x"], list("abcdefgh"))
    for tags in others:
        assert not chunk.discard(tags)
    assert len(chunk) == 2
    assert chunk.discard(["d", "b", "c"])
    assert not chunk.discard(["d", "b", "c"])
    found: list[int] = []
    chunk.match(frozenset("abcd"), found)
    assert found == [1]


twelve = st.sampled_from("abcdefghijkl")


@given(st.lists(st.frozensets(twelve, min_size=1), unique=True), st.frozensets(twelve))
def test_a_chunk_counts_and_excludes_alike(
    sets: list[frozenset[str]], tags: frozenset[str]
) -> None:
    # What has many other tags counts: by three planes if its sets are short, else by more.
    short = [{f"other{n}"} for n in range(80)]
    long = [{f"other{n}" for n in range(80)}]
    for padding in ([], short, long):
        chunk: Chunk[int] = Chunk()
        for others in padding:
            chunk.insert(-1, others)
        kept = [wanted for wanted in sets if padding is not short or len(wanted) <= 7]
        for n, wanted in enumerate(kept):
            chunk.insert(n, wanted)
        found: list[int] = []
        chunk.match(tags, found)
        assert sorted(found) == [n for n, wanted in enumerate(kept) if wanted <= tags]


def test_entries_with_more_tags_than_planes_can_count_get_more_planes() -> None:
    chunk: Chunk[int] = Chunk()
    many = [f"t{n}" for n in range(40)]
    chunk.insert(1, many)
    chunk.insert(2, many[:7])
    for size, wanted in ((40, [1, 2]), (39, [2]), (7, [2]), (6, [])):
        found: list[int] = []
        chunk.match(frozenset(many[:size]), found)
        assert sorted(found) == wanted


def test_slices_hold_every_group_and_every_tag_once() -> None:
    index: Index[int] = Index()
    for n in range(1_000):
        index.add(frozenset([f"t{n % 7}", f"u{n}"]), n)
    assert sorted(n for some in index.slices() for n in some) == list(range(1_000))
    uses = [(tag.name, tag.uses) for some in index.tag_slices() for tag in some]
    assert Counter(dict(uses)) == Counter(f"t{n % 7}" for n in range(1_000)) + Counter(
        f"u{n}" for n in range(1_000)
    )
    assert len(uses) == 1_007


def test_slices_may_be_looked_through_while_entries_come_and_go() -> None:
    index: Index[int] = Index()
    for n in range(1_000):
        index.add(frozenset([f"t{n}"]), n)
    seen: list[int] = []
    for turn, some in enumerate(index.slices()):
        seen += some
        index.add(frozenset([f"new{turn}"]), -1)
        if turn < 100:
            index.remove(frozenset([f"t{999 - turn}"]))
    assert len(seen) == len(set(seen) - {-1}) + seen.count(-1)
    assert set(range(900)) <= set(seen)
