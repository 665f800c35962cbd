"""Interest: never no where a message of a block is for anybody here."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.addresses import expand
from mist.broker.directory import Directory
from mist.history.postings import tag_hash
from mist.message import TagSet

_PLAIN = st.sampled_from("abcdefg")
_ASKED = st.one_of(_PLAIN, st.sampled_from(["/x", "=/x", "/x/y", ".s.t", ".s.*", ".>", "=/x/y"]))
_PUBLISHED = st.one_of(_PLAIN, st.sampled_from(["/x", "/x/y", "/x/z", ".s.t", ".s.u", ".r"]))


def _hashes(*messages: TagSet) -> list[int]:
    return [crc32(tag.encode()) for tags in messages for tag in expand(tags)]


def test_a_block_hashes_its_tags_as_interest_does() -> None:
    assert tag_hash("ä".encode()) == crc32("ä".encode())


@given(
    asked=st.lists(st.frozensets(_ASKED, min_size=1, max_size=3), max_size=6),
    gone=st.sets(st.integers(0, 5)),
    messages=st.lists(st.frozensets(_PUBLISHED, min_size=1, max_size=3), min_size=1, max_size=5),
    late=st.integers(0, 6),
)
def test_it_is_yes_where_a_message_matches_and_no_where_a_tag_is_missing(
    asked: list[TagSet], gone: set[int], messages: list[TagSet], late: int
) -> None:
    directory = Directory()
    groups = []
    for place, tags in enumerate(asked):
        if place == late:
            directory.note_interest()
        groups.append(directory.open(tags))
    directory.note_interest()
    hashes = _hashes(*messages)
    directory.asks_for(hashes)  # and what is kept of this must not outlive a change
    left = set(asked)
    for place in gone.intersection(range(len(asked))):
        if asked[place] in left:
            left.discard(asked[place])
            directory.close(groups[place])
    matches = any(directory.match(tags) for tags in messages)
    together = bool(directory.match(frozenset().union(*messages)))
    found = directory.asks_for(hashes)
    assert found or not matches
    assert found == together
    for tags in left:
        again = directory.find(tags)
        assert again is not None
        directory.close(again)
    assert not directory.asks_for(hashes)


def test_all_tags_of_a_set_have_to_be_there() -> None:
    directory = Directory()
    directory.note_interest()
    directory.open(frozenset("ab"))
    directory.open(frozenset("c"))
    assert not directory.asks_for(_hashes(frozenset("ad")))
    assert directory.asks_for(_hashes(frozenset("ad"), frozenset("b")))
    assert directory.asks_for(_hashes(frozenset("dc")))


def test_who_asks_for_everything_asks_for_each_block() -> None:
    directory = Directory()
    directory.note_interest()
    group = directory.open(frozenset("*"))
    assert directory.asks_for(_hashes(frozenset("a")))
    directory.close(group)
    assert not directory.asks_for(_hashes(frozenset("a")))


def test_a_block_of_many_tags_that_are_asked_for_is_taken_apart() -> None:
    directory = Directory()
    directory.note_interest()
    for n in range(100):
        directory.open(frozenset({f"t{n}", "never"}))
    assert not directory.asks_for(_hashes(*[frozenset({f"t{n}"}) for n in range(64)]))
    assert directory.asks_for(_hashes(*[frozenset({f"t{n}"}) for n in range(65)]))


def test_tags_of_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mist.broker.interest.crc32", lambda raw: len(raw))
    directory = Directory()
    directory.note_interest()
    one, two = directory.open(frozenset("a")), directory.open(frozenset("b"))
    directory.close(one)
    assert directory.asks_for([1])
    directory.close(two)
    assert not directory.asks_for([1])


def test_without_being_noted_it_is_always_yes() -> None:
    assert Directory().asks_for([])
