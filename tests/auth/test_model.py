"""The registry against a dict of plain values, whatever is done to it in whatever batches."""

import tempfile

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from mist.attributes import Attributes
from mist.auth import Enroll, Record
from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore
from mist.auth.opening import open_registry
from mist.commands import AddTags, Register, RemoveTags, SetAttributes, Unregister
from mist.errors import RegistryUnavailable, TokenExists, TokenNotFound, TooManyTags
from tests.auth.stores import Failing

LIMIT = 4
TOKENS = ["t", "u", "ü"]

tokens = st.sampled_from(TOKENS)
tag_sets = st.frozensets(st.sampled_from("abcdef"), max_size=5)
attributes = st.builds(
    Attributes,
    user=st.sampled_from(["", "1", "ü"]),
    groups=st.frozensets(st.sampled_from("gh")),
    others=st.dictionaries(st.sampled_from(["plan", "site"]), st.sampled_from("xy")),
)
names = st.frozensets(st.sampled_from(["user", "groups", "plan", "client"]))
changes = st.one_of(
    st.builds(Register, tokens, tag_sets),
    st.builds(AddTags, tokens, tag_sets),
    st.builds(RemoveTags, tokens, tag_sets),
    st.builds(Enroll, tokens, tag_sets, attributes),
    st.builds(SetAttributes, tokens, attributes, names),
    st.builds(Unregister, tokens),
)
batches = st.lists(st.lists(changes, max_size=5), max_size=6)


def expected(model, change):
    """Carry a change out on the model; what should come of it, an error as its class."""
    has, known = model.get(change.token, (None, {}))
    match change:
        case Unregister(token=token):
            model.pop(token, None)
            return None
        case Register() | Enroll():
            if has is not None:
                return TokenExists
            after = change.tags
            known = {} if isinstance(change, Register) else change.attributes.as_json()
        case _ if has is None:
            return TokenNotFound
        case AddTags():
            after = has | change.tags
        case RemoveTags():
            after = has - change.tags
        case SetAttributes():
            known = {**known, **change.attributes.as_json()}
            after, known = has, {name: known[name] for name in known.keys() - change.unset}
    if len(after) > LIMIT:
        return TooManyTags
    model[change.token] = after, known
    return after, known


def plain(outcome):
    match outcome:
        case None:
            return None
        case Record():
            return outcome.tags, outcome.attributes.as_json()
        case _:
            return type(outcome)


def contents(registry):
    found = {token: registry.lookup(token) for token in TOKENS}
    return {token: plain(record) for token, record in found.items() if record is not None}


class Mirror:
    """A registry's records, kept by its announcements alone."""

    def __init__(self, registry):
        self.records = {}
        registry.watch(self.note)

    def note(self, old, new):
        assert self.records.pop(old.id, old) == old
        if new is not None:
            assert new.id == old.id
            assert attrs.evolve(new, tags=old.tags, attributes=old.attributes) == old
            assert new != old
            self.records[new.id] = new


@settings(max_examples=60, deadline=None)
@given(batches, st.sets(st.integers(0, 5)))
async def test_sqlite_registry_is_a_dict_that_lasts(batches, reopenings):
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/tokens.db"
        registry = await open_registry(url, max_tags=LIMIT)
        try:
            model = {}
            for number, batch in enumerate(batches):
                if number in reopenings:
                    before = registry._records
                    await registry.aclose()
                    registry = await open_registry(url, max_tags=LIMIT)
                    assert registry._records == before
                outcomes = await registry.execute(batch)
                assert list(map(plain, outcomes)) == [expected(model, each) for each in batch]
                assert contents(registry) == model
        finally:
            await registry.aclose()


@given(batches, st.sets(st.integers(0, 5)))
async def test_registry_is_a_dict_and_its_store_agrees(batches, failures):
    store = Failing(MemoryStore())
    registry = LocalRegistry(store, max_tags=LIMIT)
    mirror = Mirror(registry)
    model = {}
    for number, batch in enumerate(batches):
        store.full = number in failures
        after = dict(model)
        want = [expected(after, each) for each in batch]
        try:
            outcomes = await registry.execute(batch)
        except RegistryUnavailable:
            assert store.full
        else:
            model = after
            assert list(map(plain, outcomes)) == want
        assert contents(registry) == model
        assert registry.statistics().tokens == len(model)
        known = {record.id: record for record in registry._records.values()}
        assert {record.id: record for record in store.load()} == known
        assert mirror.records.items() <= known.items()
