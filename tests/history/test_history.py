"""The contract of `History`, over every member of the family."""

import math
import tempfile

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.attributes import Attributes
from mist.errors import StartupError
from mist.history import (
    Durability,
    Erasure,
    HistoryUnavailable,
    Key,
    Policy,
    Position,
    Rule,
    Selection,
    Trimmed,
)
from mist.history import block as block_module
from mist.history.idempotency import key_name
from mist.history.opening import open_history
from mist.history.visibility import may_get
from tests.history.messages import (
    ids,
    of_part,
    one,
    plain,
    publication,
    replay,
    run,
    select,
    some,
    texts,
)
from tests.history.test_block import groups, selections, tag_sets
from tests.history.test_model import small_numbers

NOTHING_KEPT = Policy(max_age=None, max_bytes=0)


async def trim(history, policy, now=1000.0):
    """Retention to its end; how many messages went."""
    removed = 0
    while True:
        step = await history.trim(policy, now)
        removed += step.messages
        if not step.more:
            return removed


# ids and order


async def test_new_log_is_empty(history):
    position = await history.position()
    assert position == Position(position.epoch, 1, 0, 0)
    assert len(position.epoch) == 16
    assert await replay(history) == []
    assert await history.last(None, 5) == 0
    assert await history.recovered(None, 0)
    assert not await history.recovered(None, 1)
    assert await history.verify() == []


async def test_ids_begin_at_one_and_are_consecutive(history):
    assert await history.append([some("a", 3), one("b")]) == 1
    assert await history.append([one("c")]) == 5
    assert ids(await replay(history)) == [1, 2, 3, 4, 5]
    assert (await history.position()).newest == 5


async def test_concurrent_appends_get_ids_in_the_order_called(history):
    firsts = {}

    async def append(number):
        firsts[number] = await history.append([one("a", str(number))])

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(append, number)
    messages = await replay(history)
    assert ids(messages) == list(range(1, 21))
    assert {int(each.data): each.id for each in messages} == firsts


async def test_everything_about_a_message_comes_back(history):
    entry = run("a,Ä", b"\x00\xff data, with \n a line end")
    meta = {"reply": b"x\xff", "": b""}
    await history.append(
        [
            publication(entry, time=1234.567891, publisher="f00", framable=False),
            publication(run("b", "1", "", "3"), time=1235.0, audience="users=1", meta=meta),
        ]
    )
    page = await history.read()
    first, second = page.stored
    assert plain(first.entries) == [entry]
    assert (first.time, first.publisher, first.framable) == (1234.567891, "f00", False)
    assert (first.audience, first.meta) == (None, None)
    assert plain(second.entries) == [run("b", "1", "", "3")]
    assert (second.audience, second.meta, second.framable) == ("users=1", meta, True)
    assert [list(each.firsts) for each in page.stored] == [[1], [2]]
    assert page.complete
    assert page.count == 4


async def test_runs_come_back_as_runs(history):
    await history.append([some("a", 1000)])
    ((entry,),) = [each.entries for each in (await history.read()).stored]
    assert plain([entry]) == [run("a", *map(str, range(1000)))]


async def test_times_never_go_back(history):
    await history.append([one("a", time=50.0), one("a", time=40.0)])
    await history.append([one("a", time=10.0), one("a", time=60.0)])
    assert [message.time for message in await replay(history)] == [50.0, 50.0, 50.0, 60.0]


@pytest.mark.parametrize("publications", [[], [publication()]])
async def test_appending_nothing_is_refused(history, publications):
    with pytest.raises(ValueError, match="nothing"):
        await history.append(publications)
    assert (await history.position()).newest == 0


async def test_what_was_cancelled_before_it_began_is_not_there(history):
    with trio.CancelScope() as scope:
        scope.cancel()
        await history.append([one("a")])
    assert (await history.position()).newest == 0
    assert await history.append([one("b")]) == 1


