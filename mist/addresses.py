"""Addresses: topics, channels and subjects with wildcards, written as tags and compiled to tags.

    /foo/bar     a topic, or channel: levels, separated by slashes
    =/foo/bar    subscribed to: that channel alone, nothing below it
    .foo.bar     a subject: tokens, separated by dots
    .foo.*.baz   subscribed to: one token of any kind; `.foo.>`: one or more at the end;
                 inside a token, as in `.a*b`, both are letters
    *            subscribed to: everything, which is for services alone

A message that carries an address also carries tags *derived* from it, and a subscription to a
pattern is compiled to these; S ⊆ T is all that matching knows, live, in the history and on Spark:

    address      a message carries, too              a subscription asks for
    /foo/bar     ../  ../foo  ../foo/bar             ../foo/bar: it, and all below
    =/foo/bar    (nothing is published so)           /foo/bar
    .foo.bar     ..#2  ..0=foo  ..1=bar  ..+1  ..+2  .foo.bar
    .foo.*                                           ..#2  ..0=foo
    .foo.>                                           ..0=foo  ..+2

`..#2` says how many tokens there are, `..+2` that there are as many and perhaps more. Derived
tags begin with two dots, which no peer may say: no subject has an empty token, so none is
mistaken for one. They are made where tags are looked at, and neither stored nor shown.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from functools import lru_cache
from typing import Final

__all__ = [
    "EVERYTHING",
    "MAX_LEVELS",
    "MAX_TOKENS",
    "asked_places",
    "asks_well",
    "compile_asked",
    "covers_subject",
    "derived",
    "expand",
    "grants_well",
    "is_derived",
    "is_pattern",
    "is_subject",
    "is_topic",
    "publishes_well",
    "subjects_asked",
]

MAX_TOKENS: Final = 20  # of a subject
MAX_LEVELS: Final = 32  # of a topic; each is a derived tag of every message to it

EVERYTHING: Final = frozenset({"*"})
"""The tag set of a subscription to every message."""

_WILDCARDS: Final = frozenset({"*", ">"})  # each a whole token; inside one they are letters
_AT_LEAST: Final = [f"..+{number}" for number in range(1, MAX_TOKENS + 1)]
_NUMBERS_OF_TOKENS: Final = [*_AT_LEAST, *(f"..#{number}" for number in range(1, MAX_TOKENS + 1))]
_ADDRESSES: Final = ("/", ".")
_ASKED: Final = ("/", ".", "=/")
_REMEMBERED: Final = 4096  # addresses, at up to 10 KB


def is_topic(tag: str) -> bool:
    """Whether a published tag is a topic (channel)."""
    return tag.startswith("/")


def is_pattern(tag: str) -> bool:
    """Whether a tag asked for stands for several that are published: a topic with all below it,
    a subject's pattern."""
    return tag.startswith("/") or (
        tag.startswith(".") and not _WILDCARDS.isdisjoint(tag[1:].split("."))
    )


def is_subject(tag: str) -> bool:
    """Whether a tag, published or asked for, is a subject."""
    return tag.startswith(".")


def is_derived(tag: str) -> bool:
    """Whether a compiled tag is a derived one, which no peer can publish."""
    return tag.startswith("..")


# rules


def publishes_well(tag: str) -> bool:
    """Whether a tag, so far as it is an address, can be published.

    `/`, `/foo//bar`, `.foo`, `.a*b`: yes. `.`, `.foo.`, `.foo.*`, `=/foo`: no.
    """
    if tag.startswith("."):
        tokens = tag[1:].split(".")
        return len(tokens) <= MAX_TOKENS and all(tokens) and _WILDCARDS.isdisjoint(tokens)
    if tag.startswith("/"):
        return tag.count("/") <= MAX_LEVELS
    return not tag.startswith("=/")


def asks_well(tag: str) -> bool:
    """Whether a tag, so far as it is an address, can be asked for.

    `/foo`, `=/foo`, `.foo.*.>`, `.a*b`: yes. `.foo.>.bar`, `.foo..bar`: no.
    """
    if tag.startswith("."):
        tokens = tag[1:].split(".")
        return len(tokens) <= MAX_TOKENS and all(tokens) and ">" not in tokens[:-1]
    if tag.startswith("="):
        return not tag.startswith("=/") or tag.count("/") <= MAX_LEVELS
    return not tag.startswith("/") or tag.count("/") <= MAX_LEVELS


def grants_well(tag: str) -> bool:
    """Whether a token's tag, so far as it is an address, can be a grant, of publishing too.

    What can be asked for, but for a wildcard inside a token: `.foo*` would be granted as that
    subject alone, while other grants that end so are prefixes.
    """
    tag = tag.removeprefix(">")
    tokens = tag[1:].split(".") if is_subject(tag) else ()
    return asks_well(tag) and not any(
        len(token) > 1 and not _WILDCARDS.isdisjoint(token) for token in tokens
    )


