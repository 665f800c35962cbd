"""Which rows an erasure takes: tags are those that were published."""

import pyarrow as pa
import pytest

from mist.history.erasure import Erasure
from mist.pipeline.erasure.files import matching_rows

LISTS = pa.list_(pa.string())


@pytest.mark.parametrize(
    ("tags", "gone"),
    [
        ("/foo", [0, 2]),
        ("/foo/bar", [1]),
        ("/foo,a", [2]),
        (".a.b", [3]),
        ("a", [2, 4]),
    ],
)
def test_of_messages_what_carries_the_tags_as_published(tags: str, gone: list[int]) -> None:
    rows = [["/foo"], ["/foo/bar"], ["/foo", "a"], [".a.b"], ["a"], [".a.b.c"]]
    batch = pa.record_batch({"tags": pa.array(rows, LISTS)})
    mask = matching_rows(Erasure(frozenset(tags.split(","))), batch)
    assert [n for n, each in enumerate(mask) if each] == gone


@pytest.mark.parametrize(
    ("tags", "gone"),
    [("/foo", [0, 1, 2]), ("/foo,a", [2]), ("=", [5]), ("a", [2, 4])],
)
def test_of_accounts_what_asks_for_them_alone_or_with_all_below(tags: str, gone: list[int]) -> None:
    rows = ["/foo", "=/foo,=/x", "=/foo,a", "/foo/bar", "a", "=,b"]
    batch = pa.record_batch({"subscription": pa.array(rows)})
    mask = matching_rows(Erasure(frozenset(tags.split(","))), batch)
    assert [n for n, each in enumerate(mask) if each] == gone