async def test_closed_log_refuses_and_closes_again(url):
    history = await open_history(url)
    await history.close()
    await history.close()
    for attempt in (history.append([one("a")]), history.read(), history.position()):
        with pytest.raises(HistoryUnavailable):
            await attempt


# reading


@pytest.fixture
async def filled(history):
    """Ids 1 to 9 over three blocks."""
    await history.append([publication(run("a", "1", "2", "3"), run("a,b", "4"))])
    await history.append([one("b,c", "5"), publication(run("a,b,c", "6", "7"), publisher="p")])
    await history.append([some("d", 2)])
    return history


@pytest.mark.parametrize(
    ("alternatives", "expected"),
    [
        (["a"], [1, 2, 3, 4, 6, 7]),
        (["a,b"], [4, 6, 7]),
        (["b,c", "d"], [5, 6, 7, 8, 9]),
        (["a", "a,b"], [1, 2, 3, 4, 6, 7]),
        (["a,d"], []),
        (["ab"], []),
        (["d"] + [f"x{n}" for n in range(100)], [8, 9]),
    ],
)
async def test_replay_has_exactly_the_supersets(filled, alternatives, expected):
    for limit in (1, 2, 3, 100):
        assert ids(await replay(filled, select(*alternatives), limit=limit)) == expected


async def test_replay_keeps_to_its_bounds(filled):
    for after in range(-1, 12):
        for upto in range(11):
            expected = [each for each in range(1, 10) if after < each <= upto]
            for limit in (1, 2, 100):
                found = await replay(filled, after=after, upto=upto, limit=limit)
                assert ids(found) == expected


async def test_page_ends_with_the_entry_that_reaches_its_bytes(filled):
    page = await filled.read(max_bytes=1)
    assert ids(page.messages()) == [1, 2, 3]
    assert (page.after, page.complete) == (3, False)
    assert ids(await replay(filled, max_bytes=1)) == list(range(1, 10))


