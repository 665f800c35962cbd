"""What nodes ask each other: questions and answers as bytes, and how a node answers.

    tags    every tag that a node's sessions are subscribed to, in order, a page at a time
    list    a page of a list for operators; see `mist.sessions.inspection`
    presence    who is present at some tag sets, and at which that has changed; see
            `mist.sessions.realm_presence`
    seal    nothing: what the node has is to be sealed into the archive soon

Nodes of several versions may be asked. One that does not know a question does not answer it, and is
named as missing.
"""

import heapq
from typing import Final

import msgspec
import trio

from mist.broker.broker import Broker
from mist.engine.members import MAX_ANSWER
from mist.sessions.inspection import Kind, Page, list_page
from mist.sessions.presence_questions import PresenceAt, PresenceSince, answer_presence
from mist.sessions.session_table import SessionTable

__all__ = [
    "ListAfter",
    "Seal",
    "TagPage",
    "TagsAfter",
    "answer_question",
    "decode_list",
    "decode_tags",
    "encode_question",
    "is_to_seal",
]

_BETWEEN: Final = 8  # bytes that a tag takes beside its own, at most
_SLICE: Final = 2_000  # tags between two checkpoints, up to 1 ms


class TagsAfter(msgspec.Struct, frozen=True, array_like=True, tag="tags"):
    """The tags behind this one, in the order of their code points."""

    after: str


class TagPage(msgspec.Struct, frozen=True, array_like=True):
    """Tags, sorted, without gaps; and whether there are more behind them."""

    tags: list[str]
    more: bool


class ListAfter(msgspec.Struct, frozen=True, array_like=True, tag="list"):
    """A page of a node's list. The order over all nodes is that of keys, then of nodes.

    Attributes:
        after: number and text of the key behind which it begins, and the node that has it.
        limit: most entries of it.
    """

    kind: Kind
    after: tuple[int, str, str] | None
    limit: int


class Seal(msgspec.Struct, frozen=True, array_like=True, tag="seal"):
    """That it is to be sealed soon what there is. The answer is empty."""


Question = TagsAfter | ListAfter | PresenceSince | PresenceAt | Seal

_question: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_tags = msgspec.msgpack.Decoder(TagPage)
_list = msgspec.msgpack.Decoder(Page)
encode_question = msgspec.msgpack.Encoder().encode
"""A question as bytes."""

_SEAL: Final = encode_question(Seal())


def is_to_seal(body: bytes) -> bool:
    """Whether a question is `Seal`."""
    return body == _SEAL


def decode_tags(answer: bytes) -> TagPage | None:
    """The answer to `TagsAfter`; None where it is none."""
    try:
        return _tags.decode(answer)
    except msgspec.MsgspecError:
        return None


def decode_list(answer: bytes) -> Page | None:
    """The answer to `ListAfter`; None where it is none."""
    try:
        return _list.decode(answer)
    except msgspec.MsgspecError:
        return None


async def answer_question(
    broker: Broker, sessions: SessionTable, node: str, body: bytes
) -> bytes | None:
    """The answer to a question of another node; None where it isn't understood.

    Args:
        node: that answers.
    """
    try:
        question = _question.decode(body)
    except msgspec.MsgspecError:
        await trio.lowlevel.checkpoint()
        return None
    if isinstance(question, Seal):
        await trio.lowlevel.checkpoint()
        return b""
    if isinstance(question, PresenceSince | PresenceAt):
        return await answer_presence(broker.presence, node, question)
    if isinstance(question, TagsAfter):
        return encode_question(await _tags_after(broker, question.after))
    after, inclusive = None, False
    if question.after is not None:
        number, text, of = question.after
        after, inclusive = (number, text), node > of
    page = await list_page(
        broker, sessions, question.kind, after, question.limit, inclusive=inclusive
    )
    return _fitting(page)


def _fitting(page: Page) -> bytes:
    """A page as an answer, with fewer entries where it would be too large."""
    body = encode_question(page)
    while len(body) > MAX_ANSWER:
        fewer = page.entries[: len(page.entries) // 2]
        page = Page(fewer, page.count, more=True)
        body = encode_question(page)
    return body


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
