"""What nodes ask each other: questions and answers as bytes, and how a node answers.

    tags    every tag that a node's sessions are subscribed to, in order, a page at a time
    list    a page of a list for operators; see `mist.sessions.inspection`
    presence    who is present at some tag sets, and at which that has changed; see
            `mist.sessions.realm_presence`
    connections    a page of the connections that contain a text, in some order
    connection    one connection of one node, with its subscriptions
    end     that one connection of one node is to end
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
from mist.sessions.connection_details import (
    ConnectionDetails,
    detail_connection,
    end_connection,
)
from mist.sessions.finding import ALL, ConnectionQuery
from mist.sessions.inspection import Kind, Page, list_page
from mist.sessions.presence_questions import PresenceAt, PresenceSince, answer_presence
from mist.sessions.session_table import SessionTable

__all__ = [
    "ENDED",
    "ConnectionAt",
    "EndConnection",
    "FindConnections",
    "ListAfter",
    "Seal",
    "TagPage",
    "TagsAfter",
    "answer_question",
    "decode_details",
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


class FindConnections(msgspec.Struct, frozen=True, array_like=True, tag="connections"):
    """A page of a node's connections, as `ListAfter`, which earlier versions answer without this.

    Attributes:
        query: which, in which order.
        after, limit: see `ListAfter`.
    """

    query: ConnectionQuery
    after: tuple[int, str, str] | None
    limit: int


class ConnectionAt(msgspec.Struct, frozen=True, array_like=True, tag="connection"):
    """One connection. The answer is empty from other nodes, and where there is none of this name.

    Attributes:
        node: by id, that is meant.
        after, limit: see `mist.sessions.connection_details.detail_connection`.
    """

    node: str
    name: str
    after: str | None
    limit: int


class EndConnection(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """That a connection is to end. The answer tells whether there was one of this name.

    Asked again within a second, it has the first answer, see `mist.engine.beats.Beats.ask`; a name
    is never given twice by a node.
    """

    node: str
    name: str


class Seal(msgspec.Struct, frozen=True, array_like=True, tag="seal"):
    """That it is to be sealed soon what there is. The answer is empty."""


Question = (
    TagsAfter
    | ListAfter
    | FindConnections
    | ConnectionAt
    | EndConnection
    | PresenceSince
    | PresenceAt
    | Seal
)

_question: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_tags = msgspec.msgpack.Decoder(TagPage)
_list = msgspec.msgpack.Decoder(Page)
_details = msgspec.msgpack.Decoder(ConnectionDetails)
encode_question = msgspec.msgpack.Encoder().encode
"""A question as bytes."""

ENDED: Final = b"\xc3"
"""The answer to `EndConnection` of the node that had it."""

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


def decode_details(answer: bytes) -> ConnectionDetails | None:
    """The answer to `ConnectionAt`; None where it is none, or there is no such connection."""
    try:
        return _details.decode(answer)
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
    if isinstance(question, ConnectionAt | EndConnection):
        return await _answer_one(sessions, node, question)
    after, inclusive = None, False
    if question.after is not None:
        number, text, of = question.after
        after, inclusive = (number, text), node > of
    kind, query = Kind.CONNECTIONS, ALL
    if isinstance(question, ListAfter):
        kind = question.kind
    else:
        query = question.query
    page = await list_page(
        broker, sessions, kind, after, question.limit, inclusive=inclusive, query=query
    )
    return _fitting(page)


async def _answer_one(
    sessions: SessionTable, node: str, question: ConnectionAt | EndConnection
) -> bytes:
    if question.node != node:
        await trio.lowlevel.checkpoint()
        return b""  # so that this node is not waited for
    if isinstance(question, EndConnection):
        return ENDED if await end_connection(sessions, question.name) else b""
    limit = question.limit
    while True:
        found = await detail_connection(sessions, question.name, question.after, limit)
        if found is None:
            return b""
        body = encode_question(found)
        if len(body) <= MAX_ANSWER:
            return body
        limit //= 2


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
