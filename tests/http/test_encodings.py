"""Content codings: which one a client gets, and that it is made once."""

import gzip
from types import SimpleNamespace

import pytest

from mist.http.encodings import CODINGS, Encoded, find_codings, preferred

ALL = dict.fromkeys(("br", "zstd", "gzip"))
LONG = b"export const a = 1;\n" * 100


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "br"),
        ("GZIP , zstd", "zstd"),
        ("gzip;q=1.0, br;q=0.5", "gzip"),
        ("gzip;q=0.5;x=1, br;q=0.1", "br"),  # what is malformed weighs nothing
        ("gzip; q=0.8, br; q=0", "gzip"),
        ("*", "br"),
        ("*;q=0.1, gzip;q=0.5", "gzip"),
        ("br;q=0, *", "zstd"),
        ("identity, gzip;q=0.5", ""),
        ("identity;q=0.5, gzip", "gzip"),
        ("gzip;q=0", ""),
        ("gzip;q=nan", ""),
        ("gzip;q=inf", ""),
        ("gzip;q=-1", ""),
        ("gzip;q=", ""),
        ("", ""),
        (",;=,;q=1", ""),
        ("x-gzip, gzipped", ""),
        ("deflate, identity", ""),
    ],
)
def test_the_best_that_is_accepted(accepted: str, coding: str) -> None:
    assert preferred(accepted, ALL) == coding


def test_each_is_made_once() -> None:
    made = []

    def code(content: bytes) -> bytes:
        made.append(content)
        return b"coded"

    encoded = Encoded(LONG, {"gzip": code})
    assert [encoded.choose("gzip") for _ in range(3)] == [("gzip", b"coded")] * 3
    assert encoded.choose("") == ("", LONG)
    assert made == [LONG]


def test_what_is_short_is_left_as_it_is() -> None:
    assert Encoded(b"short").choose("gzip") == ("", b"short")
    assert not Encoded(b"short").varies


def test_gzip_is_always_there_and_the_same_each_time() -> None:
    one, two = (Encoded(LONG).choose("gzip")[1] for _ in range(2))
    assert one == two
    assert gzip.decompress(one) == LONG
    assert list(CODINGS)[-1] == "gzip"


def test_libraries_are_used_where_they_are() -> None:
    def none(name: str) -> object:
        raise ImportError(name)

    assert list(find_codings(none)) == ["gzip"]
    found = find_codings(lambda name: SimpleNamespace(compress=lambda data: name.encode()))
    assert list(found) == ["br", "zstd", "gzip"]
    assert (found["br"](b""), found["zstd"](b"")) == (b"brotli", b"compression.zstd")
