"""The compiled projection returns what the Python one does, whatever the bytes."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mist.broker.projection import project_plain_in_python
from mist.index import Index

compiled = pytest.importorskip("mist.broker._projection", exc_type=ImportError)

NAMES = ["a", "b", "ab", "b:1", "user:7", "Ä", "中", "😀" * 63, "z" * 63, "x" * 255, "0", "~"]


def make_index() -> Index[int]:
    index: Index[int] = Index()
    for number, tag in enumerate(NAMES):
        index.add(frozenset([tag]), number)
    return index


INDEX = make_index()

known = st.sampled_from([name.encode() for name in NAMES])
other = st.sampled_from(
    [b"c", b"a:1", b"order:17", b"order:171", b"a/b", b"a.b", b"*a", b"x" * 256, b"y" * 64, b"\xe2"]
    + [each.encode() for each in ("é" * 63, "é" * 64, "\u2028", "\x85", "\u07ff", "\uffff", "ü*")]
    + [b"", b"/a", b".a.b", b"..x", b"=a", b"=/a", b">a", b"a*", b"*", b".a.*", b"a b", b"a\x00"]
    + [b"\x00", b"a\nb", b"\n", b"\r", b"\x7f", b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xff"]
    + [b"\xf4\x90\x80\x80", b"\xc2", b"\xc2\x80", b"\xc2\xa0", b"\xf0\x9f\x98", b"\xc2*"]
)
many = st.integers(0, 70).map(lambda n: b",".join(b"tag-%d" % (n - each) for each in range(n)))
alike = st.lists(st.integers(0, 400), max_size=70).map(
    lambda some: b",".join(b"the-same-beginning-%d" % each for each in some)
)
tag = st.one_of(known, known, st.integers(0, 99).map(lambda n: b"n%d" % n), other, st.binary())
plain = st.one_of(known, st.integers(0, 99).map(lambda n: b"n%d" % n))
tag_list = st.one_of(
    st.lists(plain, min_size=1, max_size=8).map(b",".join),
    st.lists(plain, min_size=1, max_size=8).map(sorted).map(b",".join),
    st.lists(tag, min_size=1, max_size=8).map(b",".join),
    st.binary(max_size=40),
    many,
    alike,
)
plain_list = st.one_of(st.lists(plain, min_size=1, max_size=30).map(b",".join), alike)


def same(written: Sequence[bytes], most: int = 64, index: Index[int] = INDEX) -> bool:
    expected = project_plain_in_python(written, index, most)
    assert compiled.project_plain(written, index, most) == expected
    return expected is not None


@settings(max_examples=3_000)
@given(st.lists(tag_list, min_size=1, max_size=6), st.sampled_from([64, 64, 3, 1]))
@example([b"b,a", b"a,\n,b"], 64)
@example([b""], 64)
@example([b","], 64)
@example([b"a,"], 64)
@example([b",a"], 64)
@example([b"\xc3,\xa4"], 64)
@example(["ä".encode(), b"x" * 64], 64)
@example([b"x" * 64, "ä".encode()], 64)
def test_any_bytes_are_projected_alike(written: list[bytes], most: int) -> None:
    same(written, most)


@settings(max_examples=2_000)
@given(st.lists(plain_list, min_size=1, max_size=40))
def test_plain_lists_are_projected_alike(written: list[bytes]) -> None:
    same(written)
    same(tuple(written))


def test_every_byte_at_every_place_of_a_tag() -> None:
    for byte in range(256):
        for written in (b"%c", b"%ca", b"a%c", b"a%cb", b"a,%cb", b"b%c,a", b"a,a%c,c"):
            same([written % byte])
            same([b"a", written % byte, b"b,a"])


def test_every_character_of_one_and_two_bytes_and_around_the_surrogates() -> None:
    plain = [
        same([first + chr(code).encode(errors="surrogatepass") + last])
        for code in [*range(0x900), *range(0xD7F0, 0xE010), 0xFFFF, 0x10000, 0x10FFFF]
        for first in (b"", b"a")
        for last in (b"", b",a")
    ]
    assert 0 < sum(plain) < len(plain)


@pytest.mark.parametrize("character", [b"a", "ä".encode(), "中".encode(), "😀".encode()])
def test_tags_of_every_length(character: bytes) -> None:
    fits = [same([character * length + b",0"]) for length in range(1, 300)]
    assert sum(fits) == (255 if character == b"a" else 63)


def test_every_number_of_tags() -> None:
    for most in (1, 5, 17, 64):
        assert [
            same([b",".join(b"%d" % n for n in range(tags))], most) for tags in range(1, 70)
        ] == [tags <= most for tags in range(1, 70)]
        same([b",".join([b"a"] * (most + 1))], most)
    same([b"a"], 0)


def test_very_many_tags_are_known_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mist.index.intern._FLAT", 5)
    written = [b"zz,b:1,a", b"a,b", "中,Ä".encode()]
    index = make_index()
    assert len(index.tables) > 1
    assert same(written, index=index)
    assert compiled.project_plain(written, index, 64) == project_plain_in_python(written, INDEX, 64)


@pytest.mark.parametrize("wrong", [["a"], [None], [b"a", 1], [bytearray(b"a")], None, 7])
def test_what_are_no_tag_lists_is_an_error(wrong: list[bytes]) -> None:
    with pytest.raises(TypeError):
        compiled.project_plain(wrong, INDEX, 64)


@pytest.mark.parametrize(("value", "runs"), [("1", False), ("yes", False), ("0", True), ("", True)])
def test_compiled_code_is_switched_off_by_a_variable(value: str, runs: bool) -> None:
    code = "from mist import index, broker; import mist.broker.projection as projection; "
    code += "print(index.COMPILED, projection.COMPILED)"
    environ = {**os.environ, "MIST_PURE": value}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.stdout == f"{runs} {runs}\n", done.stderr
