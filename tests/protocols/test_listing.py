"""Tag lists as JSON: what a JSON library writes, however it is written."""

import msgspec
import pytest
from hypothesis import given

from mist.errors import CommandError
from mist.message import check_tag
from mist.protocols.listing import tags_as_json
from mist.wire import TagList
from tests.broker.test_projection import lists


@pytest.mark.parametrize("tags", ["a", "a,b", 'a"b,c', "a\\b", "Ä,\u2028,中", "a\x85b"])
def test_tags_are_an_array(tags: str) -> None:
    found = TagList(frozenset(tags.split(",")))
    assert tags_as_json(found) == msgspec.json.encode(sorted(found.tags))


@given(lists)
def test_any_valid_tags_are_the_array_that_a_library_writes(written: str) -> None:
    try:
        found = TagList(frozenset(map(check_tag, written.split(","))))
    except CommandError:
        return
    assert tags_as_json(found) == msgspec.json.encode(sorted(found.tags))
    assert TagList(None, found.canonical).tags == found.tags
