"""Blocks: what goes in comes out, whole or the part asked for; what is damaged is refused."""

from collections import Counter
from itertools import accumulate, pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.history import HistoryDamaged, Publication, Selection
from mist.history.block import Block
from mist.history.clock import Clock
from mist.history.columns import INDEXES, fixed, is_one, is_zero, pack, places, unpack, unpack_all
from mist.history.encoding import encode_blocks, encode_joined, encode_stored, takes_long
from mist.history.postings import Postings, pack_postings, tag_hash, terms
from mist.history.tag_lists import TagLists
from tests.history.messages import block_of, numbered, one, plain, run

tag_sets = st.frozensets(st.sampled_from("abcdeÄ"), min_size=1, max_size=4)
names = ["a", "b", "ab", "ba", "aa", "Ä", "/t", "/t/u", "/t/*", ".s", ".s.u", ".s.*", "..t"]
addressed = st.frozensets(st.sampled_from(names[:-3]), min_size=1, max_size=4)
lines = st.binary(max_size=6).map(lambda data: data.replace(b"\n", b""))
runs = st.builds(
    lambda tags, data: run(",".join(tags), *data), tag_sets, st.lists(lines, min_size=1, max_size=4)
)
common = {
    "time": st.integers(0, 10**9).map(lambda number: number / 1000),
    "publisher": st.sampled_from(["", "p", "ü"]),
    "audience": st.none() | st.sampled_from(["", "users=1"]),
    "meta": st.none() | st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=2),
}
framable = st.builds(Publication.of_runs, st.lists(runs, min_size=1, max_size=4), **common)
unframable = st.builds(
    Publication.of_runs,
    st.lists(
        st.builds(lambda tags, data: run(",".join(tags), data), tag_sets, st.binary(max_size=6)),
        min_size=1,
        max_size=2,
    ),
    framable=st.just(False),
    **common,
)
groups = st.lists(framable | unframable, min_size=1, max_size=4)
selections = st.frozensets(tag_sets, min_size=1, max_size=3).map(Selection)
firsts = st.integers(1, 2**53 - 1000)


def messages(stored):
    return [message for each in stored for message in each.messages()]


@given(groups, firsts)
def test_block_gives_back_what_it_was_made_of(group, first):
    row = block_of(group, first)
    found = Block(row, TagLists()).select()
    assert [plain(each.entries) for each in found] == [each.batch.runs for each in group]
    everything = numbered(group, first)
    assert messages(found) == everything
    assert [each.framable for each in found] == [each.batch.framable for each in group]
    assert (row.head.first, row.head.start, row.head.last) == (first, first, everything[-1].id)
    assert row.head.messages == len(everything)
    assert Block(row, TagLists()).check() is None


@given(groups, st.integers(1, 8))
def test_many_messages_are_several_blocks(group, most):
    clock = Clock()
    times = [clock.stamp(each.time) for each in group]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mist.history.encoding._RUNS", most)
        rows = encode_blocks(group, times)
    blocks = [Block(row, TagLists()) for row in rows]
    assert messages([each for block in blocks for each in block.select()]) == numbered(group)
    assert [block.check() for block in blocks] == [None] * len(blocks)
    for before, row in pairwise(rows):
        assert row.head.first == before.head.last + 1
    for block in blocks:  # of more only where some of them are several messages
        assert len(block.columns.counts) <= most or max(block.columns.counts) > 1


@given(groups, st.none() | selections, st.data())
def test_select_is_the_plain_filter(group, selection, data):
    everything = numbered(group)
    block = Block(block_of(group), TagLists())
    after = data.draw(st.integers(0, len(everything) + 1))
    upto = data.draw(st.integers(0, len(everything) + 1))
    limit = data.draw(st.integers(1, len(everything) + 1))
    expected = [
        message
        for message in everything
        if after < message.id <= upto
        and (selection is None or any(tags <= message.tags for tags in selection.alternatives))
    ]
    assert messages(block.select(selection, after, upto, limit)) == expected[:limit]
    counted = [
        first + offset
        for first, count in block.count(selection, after, upto)
        for offset in range(count)
    ]
    assert counted == [message.id for message in expected]