async def test_page_that_begins_within_a_large_run_leaves_nothing_out(history):
    await history.append([publication(run("a", *"0123456789"), run("b", ""), run("a", ""))])
    size = len("publish a 0\n")
    for after in range(10):
        for max_bytes in range(size, 14 * size, size // 2):
            page = await history.columns(after=after, max_bytes=max_bytes)
            last = page.parts[-1].last
            assert [each.id for part in page.parts for each in of_part(part)] == [
                *range(after + 1, last + 1)
            ]
            assert page.after == last
            found = await replay(history, after=after, max_bytes=max_bytes)
            assert ids(found) == [*range(after + 1, 13)]
            found = await replay(history, select("a"), after=after, max_bytes=max_bytes)
            assert ids(found) == [*range(after + 1, 11), 12]


async def test_page_needs_room(history):
    with pytest.raises(ValueError, match="room"):
        await history.read(limit=0)


async def test_part_of_a_run_has_its_own_ids_and_wire(filled):
    page = await filled.read(after=1, limit=1)
    (stored,) = page.stored
    assert list(stored.firsts) == [2]
    assert plain(stored.entries) == [run("a", "2")]


async def test_read_does_not_go_beyond_the_newest(filled):
    page = await filled.read(upto=1000)
    assert page.complete
    assert page.after == 9
    await filled.append([one("a")])
    assert ids((await filled.read(after=page.after)).messages()) == [10]


@pytest.mark.parametrize("n", range(8))
async def test_last_n_are_exactly_those(filled, n):
    for alternatives, all_of_them in ((["a"], [1, 2, 3, 4, 6, 7]), (["b,c", "d"], [5, 6, 7, 8, 9])):
        selection = select(*alternatives)
        for upto in range(11):
            after = await filled.last(selection, n, upto=upto)
            expected = [each for each in all_of_them if each <= upto][-n if n else 10 :]
            assert ids(await replay(filled, selection, after=after, upto=upto)) == expected


@pytest.mark.parametrize("n", range(5))
async def test_last_n_are_those_that_the_reader_may_get(history, n):
    for audience in (None, "users=1", "users=2", "site=x", "site=x&users=1", "users=1;2"):
        for tags in ("a", "a,b", "a,/global/c"):
            await history.append([publication(run(tags, "1", "2"), audience=audience)])
    everything = await replay(history)
    for attributes in ("user=1", "user=2", "site=x", "site=y", "site=x&user=1"):
        reader = Attributes.parse(attributes)
        for alternatives in ("a", "b"), ("a,b",), ("/global/c",):
            wanted = [frozenset(each.split(",")) for each in alternatives]
            expected = [
                each.id
                for each in everything
                if may_get(each.audience, each.tags, reader)
                and any(asked <= each.tags for asked in wanted)
            ]
            after = await history.last(select(*alternatives), n, attributes=reader)
            found = [each for each in expected if each > after]
            assert found == expected[-n if n else len(expected) :]


async def test_many_tag_lists_in_one_block(history):
    await history.append([publication(*(run(f"all,n{n},m{n % 7}", str(n)) for n in range(2000)))])
    assert texts(await replay(history, select("n1234"))) == ["1234"]
    assert texts(await replay(history, select("all,n1234,m2"))) == ["1234"]
    assert texts(await replay(history, select("n1234,m3"))) == []
    assert ids(await replay(history, select("all,m3"))) == list(range(4, 2001, 7))
    assert len(await replay(history, select("all"))) == 2000


async def test_hundred_thousand_messages(history):
    for block in range(20):
        await history.append(
            [publication(*(run(f"all,{n % 10}", *"01234") for n in range(1000)), time=block)]
        )
    assert ids(await replay(history)) == list(range(1, 100_001))
    found = await replay(history, select("7,all"))
    assert len(found) == 10_000
    assert all(message.tags == {"all", "7"} for message in found)
    assert await history.last(select("7"), 7) == 99_938  # 5 in the last run, 2 in the one before
    assert await history.verify() == []


async def test_readers_see_the_same_at_once_and_while_it_grows(history):
    seen = {}

    async def follow(name):
        after = 0
        found = seen[name] = []
        while after < 120:
            page = await history.read(select("a"), after=after, limit=7)
            found += ids(page.messages())
            after = page.after
            await trio.lowlevel.checkpoint()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, "one")
            nursery.start_soon(follow, "other")
            for _ in range(20):
                await history.append([some("a", 3), publication(run("b", "", "", ""))])
    expected = [number for number in range(1, 121) if (number - 1) % 6 < 3]
    assert seen == {"one": expected, "other": expected}


# reading columns


async def compare(url, appends, erased, selection, bounds):
    """Every page of columns is the same page of wires."""
    after, upto, limit, max_bytes = bounds
    async with await open_history(url) as history:
        for group in appends:
            await history.append(group)
        if erased is not None:
            await history.erase(Erasure(erased))
        complete = False
        while not complete:
            asked = {"after": after, "upto": upto, "limit": limit, "max_bytes": max_bytes}
            expected = await history.read(selection, **asked)
            page = await history.columns(selection, **asked)
            found = [message for part in page.parts for message in of_part(part)]
            assert found == list(expected.messages())
            assert (page.after, page.complete) == (expected.after, expected.complete)
            assert page.count == expected.count
            assert page.size == sum(each.size for each in expected.stored)
            packed = await history.read(selection, packed=True, **asked)
            assert (packed.after, packed.complete) == (expected.after, expected.complete)
            assert packed.count == expected.count
            assert [*packed.messages()] == [*expected.messages()]
            after, complete = page.after, page.complete


columns_read = given(
    st.lists(groups, min_size=1, max_size=4),
    st.none() | tag_sets,
    st.none() | selections,
    st.tuples(
        st.integers(-1, 12), st.none() | st.integers(0, 30), st.integers(1, 12), st.integers(1, 200)
    ),
)


