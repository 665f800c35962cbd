"""The log as Arrow, for Spark and other readers of millions of messages.

GET /v1/log                 a page: rows after an id, from the history or the archive
GET /v1/log/position        first and newest id, and the id at a time
POST /v1/log/seal           seals all that was published into the archive now, and writes accounts
POST /v1/log/erase          erases messages from the history
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, Final

import attrs
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.archive import ArchiveError
from mist.attributes import Attributes
from mist.errors import HistoryOff, NotGranted, TooManyTags
from mist.history import MAX_ID, Erasure
from mist.http.access import Caller
from mist.http.bodies import ARROW, answer, read_body
from mist.http.context import Context
from mist.http.held_pages import HeldPage, HeldPages
from mist.http.log_pages import LogReader, Wanted
from mist.http.openapi import (
    EITHER,
    NO_HISTORY,
    SERVICE,
    Answer,
    Body,
    Operation,
    Operations,
    parameter,
)
from mist.http.problems import Problem
from mist.http.publications import TAGS as TAG_LIST
from mist.http.queries import Query
from mist.http.reading import check_reading
from mist.http.staging import NO_ARROW
from mist.message import MAX_REPEATS, Limits, TagSet, parse_tags
from mist.protocols.selections import parse_alternative, parse_moment, split_alternatives
from mist.sessions.sequencer import Sequencer

__all__ = ["OPERATIONS", "routes"]

_LIMIT: Final = 20_000  # rows
_MOST: Final = 200_000
_OTHERS: Final = 300  # commas and strings of an erasure besides its tags; a publisher has 255 bytes
_MAX_SECONDS: Final = 60  # of one step of an erasure or of sealing


class LogPosition(msgspec.Struct, frozen=True):
    """The position of the log.

    Attributes:
        first: the lowest id that can be read; `newest + 1` where there is none.
        sealed: the highest id in the archive; 0 without one.
        gone: up to this id retention has removed messages, except what `--keep` has kept
            between `first` and it; 0 where the archive has them. For a reader that starts
            now they are no loss; `Mist-Lost` names them to one that continues.
        after: where to start reading for the requested time; else null.
    """

    epoch: str
    first: int
    newest: int
    sealed: int
    gone: int
    after: int | None


class Sealed(msgspec.Struct, frozen=True):
    """The highest id that was sealed into the archive."""

    sealed: int


class ErasureRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either tags, of which a message carries all; or a publisher: the registry id of a token, or
    a listener's name."""

    tags: list[str] | None = None
    publisher: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None


