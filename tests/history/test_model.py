"""A log against a plain list of messages, whatever is done to it in whatever order."""

import math
import tempfile
from contextlib import ExitStack, contextmanager

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.history import (
    Policy,
    Rule,
    asked_runs,
    compaction,
    encoding,
    layout,
    page_readers,
    page_walk,
    pieces,
    replay,
    retention_plan,
    run_index,
    shared_pages,
)
from mist.history.clock import Clock
from mist.history.layout import MICROSECONDS
from mist.history.opening import open_history
from mist.history.sqlite import maintenance, rows
from tests.history.messages import publication, run, select
from tests.history.messages import replay as read_all

TAGS = "abcdr"

tag_sets = st.frozensets(st.sampled_from(TAGS), min_size=1, max_size=3)
runs = st.tuples(tag_sets, st.integers(1, 4))
groups = st.lists(
    st.tuples(st.integers(-5, 20), st.lists(runs, min_size=1, max_size=4)), min_size=1, max_size=3
)
rules = st.builds(
    Rule,
    st.sampled_from(["r", "a", "*"]),
    count=st.integers(0, 5),
    age=st.none() | st.integers(0, 40),
)
policies = st.builds(
    Policy,
    max_age=st.none() | st.integers(0, 60),
    max_bytes=st.none(),
    max_messages=st.none() | st.integers(0, 30),
    rules=st.lists(rules, max_size=2).map(tuple),
)
steps = st.one_of(
    st.tuples(st.just("append"), groups),
    st.tuples(st.just("append"), groups),
    st.tuples(st.just("trim"), policies),
    st.tuples(st.just("compact"), st.integers(1, 10)),
    st.tuples(st.just("reopen"), st.none()),
)
selections = st.none() | st.frozensets(tag_sets, min_size=1, max_size=3)


@attrs.define
class KeyRecord:
    """A message of the model; `block` is the last id of the group it came with."""

    id: int
    time: int  # microseconds
    tags: frozenset[str]
    block: int


class Model:
    """What a log promises, without any of its machinery."""

    def __init__(self):
        self.kept = []
        self.newest = 0
        self.wall = 1000.0
        self.clock = Clock()
        self.latest = 0  # stamp given to a message
        self.gone = []  # every message ever trimmed

    def append(self, group):
        """The publications to append, taken note of."""
        publications = []
        messages = []
        for step, entries in group:
            self.wall += step
            time = self.latest = self.clock.stamp(self.wall)
            written = []
            for tags, count in entries:
                texts = []
                for _ in range(count):
                    self.newest += 1
                    messages.append(KeyRecord(self.newest, time, tags, 0))
                    texts.append(str(self.newest))
                written.append(run(",".join(tags), *texts))
            publications.append(publication(*written, time=self.wall))
        for message in messages:
            message.block = self.newest
        self.kept += messages
        return publications

    def must_keep(self, policy, now):
        """Ids that no policy of ours may take: of these, trimming keeps every one."""
        by_global = set()
        for place, each in enumerate(reversed(self.kept)):
            # Blocks go as a whole, so one that is out takes those before it along.
            if not young(each, policy.max_age, now) or place == policy.max_messages:
                break
            by_global.add(each.id)
        return by_global | self.by_rules(policy, now)

    def by_rules(self, policy, now):
        return {
            each.id
            for rule in policy.rules
            for tag in filter(rule.matches, TAGS)
            for each in [each for each in reversed(self.kept) if tag in each.tags][: rule.count]
            if young(each, rule.age, now)
        }

    def matching(self, selection):
        return [
            each.id
            for each in self.kept
            if selection is None or any(tags <= each.tags for tags in selection)
        ]

    def lost(self, selection, after):
        """Whether something wanted behind `after` was trimmed."""
        return any(
            each.id > after and (selection is None or any(tags <= each.tags for tags in selection))
            for each in self.gone
        )


def young(message, age, now):
    return age is None or now.age(message.time) <= age * MICROSECONDS


def chosen(selection):
    return None if selection is None else select(*(",".join(tags) for tags in selection))