@columns_read
def test_columns_of_memory_are_what_is_read(appends, erased, selection, bounds):
    with small_numbers():
        trio.run(compare, "memory://", appends, erased, selection, bounds)


@columns_read
@settings(max_examples=25)
def test_columns_of_sqlite_are_what_is_read(appends, erased, selection, bounds):
    with small_numbers(), tempfile.TemporaryDirectory() as folder:
        trio.run(compare, f"sqlite:///{folder}/h.db", appends, erased, selection, bounds)


async def test_columns_end_as_a_page_does(filled):
    for after in range(-1, 12):
        for upto in (None, *range(11)):
            for limit in (1, 2, 100):
                asked = {"after": after, "upto": upto, "limit": limit}
                page, columns = await filled.read(**asked), await filled.columns(**asked)
                assert (columns.after, columns.complete) == (page.after, page.complete)
    with pytest.raises(ValueError, match="room"):
        await filled.columns(limit=0)
    await filled.close()
    with pytest.raises(HistoryUnavailable):
        await filled.columns()


async def test_columns_of_a_run_that_is_cut_twice(history):
    await history.append([some("a", 1000)])
    (part,) = (await history.columns(after=7, upto=990, limit=500)).parts
    assert (part.skip, part.beyond, part.count, part.last) == (7, 493, 500, 507)
    assert [message.data for message in of_part(part)] == [b"%d" % n for n in range(7, 507)]


# retention


async def test_trim_by_count_takes_whole_blocks_from_the_oldest(filled):
    assert await trim(filled, Policy(max_age=None, max_bytes=None, max_messages=5)) == 4
    assert ids(await replay(filled)) == [5, 6, 7, 8, 9]
    position = await filled.position()
    assert (position.first, position.newest, position.trimmed) == (5, 9, 4)


async def test_trim_never_takes_a_block_that_holds_something_to_keep(filled):
    assert await trim(filled, Policy(max_age=None, max_bytes=None, max_messages=6)) == 0
    assert await trim(filled, Policy(max_age=None, max_bytes=None, max_messages=1)) == 7


async def test_trim_by_age(history):
    for time in (10.0, 20.0, 30.0):
        await history.append([one("a", time=time)])
    assert await trim(history, Policy(max_age=15), now=30.0) == 1
    assert ids(await replay(history)) == [2, 3]


async def test_trim_by_bytes(history):
    for _ in range(10):
        await history.append([one("a", "x" * 10_000)])
    assert await trim(history, Policy(max_bytes=45_000, max_age=None)) == 5
    assert 45_000 <= (await history.statistics()).size < 45_000 + 11_000


async def test_default_policy_keeps_what_is_new_and_small(filled):
    assert await filled.trim(Policy(), 1000.0 + 6 * 86_400) == Trimmed(0, False)


async def test_ids_go_on_when_everything_was_trimmed(filled):
    assert await trim(filled, NOTHING_KEPT) == 9
    position = await filled.position()
    assert (position.first, position.newest, position.trimmed) == (10, 9, 9)
    assert await filled.last(None, 3) == 0
    assert await replay(filled) == []
    assert await filled.append([one("a")]) == 10
    assert ids(await replay(filled)) == [10]


async def test_rule_keeps_the_last_of_each_tag_beyond_the_global_limits(history):
    for n in range(12):
        await history.append([one(f"room:{n % 3},other"), one("other")])
    policy = Policy(None, 0, None, (Rule("room:*", count=2),))
    assert await trim(history, policy) == 24 - 6
    assert [sorted(each.tags) for each in await replay(history)] == [
        ["other", f"room:{n % 3}"] for n in range(6, 12)
    ]
    assert (await history.position()).first == 13
    # What is among the last today isn't tomorrow.
    await history.append([one("room:1"), one("room:1")])
    assert await trim(history, policy) == 2
    assert len(await replay(history, select("room:1"))) == 2
    assert len(await replay(history, select("room:2"))) == 2
    assert await history.verify() == []