def covers_subject(granted: str, asked: str) -> bool:
    """Whether every subject that `asked` stands for, `granted` stands for, too.

    granted `.foo.>`   `.foo.bar`, `.foo.*`, `.foo.*.>`, `.foo.>`: yes; `.foo`, `.*.bar`: no
    granted `.foo.*`   `.foo.bar`, `.foo.*`: yes; `.foo.>`, `.foo.bar.baz`: no
    """
    have, want = granted[1:].split("."), asked[1:].split(".")
    for place, token in enumerate(have):
        if token == ">":
            return len(want) > place
        if place == len(want) or want[place] == ">":
            return False
        if token not in ("*", want[place]):
            return False
    return len(want) == len(have)


# compiling


@lru_cache(_REMEMBERED)
def derived(tag: str) -> tuple[str, ...]:
    """What a message that is published with this tag carries beside it.

    `/foo/bar` → `../`, `../foo`, `../foo/bar`; nothing for what is no address.
    """
    if tag.startswith("/"):
        ends = [place for place, letter in enumerate(tag) if letter == "/" and place]
        # `/a//b` has two levels that end at the same letter as their parents' slash.
        return tuple(dict.fromkeys(["../", *(".." + tag[:end] for end in ends), ".." + tag]))
    if tag.startswith("."):
        return tuple(_of_subject(tag[1:].split(".")))
    return ()


def asked_places(tag: str) -> Sequence[int]:
    """The places of the tokens that a subject's pattern names, counted from 0.

    `.foo.*.baz` → 0, 2; `.>` → none; nothing for what is no such pattern.
    """
    if not is_subject(tag) or not is_pattern(tag):
        return ()
    return [place for place, token in enumerate(tag[1:].split(".")) if token not in _WILDCARDS]


def subjects_asked(
    subjects: Sequence[str],
    known: Callable[[Iterable[str]], Iterable[str]],
    places: Iterable[int],
) -> list[str]:
    """Of each subject itself and what `derived` says, those that are asked for.

    What is asked of a subject is asked of all at once, place by place, and what nobody asks for
    isn't made.

    Args:
        subjects: that can be published.
        known: which of some tags are asked for.
        places: of tokens that patterns name; others are taken for asked for by none.

    Returns:
        The tags for each subject, with a comma behind each tag.
    """
    found = dict.fromkeys(known(subjects))
    columns: list[Iterable[str]] = []
    if found:
        columns.append([f"{each}," if each in found else "" for each in subjects])
    numbers = dict.fromkeys(known(_NUMBERS_OF_TOKENS))
    if numbers:  # else nobody asks for a pattern
        rows = [each.split(".") for each in subjects]  # the first token is at 1
        by_length = {length: _of_number(length - 1, numbers) for length in set(map(len, rows))}
        columns.append([by_length[len(row)] for row in rows])
        for place in places:
            tokens = [row[place + 1] if len(row) > place + 1 else "" for row in rows]
            found = dict.fromkeys(known([f"..{place}={token}" for token in set(tokens)]))
            if found:
                names = {each.split("=", 1)[1]: f"{each}," for each in found}
                columns.append([names.get(token, "") for token in tokens])
    return list(map("".join, zip(*columns, strict=True))) if columns else [""] * len(subjects)


def _of_number(tokens: int, known: Container[str]) -> str:
    """What is derived of a number of tokens, and known; a comma behind each."""
    derived = [f"..#{tokens}", *_AT_LEAST[:tokens]]
    return "".join([f"{each}," for each in derived if each in known])


def _of_subject(tokens: Sequence[str]) -> list[str]:
    number = len(tokens)
    return [
        f"..#{number}",
        *[f"..{place}={token}" for place, token in enumerate(tokens)],
        *_AT_LEAST[:number],
    ]


def expand(tags: frozenset[str]) -> frozenset[str]:
    """Published tags, and all that are derived from them; the same object where none are."""
    for tag in tags:
        if tag.startswith(_ADDRESSES):
            break
    else:
        return tags
    return tags.union(*[derived(tag) for tag in tags])


def compile_asked(tags: frozenset[str]) -> frozenset[str]:
    """The tags that a message has to carry for a subscription, as matching knows them.

    The same object where no address is asked for. Two subscriptions that are asked for
    differently never come to the same. `EVERYTHING` isn't a matter of tags: ask for it before.
    """
    for tag in tags:
        if tag.startswith(_ASKED):
            break
    else:
        return tags
    addresses = [tag for tag in tags if tag.startswith(_ASKED)]
    return tags.difference(addresses).union(*map(_compile, addresses))


@lru_cache(_REMEMBERED)
def _compile(tag: str) -> tuple[str, ...]:
    if tag.startswith("="):
        return (tag[1:],)
    if tag.startswith("/"):
        return (".." + tag,)
    tokens = tag[1:].split(".")
    if "*" not in tokens and tokens[-1] != ">":
        return (tag,)
    length = f"..+{len(tokens)}" if tokens[-1] == ">" else f"..#{len(tokens)}"
    return (
        length,
        *(f"..{place}={token}" for place, token in enumerate(tokens) if token not in ("*", ">")),
    )