@contextmanager
def small_numbers():
    """Every bound so low that a few messages reach it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "_RUNS", 3)
        patch.setattr(compaction, "_MANY", 3)
        patch.setattr(compaction, "_SMALL", 250)
        patch.setattr(compaction, "TARGET", 450)
        patch.setattr(maintenance, "WIDTH", 3)
        patch.setattr(maintenance, "_AHEAD", 1)
        patch.setattr(maintenance, "_SPARE", 0)
        patch.setattr(retention_plan, "_REMOVED", 2)
        patch.setattr(retention_plan, "_THINNED", 2)
        patch.setattr(replay, "_MAX_BLOCKS", 2)
        patch.setattr(run_index, "_FEW_LISTS", 1)
        patch.setattr(layout, "_MUCH", 0)
        patch.setattr(layout, "_MANY", 0)
        patch.setattr(layout, "PIECE", 7)
        patch.setattr(pieces, "PIECE", 7)
        patch.setattr(rows, "_SMALL", 0)
        patch.setattr(page_walk, "_MAX_BLOCKS", 3)
        patch.setattr(page_walk, "_STEP_BLOCKS", 2)
        patch.setattr(page_walk, "_FEW", 1)
        patch.setattr(asked_runs, "_STEP_LISTS", 3)
        patch.setattr(asked_runs, "_STEP_RUNS", 2)
        patch.setattr(page_readers, "_STEP", 2)
        for each in (page_readers, shared_pages):
            patch.setattr(each, "PAGE_MESSAGES", 4)
        patch.setattr(shared_pages, "_ALONE", 1e9)
        patch.setattr(shared_pages, "_WALKED", 0.0)
        yield


async def trim(history, model, policy):
    now = model.clock.moment(model.wall)
    before = {each.id: each for each in model.kept}
    kept = model.must_keep(policy, now)
    ruled = model.by_rules(policy, now)
    removed = 0
    while True:
        step = await history.trim(policy, model.wall)
        removed += step.messages
        if not step.more:
            break
    found = {message.id for message in await read_all(history)}
    assert kept <= found <= before.keys()
    assert removed == len(before) - len(found)
    # Below the floor, which the oldest message that only the global limits keep stands for,
    # there is nothing but what rules keep.
    floor = min(found - ruled, default=math.inf)
    assert {each for each in found if each < floor} <= ruled
    model.gone += [each for each in model.kept if each.id not in found]
    model.kept = [each for each in model.kept if each.id in found]


async def check(history, model, selection, after):
    wanted = chosen(selection)
    expected = model.matching(selection)
    for limit in (3, 1000):
        found = await read_all(history, wanted, after=after, limit=limit)
        assert [message.id for message in found] == [each for each in expected if each > after]
    times = {each.id: each.time for each in model.kept}
    for message in found:
        assert message.data == str(message.id).encode()
        assert message.time == times[message.id] / MICROSECONDS
    for n in (1, 4):
        start = await history.last(wanted, n)
        assert [each for each in expected if each > start] == expected[-n:]
    if after <= model.newest and await history.recovered(wanted, after):
        assert not model.lost(selection, after)


async def check_again(history, model, selection):
    """The same pages are asked for after each step, and some of them are kept in between."""
    wanted = chosen(selection)
    for after in (0, 3, 10):
        for upto in (model.newest, model.newest - 1, model.newest):
            found = await read_all(history, wanted, after=after, upto=upto, packed=True)
            assert [message.id for message in found] == [
                each for each in model.matching(selection) if after < each <= upto
            ]
            assert all(message.data == str(message.id).encode() for message in found)


async def check_together(history, model, selection):
    """Several wait at once, so that pages are read for all of them."""
    wanted = [(frozenset({each}), after) for each in TAGS for after in (0, 2, model.newest // 2)]
    wanted += [(each, 1) for each in selection or ()]
    with ExitStack() as stack:
        for tags, after in wanted:
            stack.enter_context(history.expecting(chosen({tags}), after, model.newest))
        for tags, after in wanted:
            found = await read_all(
                history, chosen({tags}), after=after, upto=model.newest, packed=True
            )
            assert [message.id for message in found] == [
                each for each in model.matching({tags}) if after < each <= model.newest
            ]
            assert all(message.data == str(message.id).encode() for message in found)


async def scenario(url, plan, selection):
    model = Model()
    history = await open_history(url)
    try:
        for word, argument in plan:
            match word:
                case "append":
                    first = model.newest + 1
                    assert await history.append(model.append(argument)) == first
                case "trim":
                    await trim(history, model, argument)
                case "compact":
                    for _ in range(argument):
                        if not await history.compact():
                            break
                case "reopen" if url != "memory://":
                    await history.close()
                    history = await open_history(url)
                    model.clock = Clock(model.latest)
            position = await history.position()
            assert position.newest == model.newest
            assert position.first == (model.kept[0].id if model.kept else model.newest + 1)
            assert position.trimmed >= max((each.id for each in model.gone), default=0)
            statistics = await history.statistics()
            assert statistics.messages == len(model.kept)
            await check_again(history, model, selection)
            await check_together(history, model, selection)
        for after in {0, model.newest // 2, model.newest}:
            await check(history, model, selection, after)
        assert await history.verify() == []
    finally:
        await history.close()


@given(st.lists(steps, max_size=25), selections)
@settings(max_examples=150)
def test_memory_is_the_list(plan, selection):
    with small_numbers():
        trio.run(scenario, "memory://", plan, selection)


@given(st.lists(steps, max_size=25), selections)
@settings(max_examples=60)
def test_sqlite_is_the_list(plan, selection):
    with small_numbers(), tempfile.TemporaryDirectory() as folder:
        trio.run(scenario, f"sqlite:///{folder}/history.db", plan, selection)