async def test_rule_by_age_and_several_rules_each_keep(history):
    await history.append([one("a", time=10.0), one("a,b", time=11.0), one("b", time=12.0)])
    rules = (Rule("a", age=5), Rule("b", count=1))
    assert await trim(history, Policy(None, 0, None, rules), now=15.5) == 1
    assert ids(await replay(history)) == [2, 3]
    assert await trim(history, Policy(None, 0, None, rules), now=16.5) == 1
    assert ids(await replay(history)) == [3]


async def test_run_is_cut_where_a_rule_says(history):
    await history.append([some("a", 10)])
    assert await trim(history, Policy(None, 0, None, (Rule("a", count=3),))) == 7
    page = await history.read()
    assert texts(page.messages()) == ["7", "8", "9"]
    assert ids(page.messages()) == [8, 9, 10]
    assert ids(await replay(history, after=8)) == [9, 10]
    assert ids(await replay(history, upto=8)) == [8]


async def test_without_the_rule_what_it_kept_goes(history):
    await history.append([some("a", 10)])
    await trim(history, Policy(None, 0, None, (Rule("a", count=3),)))
    assert await trim(history, NOTHING_KEPT) == 3
    assert await replay(history) == []


# resuming


async def test_resume_is_recovered_where_nothing_behind_it_was_trimmed(filled):
    await trim(filled, Policy(None, None, 5))
    assert not await filled.recovered(None, 3)
    assert await filled.recovered(None, 4)
    assert await filled.recovered(None, 9)
    assert not await filled.recovered(None, 10)
    assert not await filled.recovered(select("d"), 3)


async def test_resume_with_another_epoch_is_not_recovered(filled):
    epoch = (await filled.position()).epoch
    assert await filled.recovered(None, 5, epoch)
    assert not await filled.recovered(None, 5, "another")
    new = await filled.new_epoch()
    assert new != epoch
    assert (await filled.position()).epoch == new
    assert not await filled.recovered(None, 5, epoch)
    assert await filled.append([one("a")]) == 10


@pytest.mark.parametrize("pattern", ["*", ".*", "..*"])
async def test_what_is_derived_of_trimmed_tags_is_not_recovered(history, pattern):
    rules = (Rule(pattern, count=1),)
    await history.append([some("/a/b", 2), some(".a.b", 2), one("x")])
    await trim(history, Policy(None, 0, None, rules))
    for asked in ("/a", "/a/b", ".a.*", ".>", "/a,.>"):
        selection = Selection.asked([frozenset(asked.split(","))])
        assert not await history.recovered(selection, 0)
        assert await history.recovered(selection, 5)


async def test_quiet_tag_with_a_rule_is_recovered_however_much_was_trimmed(history):
    rules = (Rule("room:*", count=2),)
    await history.append([one("room:1"), some("noise", 5), one("room:2")])
    await history.append([one("room:2"), one("room:2"), some("noise", 5)])
    await trim(history, Policy(None, 0, None, rules))
    assert ids(await replay(history)) == [1, 8, 9]
    assert await history.recovered(select("room:1"), 0)
    assert await history.recovered(select("room:1,noise"), 0)
    assert not await history.recovered(select("room:2"), 6)
    assert await history.recovered(select("room:2"), 7)
    assert not await history.recovered(select("noise"), 12)
    assert not await history.recovered(select("room:1", "noise"), 12)
    assert await history.recovered(select("room:1", "room:2"), 7)


async def test_older_message_that_goes_later_hides_no_loss(history):
    policy = Policy(None, 0, None, (Rule("t", count=0), Rule("u", count=1)))
    await history.append([one("t,u")])
    await history.append([one("t")])
    await trim(history, policy)
    assert ids(await replay(history)) == [1]
    await history.append([one("u")])
    await trim(history, policy)
    assert ids(await replay(history)) == [3]
    assert not await history.recovered(select("t"), 1)
    assert await history.recovered(select("t"), 2)


