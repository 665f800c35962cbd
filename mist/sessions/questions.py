"""What nodes ask each other: questions and answers as bytes, and how a node answers.

    tags    every tag that a node's sessions are subscribed to, in order, a page at a time

Nodes of several versions may be asked. One that does not know a question does not answer it, and is
named as missing.
"""

import heapq
from typing import Final

import msgspec
import trio

from mist.broker.broker import Broker
from mist.engine.members import MAX_ANSWER

__all__ = ["TagPage", "TagsAfter", "answer_question", "decode_tags", "encode_question"]

_BETWEEN: Final = 8  # bytes that a tag takes beside its own, at most
_SLICE: Final = 2_000  # tags between two checkpoints, up to 1 ms


class TagsAfter(msgspec.Struct, frozen=True, array_like=True, tag="tags"):
    """The tags behind this one, in the order of their code points."""

    after: str


class TagPage(msgspec.Struct, frozen=True, array_like=True):
    """Tags, sorted, without gaps; and whether there are more behind them."""

    tags: list[str]
    more: bool


Question = TagsAfter

_question: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_page = msgspec.msgpack.Decoder(TagPage)
encode_question = msgspec.msgpack.Encoder().encode
"""A question as bytes."""


def decode_tags(answer: bytes) -> TagPage | None:
    """The answer to `TagsAfter`; None where it is none."""
    try:
        return _page.decode(answer)
    except msgspec.MsgspecError:
        return None


async def answer_question(broker: Broker, body: bytes) -> bytes | None:
    """The answer to a question of another node; None where it isn't understood."""
    try:
        question = _question.decode(body)
    except msgspec.MsgspecError:
        await trio.lowlevel.checkpoint()
        return None
    return encode_question(await _tags_after(broker, question.after))


async def _tags_after(broker: Broker, after: str) -> TagPage:
    """A page of tags. O(tags), with checkpoints."""
    slices: list[list[str]] = []
    for some in broker.tags_in_steps():
        slices.append(sorted([tag for tag in some if tag > after]))
        await trio.lowlevel.checkpoint()
    tags: list[str] = []
    left = MAX_ANSWER - 64  # for what is around them
    for tag in heapq.merge(*slices):
        if tags and tag == tags[-1]:  # it came and went meanwhile
            continue
        left -= len(tag.encode()) + _BETWEEN
        if left < 0:
            return TagPage(tags, more=True)
        tags.append(tag)
        if len(tags) % _SLICE == 0:
            await trio.lowlevel.checkpoint()
    return TagPage(tags, more=False)