@given(groups, st.data())
def test_what_is_left_of_a_block_keeps_its_ids(group, data):
    stored = Block(block_of(group), TagLists()).select()
    ids = [message.id for message in messages(stored)]
    kept = data.draw(st.sets(st.sampled_from(ids), min_size=1))
    left = []
    for each in stored:
        for entry_first, entry in zip(each.firsts, each.entries, strict=True):
            if entry_first in kept:
                left.append(attrs.evolve(each, entries=[entry], firsts=[entry_first]))
    if not left:
        return
    row = encode_stored(left, 1, ids[-1])
    assert messages(Block(row, TagLists()).select()) == messages(left)
    assert (row.head.first, row.head.last) == (1, ids[-1])
    assert row.head.start == left[0].firsts[0]
    assert Block(row, TagLists()).check() is None


@given(groups, st.data())
def test_every_changed_byte_is_noticed(group, data):
    row = block_of(group)
    place = data.draw(st.integers(0, len(row.body) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    body = row.body[:place] + bytes([row.body[place] ^ bit]) + row.body[place + 1 :]
    with pytest.raises(HistoryDamaged):
        Block(attrs.evolve(row, body=body), TagLists())


@given(st.binary(max_size=60), groups)
def test_any_bytes_with_the_right_checksum_are_a_block_or_damaged(body, group):
    from mist.history.layout import checksum

    row = block_of(group)
    row = attrs.evolve(row, body=body, checksum=checksum(row.hashes, body))
    with pytest.raises(HistoryDamaged):
        Block(row, TagLists())


def test_thousand_messages_of_one_run_are_one_run_inside():
    publication = Publication.of_runs([run("a", *["x"] * 1000)], 1.0)
    row = block_of([publication])
    assert len(row.body) < 2200
    (stored,) = Block(row, TagLists()).select()
    assert plain(stored.entries) == publication.batch.runs


def test_data_that_may_hold_lf_can_not_stand_in_a_run():
    with pytest.raises(ValueError, match="LF"):
        block_of([Publication.of_runs([run("a", "x", "y")], 1.0, framable=False)])


def test_times_keep_their_microseconds():
    times = [1234.567891, 1_700_000_000.000001, 1_700_000_000.999999]
    row = block_of([Publication.of_runs([run("a", "")], time) for time in times])
    assert [each.time for each in Block(row, TagLists()).select()] == times


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_columns_give_back_their_values(values):
    code, raw = pack(values)
    assert list(unpack(code, raw, len(values))) == values


@pytest.mark.parametrize(
    ("values", "size"), [([0, 0], 0), ([0, 255], 2), ([256], 2), ([65536], 4), ([2**32], 8)]
)
def test_columns_are_as_narrow_as_they_can_be(values, size):
    assert len(pack(values)[1]) == size


@given(st.lists(st.sampled_from([0, 1, 256, 257, 65_793, 2**40])), st.integers(0, 2**40))
def test_columns_tell_where_a_value_stands(values, other):
    column = unpack(*pack(values), len(values))
    for wanted in {*values, other}:
        assert list(places(column, wanted)) == [
            n for n, each in enumerate(values) if each == wanted
        ]
    assert is_zero(column) == (not any(values))
    assert is_one(column) == (set(values) == {1})


@pytest.mark.parametrize(("code", "raw", "length"), [("B", b"x", 2), ("Z", b"x", 1), ("", b"", 1)])
def test_column_of_another_length_is_refused(code, raw, length):
    with pytest.raises(ValueError, match="length"):
        unpack(code, raw, length)


@given(
    st.lists(addressed, min_size=1, max_size=60, unique=True),
    st.frozensets(st.sampled_from(names), min_size=1, max_size=3),
)
def test_postings_lead_to_the_lists_that_hold_every_tag(sets, wanted):
    lists = [",".join(sorted(tags)).encode() for tags in sets]
    text = b"\n".join(lists)
    hashes, posted, packed = pack_postings(text)
    names = {term for each in lists for term in terms(each)}
    assert Counter(unpack_all(INDEXES, hashes)) == Counter(map(tag_hash, names))
    postings = Postings(hashes, posted, packed, text)
    found, _ = postings.find({tag_hash(tag): tag for tag in map(str.encode, wanted)})
    expanded = [frozenset(term.decode() for term in terms(each)) for each in lists]
    expected = [number for number, tags in enumerate(expanded) if wanted <= tags]
    assert list(found) == expected
    # Without the hashes, the lists alone are searched; where that is exact, they are handed out.
    postings = Postings(None, posted, packed, text)
    found, _ = postings.find({tag_hash(tag): tag for tag in map(str.encode, wanted)})
    assert list(found) == expected
    assert all(lists[number] == each for number, each in postings.found.items())


@given(
    st.lists(tag_sets, min_size=1, max_size=40, unique=True),
    st.frozensets(st.sampled_from("abcde"), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_tags_are_found_however_often_they_are_a_part_of_others(sets, wanted, missed, parts):
    lists = [",".join(sorted({*tags, *(tag * 2 for tag in tags)})).encode() for tags in sets]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mist.history.postings._FEW_MISSED", missed)
        patch.setattr("mist.history.postings._FEW_PARTS", parts)
        postings = Postings(None, b"", (pack([]), pack([]), [], []), b"\n".join(lists))
        found, _ = postings.find({tag_hash(tag): tag for tag in map(str.encode, wanted)})
        assert list(found) == [number for number, tags in enumerate(sets) if wanted <= tags]


@given(st.lists(addressed, min_size=1, max_size=20, unique=True), st.data())
def test_blocks_of_former_versions_have_postings_of_all_tags(sets, data):
    lists = [",".join(sorted(tags)).encode() for tags in sets]
    terms_of = [terms(each) for each in lists]
    names = sorted({term for each in terms_of for term in each}, key=tag_hash)
    numbers = [[n for n, each in enumerate(terms_of) if name in each] for name in names]
    ends = pack(list(accumulate(map(len, numbers))))
    packed = ends, pack([n for each in numbers for n in each]), [], []
    postings = Postings(fixed("I", list(map(tag_hash, names))), None, packed, b"\n".join(lists))
    wanted = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=3))
    found, unsure = postings.find({tag_hash(tag): tag for tag in wanted})
    assert unsure
    assert list(found) == [n for n, each in enumerate(terms_of) if wanted <= set(each)]


@pytest.mark.parametrize("size", [1, 50])
def test_postings_of_many_lists_are_made_in_pieces(monkeypatch, size):
    lists = [f"/x/{n % 5},a,b{n % 7},c{n}" + (",d" * (n % 3 > 0)) for n in range(400)]
    text = "\n".join(lists).encode()
    whole = pack_postings(text)
    monkeypatch.setattr("mist.history.postings._PIECE", size)
    assert pack_postings(text) == whole


@given(st.lists(groups, min_size=1, max_size=4), st.data())
def test_blocks_are_joined_as_if_their_messages_had_come_together(found, data):
    blocks, expected, first = [], [], 1
    for n, group in enumerate(found):
        later = [attrs.evolve(each, time=each.time + n * 10**7) for each in group]
        block = Block(block_of(later, first), TagLists())
        first = block.head.last + 1
        every = block.select()
        # Ids are left out in the middle and at the ends.
        left = [each for each in every if data.draw(st.booleans()) or each is every[-1]]
        row = encode_stored(left, block.head.first, block.head.last)
        blocks.append(Block(row, TagLists()))
        expected += left
    row = encode_joined([(each.head, each.columns) for each in blocks])
    again = encode_stored(expected, blocks[0].head.first, blocks[-1].head.last)
    assert row == again
    assert messages(Block(row, TagLists()).select()) == messages(expected)


def test_tags_that_share_a_hash_are_told_apart():
    # Both have the CRC-32 4ddb0c25.
    one, other = "plumless", "buckeroo"
    assert tag_hash(one.encode()) == tag_hash(other.encode())
    group = [
        Publication.of_runs([run(tag, tag) for tag in [one, other, *map(str, range(50))]], 1.0)
    ]
    block = Block(block_of(group), TagLists())
    for tags, expected in (({other}, [2]), ({one}, [1]), ({one, other}, [])):
        found = block.select(Selection([frozenset(tags)]))
        assert [message.id for message in messages(found)] == expected


def test_a_tag_that_shares_its_hash_with_what_is_derived_is_told_apart():
    # `lectppfpz` has the CRC-32 of what stands for the topic.
    others = [f"n{n}" for n in range(50)]
    lists = ["lectppfpz", "/t/67259", "/t/67259,lectppfpz", *others]
    block = Block(
        block_of([Publication.of_runs([run(each, each) for each in lists], 1.0)]), TagLists()
    )
    for asked, expected in (("lectppfpz", [1, 3]), ("/t/67259", [2, 3]), ("n7", [11])):
        found = block.select(Selection.asked([frozenset([asked])]))
        assert [message.id for message in messages(found)] == expected


def test_tag_lists_of_one_message_each_are_not_kept():
    once = Publication.of_runs([run(f"order:{n}", "x") for n in range(100)], 1.0)
    often = Publication.of_runs([run(f"room:{n % 20}", "x") for n in range(100)], 1.0)
    tag_lists = TagLists()
    for publication, kept in ((once, 0), (often, 20)):
        (stored,) = Block(block_of([publication]), tag_lists).select()
        assert plain(stored.entries) == publication.batch.runs
        assert [entry[0].tags for entry in stored.entries] == [
            frozenset([tags.decode()]) for tags, _, _ in publication.batch.runs
        ]
        assert len(tag_lists) == kept


def test_tag_lists_that_never_come_back_are_forgotten_and_those_in_use_are_not():
    tag_lists = TagLists()
    used = tag_lists.get(b"used")
    for n in range(30_000):
        tag_lists.get(b"%d" % n)
        if n % 1_000 == 0:
            assert tag_lists.get(b"used") is used
    assert tag_lists.get(b"0").tags == {"0"}
    assert 7_000 < len(tag_lists) < 20_000


def test_once_full_the_cache_of_tag_lists_keeps_its_size_and_what_is_used():
    tag_lists = TagLists()
    used = tag_lists.get(b"used")
    sizes = []
    for n in range(60_000):
        tag_lists.get(b"a,%d" % n)
        if not n % 1_000:
            assert tag_lists.get(b"used") is used
            sizes.append(len(tag_lists))
    full = sizes[20:]
    assert min(full) > 0.95 * max(full)
    assert max(full) < 20_000


def test_a_tag_list_too_large_for_the_cache_is_read_all_the_same():
    tag_lists = TagLists(max_bytes=10_000)
    for size in (20_000, 100, 20_000, 100):
        assert tag_lists.get(b"a" * size).canonical == b"a" * size
    assert len(tag_lists) <= 2


def test_what_is_many_takes_long_however_small_it_is():
    assert not takes_long([one("a")] * 1_000)
    assert takes_long([one("a")] * 1_001)


@pytest.mark.parametrize("address", [".s.%d", "/t/%d"])
def test_many_addresses_take_long_and_one_that_comes_often_does_not(address: str):
    each = [run(address % number, "x") for number in range(1_000)]
    assert takes_long([Publication.of_runs(each, 1.0)])
    assert takes_long([Publication.of_runs(each[place::2], 1.0) for place in range(2)])
    assert not takes_long([Publication.of_runs(each[:200] * 5, 1.0)])
    others = [run(f"s{number}", "x") for number in range(1_000)]
    assert not takes_long([Publication.of_runs(others, 1.0)])