async def test_new_rule_does_not_claim_to_know_what_was_trimmed_before_it(history):
    await history.append([one("a"), one("b")])
    await trim(history, NOTHING_KEPT)
    await trim(history, Policy(None, 0, None, (Rule("a", count=9),)))
    assert not await history.recovered(select("a"), 0)
    assert await history.recovered(select("a"), 2)


# keys


def key(name, digest="d"):
    return Key(name.encode().ljust(32), digest.encode().ljust(32))


async def test_a_key_is_kept_with_the_first_id_of_its_publication(history):
    await history.append([some("a", 3), some("b", 2, key=key("x"), time=1234.5), one("c")])
    kept = await history.recall(key("x").name)
    assert (kept.first, kept.digest) == (4, key("x").digest)
    assert kept.time == 1_234_500_000
    assert await history.recall(key("y").name) is None
    assert ids(await replay(history)) == [1, 2, 3, 4, 5, 6]


async def test_a_key_used_again_stands_for_the_later_publication(history):
    await history.append([one("a", key=key("x")), one("a", key=key("y"))])
    await history.append([one("a", key=key("x", "other"))])
    kept = await history.recall(key("x").name)
    assert (kept.first, kept.digest) == (3, key("x", "other").digest)
    assert (await history.recall(key("y").name)).first == 2


async def test_many_keys_come_in_one_append(history):
    names = [str(number) for number in range(2_500)]
    await history.append([one("a", key=key(name)) for name in names])
    for place in (0, 999, 1_000, 2_499):
        assert (await history.recall(key(names[place]).name)).first == place + 1


async def test_keys_outlive_their_messages(history):
    await history.append([one("a", key=key("x"))])
    await trim(history, NOTHING_KEPT)
    assert (await history.recall(key("x").name)).first == 1


async def test_old_keys_are_forgotten(history):
    for number in range(5):
        await history.append([one("a", time=number, key=key(str(number)))])
    while await history.forget_keys(2.0, 100):
        pass
    kept = [await history.recall(key(str(number)).name) for number in range(5)]
    assert [each is not None for each in kept] == [False, False, True, True, True]


async def test_of_too_many_keys_the_oldest_are_forgotten(history):
    for number in range(5):
        await history.append([one("a", key=key(str(number)))])
    while await history.forget_keys(0.0, 2):
        pass
    kept = [await history.recall(key(str(number)).name) for number in range(5)]
    assert [each is not None for each in kept] == [False, False, False, True, True]


def key_of(owner, name):
    return Key(key_name(owner, name), bytes(32))


async def those_kept(history, *keys):
    return [each.name for each in keys if await history.recall(each.name) is not None]


async def test_an_owner_with_too_many_keys_loses_its_own_oldest(history):
    quiet = [key_of("quiet", name) for name in "ab"]
    busy = [key_of("busy", str(number)) for number in range(10)]
    order = [quiet[0], *busy[:5], quiet[1], *busy[5:]]
    for each in order:
        await history.append([one("a", key=each)])
    assert not await history.forget_keys(0.0, 12, 10)
    while await history.forget_keys(0.0, 8, 3):
        pass
    assert await those_kept(history, *order) == [
        each.name for each in (quiet[0], quiet[1], *busy[7:])
    ]


async def test_behind_the_bound_of_owners_there_is_one_of_all(history):
    keys = [key_of(owner, str(number)) for number in range(3) for owner in "abc"]
    for each in keys:
        await history.append([one("a", key=each)])
    while await history.forget_keys(0.0, 4, 3):
        pass
    assert await those_kept(history, *keys) == [each.name for each in keys[5:]]


async def test_keys_that_are_too_old_count_for_no_owner(history):
    keys = [key_of("a", str(number)) for number in range(6)]
    for time, each in enumerate(keys):
        await history.append([one("a", time=time, key=each)])
    while await history.forget_keys(3.0, 3, 3):
        pass
    assert await those_kept(history, *keys) == [each.name for each in keys[3:]]