class ErasedRange(msgspec.Struct, frozen=True):
    """How many messages were erased, and the ids of the first and last; null where none was.

    Attributes:
        after: only for a request with `seconds`: where to continue; null where all is done.
    """

    erased: int
    first: int | None
    last: int | None
    after: int | msgspec.UnsetType | None = msgspec.UNSET


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/log` and the paths below it, except for staging."""
    access, hub = context.access, context.hub
    readers: list[LogReader] = []
    pages = HeldPages()

    def parts() -> tuple[Sequencer, LogReader]:
        sequencer = hub.sequencer
        if sequencer is None:
            raise HistoryOff
        if not readers:
            readers.append(LogReader(hub, sequencer))
        return sequencer, readers[0]

    async def read(request: Request) -> Response:
        caller = await access.caller(request)
        with ExitStack() as held:
            if caller.record is not None:
                held.callback(await pages.take(caller.record.id))
            headers, body = await make(request, access.again(caller, request))
            return HeldPage(body, headers, ARROW, held.pop_all())

    async def make(request: Request, caller: Caller) -> tuple[dict[str, str], bytes]:
        sequencer, reader = parts()
        query = Query(request)
        wanted = _wanted(query, hub.limits, caller)
        epoch = query.one("epoch")
        if epoch is not None and epoch != sequencer.epoch:
            raise Problem(410, "epoch_changed", "the log has another epoch")
        if caller.record is not None and not wanted.alternatives:
            raise NotGranted  # of everything
        while True:
            await check_reading(hub, request, caller, wanted.alternatives or ())
            try:
                page = await reader.read(wanted)
            except ArchiveError as error:
                raise _archive_problem(error) from error
            first = await reader.first()
            before, caller = caller, access.again(caller, request)
            if caller.record is before.record:
                break
            # The token has changed meanwhile.
            wanted = attrs.evolve(wanted, attributes=_attributes(caller))
        headers = {
            "Mist-Epoch": sequencer.epoch,
            "Mist-After": str(page.after),
            "Mist-Complete": "true" if page.complete else "false",
            "Mist-First": str(first),
            "Mist-Newest": str(sequencer.newest),
            "Cache-Control": "no-store",
        }
        if page.lost:
            headers["Mist-Lost"] = ",".join(f"{first}-{last}" for first, last in page.lost)
        return headers, page.body

    async def position(request: Request) -> Response:
        await access.caller(request)
        sequencer, reader = parts()
        text = Query(request).one("time")
        time = None if text is None else _time(text)
        try:
            after = None if time is None else await reader.older(time)
        except ArchiveError as error:
            raise _archive_problem(error) from error
        first = await reader.first()
        expired = (await sequencer.history.position()).expired
        gone = expired if expired > reader.sealed else 0
        where = (sequencer.epoch, first, sequencer.newest, reader.sealed, gone, after)
        return answer(LogPosition(*where))

    async def seal(request: Request) -> Response:
        await access.service(request)
        seconds = _number(Query(request), "seconds", 1, _MAX_SECONDS)
        if hub.sealer is None:
            raise Problem(409, "archive_off", "this server has no archive")
        newest = (await hub.sealer.history.position()).newest
        try:
            sealed = await hub.sealer.seal_now(seconds=seconds)
            if sealed >= newest and hub.side_tables is not None:
                await hub.side_tables.seal_now()
            return answer(Sealed(sealed))
        except ArchiveError as error:
            raise _archive_problem(error) from error

    async def erase(request: Request) -> Response:
        await access.service(request)
        tags = hub.limits.message_tags
        most = tags * MAX_REPEATS + _OTHERS
        asked = await read_body(request, ErasureRequest, most, TooManyTags(tags))
        sequencer, _ = parts()
        erasure = _erasure(asked, hub.limits)
        query = Query(request)
        after = _number(query, "after", 0, MAX_ID) or 0
        seconds = _number(query, "seconds", 1, _MAX_SECONDS)
        eraser: Any = hub.nodes or hub.sealer or sequencer.history
        done = await eraser.erase(erasure, after=after, seconds=seconds)
        further = msgspec.UNSET if seconds is None else done.after
        return answer(ErasedRange(done.messages, done.first or None, done.last or None, further))

    return [
        Route("/v1/log", read, methods=["GET"]),
        Route("/v1/log/position", position, methods=["GET"]),
        Route("/v1/log/seal", seal, methods=["POST"]),
        Route("/v1/log/erase", erase, methods=["POST"]),
    ]


def _wanted(query: Query, limits: Limits, caller: Caller) -> Wanted:
    subscribe = query.one("subscribe")
    if subscribe is None and not caller.is_service:
        raise Problem(400, "subscribe_needed", "with a token, subscribe is required")
    number = partial(_number, query)
    return Wanted(
        after=number("after", 0, MAX_ID) or 0,
        upto=number("upto", 0, MAX_ID),
        limit=number("limit", 1, _MOST) or _LIMIT,
        alternatives=None if subscribe is None else _alternatives(subscribe, limits),
        attributes=_attributes(caller),
    )


def _number(query: Query, name: str, least: int, most: int) -> int | None:
    text = query.one(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and least <= int(text) <= most):
        code = {"limit": "invalid_limit", "seconds": "invalid_seconds"}.get(
            name, "invalid_position"
        )
        raise Problem(400, code, f"{name} is a number from {least} to {most}")
    return int(text)


def _alternatives(text: str, limits: Limits) -> frozenset[TagSet]:
    most = limits.subscription_tags
    return frozenset(parse_alternative(part, most) for part in split_alternatives(text))


def _attributes(caller: Caller) -> Attributes | None:
    """The attributes that decide which messages the caller may get; None for a service: all."""
    return None if caller.record is None else caller.record.attributes


def _time(text: str) -> float:
    """Unix seconds."""
    try:
        return parse_moment(text) / 1_000_000
    except ValueError:
        raise Problem(400, "invalid_time", "time is ISO 8601 or ms since 1970") from None


def _erasure(asked: ErasureRequest, limits: Limits) -> Erasure:
    if (asked.tags is None) == (asked.publisher is None):
        raise Problem(400, "invalid_body", "give either tags or a publisher")
    if asked.tags is not None:
        return Erasure(parse_tags(asked.tags, limits.message_tags))
    return Erasure(publisher=asked.publisher)


def _archive_problem(error: ArchiveError) -> Problem:
    # Its text names directories, which only the operator should see.
    detail = "the archive can't be read or written now"
    return Problem(503, error.code, detail, {"Retry-After": "5"})


# OpenAPI

_ID: Final = {"type": "integer", "minimum": 0, "maximum": MAX_ID}
_TAG: Final = r"(?![./>]|=/)[^ ,;\u0000-\u001F\u007F-\u009F*]{1,63}"
_DAY: Final = "20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME: Final = f"^({_DAY}T([01][0-9]|2[0-3]):[0-5][0-9]Z|0|[1-9][0-9]{{0,12}})$"
_UNAVAILABLE: Final = "The history or the archive can't be read or written now."
_SECONDS: Final = parameter(
    "seconds",
    "End after so many seconds, with what has been done.",
    {"type": "integer", "minimum": 1, "maximum": _MAX_SECONDS},
)

# Stricter than what msgspec would generate for `ErasureRequest`.
_ERASURE: Final[dict[str, Any]] = {
    "oneOf": [
        {
            "type": "object",
            "required": [name],
            "additionalProperties": False,
            "properties": {name: schema},
        }
        for name, schema in (
            ("tags", TAG_LIST),
            ("publisher", {"type": "string", "minLength": 1, "maxLength": 255}),
        )
    ]
}

_HEADERS: Final = {
    "Mist-Epoch": "Which log the ids belong to.",
    "Mist-After": "Where to continue: the next `after`.",
    "Mist-Complete": "`true` where nothing is left up to `upto`, or to the newest.",
    "Mist-First": "The lowest id that can be read.",
    "Mist-Newest": "The highest id.",
    "Mist-Lost": "Ids before `Mist-After` that are no longer available: `17-20,31-31`.",
}

OPERATIONS: Final[Operations] = {
    "/v1/log": {
        "get": Operation(
            summary="Read the log as Arrow",
            details="One IPC stream: id int64, time timestamp[us, UTC], tags list<string>, data "
            "binary, publisher string, audience string, meta map<string,binary>; by ascending "
            "ids. A page ends at `limit` rows, or at about 16 MiB. With a token `subscribe` is "
            "needed, messages for others are left out, and the last three columns are blank; a "
            "page waits while eight of the token aren't read to their end, for 10 s, and is "
            "refused then.",
            who=EITHER,
            parameters=[
                parameter("after", "Rows with higher ids.", {**_ID, "default": 0}),
                parameter("upto", "Rows with no higher ids.", _ID),
                parameter(
                    "limit",
                    "Most rows.",
                    {"type": "integer", "minimum": 1, "maximum": _MOST, "default": _LIMIT},
                ),
                parameter(
                    "subscribe",
                    "`a,b; c` is (a and b) or c. All, if absent.",
                    {"type": "string", "pattern": f"^{_TAG}(,{_TAG})?(; ?{_TAG})?$"},
                    example="news; room:1,urgent",
                ),
                parameter("epoch", "Refuse if the log has another epoch.", {"type": "string"}),
            ],
            answers={200: Answer("A page.", media_type=ARROW, headers=_HEADERS)},
            problems={
                409: NO_HISTORY,
                410: "The log has another epoch.",
                501: NO_ARROW,
                503: _UNAVAILABLE,
            },
        )
    },
    "/v1/log/position": {
        "get": Operation(
            summary="Get the position of the log",
            who=EITHER,
            parameters=[
                parameter(
                    "time",
                    "ISO 8601, or milliseconds since 1970; answered with `after`.",
                    {"type": "string", "pattern": _TIME},
                    example="2026-01-01T00:00Z",
                )
            ],
            answers={
                200: Answer(
                    "The position.",
                    LogPosition,
                    {
                        "epoch": "9f86d081884c7d65",
                        "first": 1,
                        "newest": 1017,
                        "sealed": 1000,
                        "gone": 0,
                        "after": None,
                    },
                )
            },
            problems={409: NO_HISTORY, 501: NO_ARROW, 503: _UNAVAILABLE},
        )
    },
    "/v1/log/seal": {
        "post": Operation(
            summary="Seal all that was published",
            details="Usage accounting is written too, once all is sealed. With `seconds` it may "
            "end earlier: repeat it until `sealed` is high enough.",
            who=SERVICE,
            parameters=[_SECONDS],
            body=Body({"type": "object"}, {}),
            answers={200: Answer("All is sealed.", Sealed, {"sealed": 1017})},
            problems={409: "This server has no archive.", 503: _UNAVAILABLE},
        )
    },
    "/v1/log/erase": {
        "post": Operation(
            summary="Erase messages",
            details="From the history: no byte of them is left in its file. For the archive use "
            "`mist pipeline erase`. It may take minutes; with `seconds` it is done in steps: "
            "repeat it with `after` as answered, until that is null.",
            who=SERVICE,
            parameters=[
                parameter("after", "Where the previous step ended.", {**_ID, "default": 0}),
                _SECONDS,
            ],
            body=Body(_ERASURE, {"tags": ["user:17"]}),
            answers={200: Answer("Erased.", ErasedRange, {"erased": 2, "first": 17, "last": 20})},
            problems={409: NO_HISTORY, 503: _UNAVAILABLE},
        )
    },
}
