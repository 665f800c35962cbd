"""Projection: of each message's tags, those that anybody asks for.

Most tags are there for a few messages only: an order's number, a request's id. Nobody is
subscribed to them, and what they match is what the others match alone:

    tag list                      projection
    order:17,room:1,user:7        room:1
    order:18,room:1,user:9        room:1          has the same recipients
    order:18,room:1,user:8        room:1,user:8   where somebody asks for user:8

So a tag list that never comes again is no miss of a cache: its projection comes again. And no tag
that nobody asks for is looked at by itself. What is asked of each tag (is it valid, is it in order,
is it asked for) is asked of those of some hundred lists at once, in a few calls: 0.7 µs a list of
four tags, where parsing and matching one takes 15.

That holds for what most lists are made of: plain tags, in any order; or one subject alone, as NATS
clients publish, of which other tags are derived. Of topics and of subjects among other tags they
are, too, and what breaks a rule has to be told by itself: lists with such tags are looked at one by
one (`mist.message`, `mist.broker.matching`).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from operator import countOf, lt
from typing import Any, Final

import attrs

from mist.addresses import MAX_TOKENS, subjects_asked
from mist.index import BOUNDARY, Index
from mist.index import COMPILED as INDEX_COMPILED
from mist.message import MAX_TAG, NOT_IN_TAGS, occurs_more

__all__ = [
    "COMPILED",
    "Projected",
    "Slice",
    "plain_tags",
    "project",
    "project_plain_in_python",
    "slice_of",
    "tags_of",
]

# Lists that are looked at at once, and their bytes: 0.5 ms.
_SLICE: Final = 512
_SLICE_BYTES: Final = 24_576

# Tags that are valid whatever they are used for, and that nothing is derived of: they begin with
# none of the marks of an address or of a right, and don't end in a star, which is looked for by
# itself. At most 63 characters where each may take four bytes.
_FIRST: Final = rf"[^/.=>{NOT_IN_TAGS}]"
_OTHER: Final = rf"[^{NOT_IN_TAGS}]"
_PLAIN: Final = re.compile(rf"(?:{_FIRST}{_OTHER}{{0,62}}+[,\n])++")
_PLAIN_ASCII: Final = re.compile(rf"(?:{_FIRST}{_OTHER}{{0,254}}+[,\n])++")

# What tags and what stands between them are made of, but for those marks: of lists of these it is
# clear in a third of the time.
_CLEAR: Final = bytes(set(range(0x21, 0x7F)) - set(b"/.=>*")) + b"\n"

_TOKEN: Final = rf"[^.*>{NOT_IN_TAGS}]"
_SUBJECTS: Final = re.compile(rf"(?:(?:\.{_TOKEN}++){{1,{MAX_TOKENS}}}+\n)++")

_BETWEEN: Final = f",{BOUNDARY},"


@attrs.frozen
class Projected:
    """Tag lists that are valid, and what is asked for of each.

    Attributes:
        projections: `,a,b,` where a and b are asked for, and `,` where nothing is.
        canonical: the canonical form of each list; None where that is how all are written.
    """

    projections: Sequence[str]
    canonical: Sequence[bytes] | None = None


@attrs.frozen
class Slice:
    """Some of a batch's runs that follow each other, projected.

    Attributes:
        start, stop: their places in the batch.
        version: of the subscriptions (`mist.broker.matches.Resolver`) when they were projected.
        projected: None where they have to be walked singly.
    """

    start: int
    stop: int
    version: int
    projected: Projected | None


def slice_of(tag_lists: Sequence[bytes], start: int) -> Sequence[bytes]:
    """As many tag lists from one on as are looked at at once."""
    some = tag_lists[start : start + _SLICE]
    while len(some) > 1 and sum(map(len, some)) > _SLICE_BYTES:
        some = some[: len(some) // 2]
    return some


def tags_of(projection: str) -> frozenset[str]:
    """The tags in a projection."""
    return frozenset(projection[1:-1].split(",") if len(projection) > 1 else ())


def plain_tags(tag_lists: Sequence[bytes], most: int) -> list[str] | None:
    """The tags of some lists, each once for a list; None where any list isn't plain.

    Args:
        tag_lists, most: as for `project`.
    """
    text = _plain_text(tag_lists, most)
    if text is None:
        return None
    tags = list(chain(*[set(each.split(",")) for each in text.split("\n")]))
    return None if "" in tags else tags


def _plain_text(tag_lists: Sequence[bytes], most: int) -> str | None:
    """Plain lists as lines; None where any list isn't plain, or has too many tags.

    An empty tag before another one is left to be seen where tags are looked at.
    """
    longest = max(map(len, tag_lists))
    if longest >= 2 * most and any(occurs_more(b",", each, most - 1) for each in tag_lists):
        return None
    raw = b"\n".join(tag_lists)
    text = _decoded(raw, len(tag_lists))
    if text is None:
        return None
    if not all(tag_lists) or ",\n" in text:
        return None
    if longest > MAX_TAG or raw.translate(None, _CLEAR):
        if not (_PLAIN_ASCII if text.isascii() else _PLAIN).fullmatch(text):
            return None
        if "*" in text and ("*," in text or "*\n" in text):
            return None
    return text[:-1]


def _decoded(raw: bytes, lists: int) -> str | None:
    """So many lists, LF between them, as lines that end; None where they can't be told apart."""
    try:
        text = raw.decode() + "\n"
    except UnicodeDecodeError:
        return None
    return text if text.count("\n") == lists else None


