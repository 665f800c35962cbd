"""What is published as an engine's records have it: groups in pieces, a writer's batch in parts."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from mist.engine.contract import Engine, EngineUnavailable
from mist.history import Bulk
from mist.history.arrivals import Piece
from mist.history.commits import pack_blocks
from mist.history.encoding import encode_blocks, takes_long, with_channel_counts
from mist.history.layout import Row
from mist.sessions.submission import Submission, publications_of

__all__ = ["pieces_of", "stage"]

_PART: Final = 1 << 20  # bytes of a part of a batch, but for its last block
_DISCARD: Final = 1.0  # seconds that it may take to discard what was staged in vain


async def pieces_of(
    group: Sequence[Submission],
) -> tuple[list[Piece], list[list[Submission]]]:
    """A group as pieces of a record, and the submissions of each.

    What has a key is a piece of its own, since it may be left out.
    """
    shares: list[list[Submission]] = []
    for submission in group:
        if shares and submission.key is None and shares[-1][0].key is None:
            shares[-1].append(submission)
        else:
            shares.append([submission])
    pieces = []
    for share in shares:
        publications = [each for each in await publications_of(share) if each.batch.tag_lists]
        # All have the time of their record.
        encode_all = partial(encode_blocks, publications, [0] * len(publications))
        if takes_long(publications):
            rows = await trio.to_thread.run_sync(encode_all)
        else:
            rows = encode_all()
        pieces.append(Piece(rows, sum([each.count for each in share]), share[0].key))
    return pieces, shares


async def stage(engine: Engine, name: str, bulk: Bulk) -> int:
    """Stage a batch under a name.

    Of one that can't be staged nothing is left, as far as the engine answers: it may be full of
    these parts, and its writer tries again under another name.

    Returns:
        How many parts it has.

    Raises:
        EngineUnavailable: it can't be staged.
        ValueError: it is not what it says; and whatever else `bulk` raises.
    """
    parts, packed, is_staged = 0, _parts_of(bulk), False
    try:
        while (body := await trio.to_thread.run_sync(next, packed, None)) is not None:
            await engine.stage(name, parts, body)
            parts += 1
        is_staged = True
    finally:
        if not is_staged:
            with trio.move_on_after(_DISCARD, shield=True), suppress(EngineUnavailable):
                await engine.discard(name)
    return parts


def _parts_of(bulk: Bulk) -> Iterator[bytes]:
    """The blocks of a batch, packed, some at a time. Reads files: ask for the next in a thread.

    Raises:
        ValueError: it is not what it says. What no mirror could apply must not be appended.
    """
    rows: list[Row] = []
    size = count = 0
    for row in bulk.blocks():
        rows.append(with_channel_counts(row))
        size += row.head.size
        count += row.head.messages
        if size >= _PART:
            yield pack_blocks(rows)
            rows, size = [], 0
    if count != bulk.count:
        raise ValueError("another number of messages than was said")
    if rows:
        yield pack_blocks(rows)
