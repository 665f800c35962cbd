"""The contract of `TokenStore`, over every member of the family."""

import attrs
import pytest

from mist.attributes import Attributes
from mist.auth import Record
from mist.auth.opening import open_store


@pytest.fixture
def store(url):
    store = open_store(url)
    yield store
    store.close()


def record(number, *tags, digest=None):
    return Record(f"{number:016x}", digest or bytes([number]) * 32, frozenset(tags), number / 8)


def held(store):
    return {each.digest: each for each in store.load()}


def put(store, *records):
    store.write({each.digest: each for each in records})


def test_new_store_is_empty_and_has_a_key(store):
    assert held(store) == {}
    assert len(store.key) == 32


def test_key_is_not_in_the_repr(store):
    assert repr(store.key) not in repr(store)
    assert store.key.hex() not in repr(store)


@pytest.mark.parametrize(
    "tags", [[], ["a"], ["b", "a"], ["Ä", "room:*", ">x", "*", "'", "{a}"], map(str, range(2000))]
)
def test_what_was_written_is_loaded(store, tags):
    one = record(1, *tags)
    put(store, one)
    assert held(store) == {one.digest: one}


@pytest.mark.parametrize("text", ["", "user=1", "client=c&groups=a;b%26;%C3%BC&plan=pro&site=x"])
def test_attributes_that_were_written_are_loaded(store, text):
    one = attrs.evolve(record(1, "a"), attributes=Attributes.parse(text))
    put(store, record(1), record(2))
    put(store, one)
    assert held(store) == {one.digest: one, record(2).digest: record(2)}


def test_thousands_are_written_at_once(store):
    records = [record(1, "a", digest=number.to_bytes(32, "big")) for number in range(1001)]
    records = [Record(f"{n:016x}", each.digest, each.tags, 0.0) for n, each in enumerate(records)]
    put(store, *records)
    assert held(store) == {each.digest: each for each in records}
    store.write({each.digest: None for each in records[:-1]})
    assert held(store) == {records[-1].digest: records[-1]}


def test_record_takes_the_place_of_the_one_with_its_digest(store):
    put(store, record(1, "a"), record(2, "b"))
    new = record(3, "c", digest=record(1).digest)
    put(store, new)
    assert held(store) == {new.digest: new, record(2).digest: record(2, "b")}


def test_one_write_removes_and_adds(store):
    put(store, record(1), record(2))
    store.write({record(1).digest: None, record(3).digest: record(3)})
    assert held(store) == {each.digest: each for each in [record(2), record(3)]}


def test_removing_what_is_not_there_is_no_error(store):
    store.write({record(1).digest: None})
    assert held(store) == {}


def test_closing_twice_is_closing_once(store):
    store.close()
    store.close()