def project(
    tag_lists: Sequence[bytes],
    index: Index[Any],
    most: int,
    places: Iterable[int] = range(MAX_TOKENS),
) -> Projected | None:
    """Project tag lists as written; None where any of them has to be looked at by itself.

    Args:
        tag_lists: at least one.
        index: whose tags are those that are asked for.
        most: distinct tags that a message may have.
        places: of the tokens that patterns of subjects name; see `mist.addresses.asked_places`.
    """
    found = _project_plain(tag_lists, index, most)
    if found is None:
        return _project_subjects(tag_lists, index.known, places)
    return Projected(*found)


def project_plain_in_python(
    tag_lists: Sequence[bytes], index: Index[Any], most: int
) -> tuple[Sequence[str], Sequence[bytes] | None] | None:
    """As `project`, for plain tag lists: what a `Projected` is made of.

    This is the reference; `_projection.pyx` returns the same in a fifth of the time, where it has
    been built and MIST_PURE isn't set.
    """
    text = _plain_text(tag_lists, most)
    if text is None:
        return None
    # Who writes one list in another order mostly writes all so.
    first = tag_lists[0].split(b",")
    if first == sorted(first):
        names = _names(text)
        if _is_in_order(names, len(tag_lists)):
            return _projections(names, index), None
    text = "\n".join([",".join(sorted(each.split(","))) for each in text.split("\n")])
    names = _names(text)
    if not _is_in_order(names, len(tag_lists)):  # some tag is empty, or stands twice in its list
        text = "\n".join([",".join(dict.fromkeys(each.split(","))) for each in text.split("\n")])
        names = _names(text)
        if not _is_in_order(names, len(tag_lists)):
            return None
    return _projections(names, index), text.encode().split(b"\n")


def _project_subjects(
    tag_lists: Sequence[bytes],
    known: Callable[[Iterable[str]], Iterable[str]],
    places: Iterable[int],
) -> Projected | None:
    """As `project`, where each list is a subject alone, without wildcards inside its tokens."""
    if not tag_lists[0].startswith(b".") or max(map(len, tag_lists)) > MAX_TAG:
        return None
    text = _decoded(b"\n".join(tag_lists), len(tag_lists))
    if text is None or not _SUBJECTS.fullmatch(text):
        return None
    asked = subjects_asked(text[:-1].split("\n"), known, places)
    return Projected(list(map(",".__add__, asked)))


def _projections(names: list[str], index: Index[Any]) -> list[str]:
    """What is asked for of all tags of some lists, list by list; see `_names`."""
    return ",".join([*index.known(names), BOUNDARY]).split(BOUNDARY)[1:-1]


def _names(text: str) -> list[str]:
    """All tags of some lists, and a boundary before each list."""
    return f"{BOUNDARY},{text.replace(BOUNDARY, _BETWEEN)}".split(",")


def _is_in_order(names: list[str], lists: int) -> bool:
    """Whether each tag of a list is less than the next. No empty one is the last of its list.

    A boundary is less than any tag, and so no boundary is less than an empty one.
    """
    return countOf(map(lt, names, islice(names, 1, None)), True) == len(names) - lists


try:
    from mist.broker._projection import project_plain as _project_plain
except ImportError:  # it isn't built, or MIST_PURE is set
    _project_plain = project_plain_in_python

COMPILED: Final = INDEX_COMPILED and _project_plain is not project_plain_in_python
"""Whether compiled code runs here and in the index."""
