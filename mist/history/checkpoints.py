"""Checkpoints: all that a log has, in parts, so that another may begin with it.

A log that mirrors another may begin with a checkpoint of one that is further, instead of with all
that was ever published. It has blocks as they are stored, joined and trimmed, and what was made of
messages that are not kept any more: idempotency keys, writers' last batches, the positions of
channels; and the notes of a mirror. So whatever arrives next, both do the same with it.

The form is no database's: a log in memory may begin with what one in a file has, and the other way
round, whichever versions of the schema they have.
"""

from collections.abc import Iterator
from typing import Final

import attrs
import msgspec

from mist.history.block_store import BlockStore, State
from mist.history.commits import Commit
from mist.history.layout import DIFFERS, Head, Row, checksum
from mist.history.numbering import ChannelPosition
from mist.history.record import KeyRecord

__all__ = ["dump", "newest_of", "restore"]

_PART: Final = 4 * 1024 * 1024  # bytes of blocks in a part, where one block is not larger
_ENTRIES: Final = 20_000  # of other kinds in a part
_HEADS: Final = 1_000  # read at a time

_Block = tuple[tuple[int, int, int, int, int, int, int], bytes, int, bytes, bytes | None]
_State = tuple[int, int, int, int, int, list[str], int]
_Key = tuple[int, int, bytes, bytes]
_Commit = tuple[str, str, tuple[int, int, int, int, int]]
_Channel = tuple[str, tuple[int, int, int, int, int | None]]


class _Part(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """New fields go to the end, with a default."""

    state: _State | None = None
    tracked: dict[str, int] = {}
    blocks: list[_Block] = []
    keys: list[_Key] = []
    commits: list[_Commit] = []
    channels: list[_Channel] = []
    notes: list[tuple[bytes, bytes]] = []


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Part).decode


def dump(store: BlockStore) -> Iterator[bytes]:
    """The parts of a checkpoint, in order. The store must not change meanwhile.

    Raises:
        HistoryDamaged, HistoryUnavailable: it can't be read.
    """
    state, tracked = store.load()
    values = (state.floor, state.trimmed, state.untracked, list(state.patterns), state.erased)
    yield _encode(_Part((*newest_of(store), *values), tracked))
    commits = [(owner, writer, attrs.astuple(commit)) for owner, writer, commit in store.commits()]
    for start in range(0, len(commits), _ENTRIES):
        yield _encode(_Part(commits=commits[start : start + _ENTRIES]))
    notes = list(store.notes().items())
    for start in range(0, len(notes), _ENTRIES):
        yield _encode(_Part(notes=notes[start : start + _ENTRIES]))
    first = 0
    while keys := store.keys(first, _ENTRIES):
        yield _encode(_Part(keys=[attrs.astuple(each) for each in keys]))
        first = keys[-1].first
    name = ""
    while channels := store.all_channels(name, _ENTRIES):
        yield _encode(_Part(channels=[(key, attrs.astuple(at)) for key, at in channels]))
        name = channels[-1][0]
    yield from _blocks(store)


def newest_of(store: BlockStore) -> tuple[int, int]:
    """The highest id that was given, and the time of the newest message."""
    state, _ = store.load()
    last = store.last()
    if last is None:
        return state.newest, state.latest
    return max(state.newest, last.last), max(state.latest, last.newest)


def _blocks(store: BlockStore) -> Iterator[bytes]:
    some: list[_Block] = []
    size = after = 0
    while heads := store.heads(after, _HEADS):
        after = heads[-1].first
        for head in heads:
            (row,) = store.rows([head])
            if checksum(row.hashes, row.body) != row.checksum:
                raise head.damaged(DIFFERS)
            numbers = store.numbers(head.first)
            some.append((attrs.astuple(head), row.hashes, row.checksum, row.body, numbers))
            size += head.size
            if size >= _PART:
                yield _encode(_Part(blocks=some))
                some, size = [], 0
    if some:
        yield _encode(_Part(blocks=some))


def restore(store: BlockStore, part: bytes) -> None:
    """Add a part to a log that has the parts before it, and nothing else: all of it, or nothing.

    Raises:
        ValueError: it is no part of a checkpoint, or damaged.
        HistoryUnavailable: it can't be stored.
    """
    try:
        read = _decode(part)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    state = None
    if read.state is not None:
        newest, latest, floor, trimmed, untracked, patterns, erased = read.state
        state = State("", newest, latest, floor, trimmed, untracked, tuple(patterns), erased)
    store.restore(
        state,
        read.tracked,
        [_row(*block) for block in read.blocks],
        [KeyRecord(*each) for each in read.keys],
        [(owner, writer, Commit(*values)) for owner, writer, values in read.commits],
        [(key, ChannelPosition(*values)) for key, values in read.channels],
        dict(read.notes),
    )


def _row(
    head: tuple[int, int, int, int, int, int, int],
    hashes: bytes,
    check: int,
    body: bytes,
    numbers: bytes | None,
) -> Row:
    if checksum(hashes, body) != check:
        raise ValueError("the checksum of a block differs")
    return Row(Head(*head), hashes, check, body, None, numbers)