@pytest.mark.parametrize("owner", [b"\x00" * 8, b"\xff" * 8])
async def test_an_owner_s_keys_are_its_own_wherever_its_names_stand(history, owner):
    names = [owner + bytes([byte]) * 24 for byte in (0, 1, 254, 255)]
    others = [bytes([each]) * 8 + bytes(24) for each in (1, 254)]
    for name in (*others, *names):
        await history.append([one("a", key=Key(name, bytes(32)))])
    while await history.forget_keys(0.0, 100, 1):
        pass
    kept = [name for name in (*others, *names) if await history.recall(name) is not None]
    assert kept == [*others, names[-1]]


async def test_a_step_of_forgetting_what_one_has_too_many_is_bounded(history, monkeypatch):
    monkeypatch.setattr("mist.history.log_maintenance._KEYS", 2)
    keys = [key_of("a", str(number)) for number in range(6)]
    await history.append([one("a", key=each) for each in keys])
    steps = 0
    while await history.forget_keys(0.0, 100, 1):
        steps += 1
    assert steps == 3
    assert await those_kept(history, *keys) == [keys[5].name]


async def test_a_step_of_forgetting_is_bounded(history, monkeypatch):
    monkeypatch.setattr("mist.history.log_maintenance._KEYS", 2)
    await history.append([one("a", key=key(str(number))) for number in range(5)])
    steps = 0
    while await history.forget_keys(9999.0, 0):
        steps += 1
    assert steps == 3
    assert await history.recall(key("4").name) is None


async def test_where_no_key_is_outdated_nothing_is_forgotten(history):
    assert not await history.forget_keys(9999.0, 0)
    await history.append([one("a", key=key("x"))])
    assert not await history.forget_keys(0.0, 1)
    assert await history.recall(key("x").name) is not None


# opening


@pytest.mark.parametrize("url", ["kafka://x", "history.db", "", "sqlite:/x", "SQLITE://"])
async def test_url_that_names_no_log_is_refused(url):
    with pytest.raises(StartupError) as caught:
        await open_history(url)
    assert "\n" not in str(caught.value)


async def test_statistics_tell_what_is_kept(filled):
    statistics = await filled.statistics()
    assert statistics.position == await filled.position()
    assert (statistics.messages, statistics.blocks) == (9, 3)
    assert statistics.oldest == statistics.newest == 1000.0
    assert 0 < statistics.size <= statistics.file_size
    assert isinstance(statistics.durability, Durability)
    assert not math.isnan(statistics.size)


# reading what stays packed


@pytest.mark.parametrize(("runs", "messages"), [(1, 99), (2, 5), (99, 1), (3, 4), (99, 99)])
async def test_what_is_packed_is_unpacked_in_steps(history, monkeypatch, runs, messages):
    monkeypatch.setattr(block_module, "_STEP_RUNS", runs)
    monkeypatch.setattr(block_module, "_STEP_MESSAGES", messages)
    await history.append(
        [
            publication(run("a", *"01"), run("b", *"234"), run("a", *"5678")),
            publication(run("a", "9"), run("a,b", *"ab"), time=1001.0),
        ]
    )
    for selection in (None, select("a")):
        for after in range(12):
            for limit in (1, 2, 5, 100):
                expected = await history.read(selection, after=after, limit=limit)
                page = await history.read(selection, after=after, limit=limit, packed=True)
                assert page.stored == []
                assert (page.after, page.complete) == (expected.after, expected.complete)
                assert [*page.messages()] == [*expected.messages()]
                for step in page.unpack():
                    entries = [entry for stored in step for entry in stored.entries]
                    assert 0 < len(entries) <= runs
                    assert len(entries) == 1 or sum(count for _, _, count in entries) <= messages
    with pytest.raises(ValueError, match="numbers"):
        await history.read(packed=True, numbered=True)
