"""Staging: exactly-once writes. Rows are staged in parts, and a commit appends them at once.

PUT /v1/log/stage/{txn}/{batch}/{partition}/{attempt}/{part}    an Arrow stream; idempotent
POST /v1/log/commit                                             the attempts that count
DELETE /v1/log/stage/{txn}/{batch}                              discards a batch

The tasks of a Spark query stage parts, however often each is retried, and its driver commits. A
client that lost an answer retries: (txn, batch) is stored with the messages, so a batch is
appended once.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Final

import attrs
import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.auth import Grant
from mist.errors import HistoryOff, HistoryUnavailable, NotGranted
from mist.history import MAX_ID, Commit, Mark
from mist.http.access import Caller
from mist.http.bodies import ARROW, answer, read_body
from mist.http.context import Context
from mist.http.openapi import EITHER, Answer, Body, Operation, Operations, Parameter, parameter
from mist.http.problems import Problem
from mist.http.staging_store import WRITER, Attempt, Batch, PartMissing, Stage, Staged
from mist.sessions.sequencer import Sequencer

__all__ = ["OPERATIONS", "routes"]

_MOST_PARTS: Final = 100_000  # of a commit
_MOST_VALUES: Final = (
    400_000  # of a commit's body: three for each attempt, which has a part or more
)
_MAKERS: Final = 2  # threads that read Arrow; each takes several times the memory of its body

_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]
_Parts = Annotated[int, msgspec.Meta(ge=0, le=_MOST_PARTS)]
_Writer = Annotated[str, msgspec.Meta(pattern=f"^{WRITER.pattern}$", max_length=128)]


class TaskAttempt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The attempt at a partition that counts; it staged parts 0 to `parts - 1`."""

    partition: _Number
    attempt: _Number
    parts: _Parts


class CommitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to append: the attempts in this order, each with its parts in order."""

    txn: _Writer
    batch: _Number
    attempts: list[TaskAttempt]


class StagedRows(msgspec.Struct, frozen=True):
    """How many rows a part has."""

    rows: int


class Committed(msgspec.Struct, frozen=True):
    """The result of a commit: ids of the first and last message, null where there is none; and
    whether it had been stored before. Of a batch before the writer's last one only that is
    known: the first three are null."""

    first: int | None
    last: int | None
    rows: int | None
    repeated: bool


@attrs.define
class _CommitUnderWay:
    """A commit under way."""

    done: trio.Event = attrs.field(factory=trio.Event)
    outcome: Committed | Exception = attrs.field(factory=HistoryUnavailable)


class Commits:
    """Runs one commit of a writer at a time, to its end, even if its client has gone.

    Args:
        sequencer: of the history.
    """

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._under_way: dict[tuple[str, str], _CommitUnderWay] = {}

    async def run(self, mark: Mark, commit: Callable[[], Awaitable[Committed]]) -> Committed:
        """Run `commit` after others of that writer. What it raises is passed on."""
        key = mark.owner, mark.writer
        while (other := self._under_way.get(key)) is not None:
            await other.done.wait()
        turn = _CommitUnderWay()

        async def run() -> None:
            try:
                turn.outcome = await commit()
            except Exception as error:
                turn.outcome = error
            finally:
                del self._under_way[key]
                turn.done.set()

        self._sequencer.start_soon(run)
        self._under_way[key] = turn  # not before that: where it can't be run, it is nobody's turn
        await turn.done.wait()
        if isinstance(turn.outcome, Exception):
            raise turn.outcome
        return turn.outcome


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/log/stage` and `/v1/log/commit`."""
    hub = context.hub
    stage = Stage(context.config.data / "stage", context.config.max_stage)
    commits = None if hub.sequencer is None else Commits(hub.sequencer)
    makers = trio.CapacityLimiter(_MAKERS)

    async def put(request: Request) -> Response:
        # As for other publishers: who has no right is told so before the body is read.
        caller = await context.access.caller(request)
        if not caller.publishes:
            raise NotGranted
        if hub.sequencer is None:
            raise HistoryOff
        batch = _batch(request, caller)
        partition, attempt, part = (
            _number(request, name) for name in ("partition", "attempt", "part")
        )
        body = await request.body()
        rows, lists, data = await trio.to_thread.run_sync(
            partial(_make, body, context, caller), limiter=makers
        )
        await _check_grant(lambda: context.access.again(caller, request), lists)
        await stage.put(batch, partition, attempt, part, data)
        return answer(StagedRows(rows), 201)

    async def discard(request: Request) -> Response:
        caller = await context.access.caller(request)
        await stage.discard(_batch(request, caller))
        return Response(status_code=204)

    async def commit(request: Request) -> Response:
        caller = await context.access.caller(request)
        asked = await read_body(request, CommitRequest, _MOST_VALUES)
        if not WRITER.fullmatch(asked.txn):  # the schema's $ matches before a line end, too
            raise Problem(400, "invalid_body", "the body can't be understood: txn")
        if commits is None or hub.sequencer is None:
            raise HistoryOff
        attempts = _attempts(asked)
        mark = Mark(caller.name, asked.txn, asked.batch)
        batch = Batch(None if caller.is_service else caller.name, asked.txn, asked.batch)
        run = _Run(
            hub.sequencer, stage, mark, batch, attempts,
            lambda: context.access.again(caller, request), context.is_draining,
        )  # fmt: skip
        return answer(await commits.run(mark, run))

    return [
        Route(_PART, put, methods=["PUT"]),
        Route(_BATCH, discard, methods=["DELETE"]),
        Route("/v1/log/commit", commit, methods=["POST"]),
    ]


@attrs.frozen
class _Run:
    """One commit."""

    sequencer: Sequencer
    stage: Stage
    mark: Mark
    batch: Batch
    attempts: Sequence[Attempt]
    caller_now: Callable[[], Caller]
    is_draining: Callable[[], bool]

    async def __call__(self) -> Committed:
        known = await self.sequencer.history.committed(self.mark.owner, self.mark.writer)
        if known is not None and self.mark.batch <= known.batch:
            return self._answer(known, fresh=False)
        if self.is_draining():
            raise Problem(503, "draining", "the server is stopping", {"Retry-After": "5"})
        with self.stage.untouched(self.batch):
            try:
                staged = await self.stage.gather(self.batch, self.attempts)
                commit, fresh = await self._commit(staged)
            except (PartMissing, ValueError) as error:
                raise Problem(409, "part_missing", str(error)) from None
        await self.stage.discard(self.batch, and_before=True)
        return self._answer(commit, fresh=fresh)

    async def _commit(self, staged: Staged) -> tuple[Commit, bool]:
        await _check_grant(self.caller_now, staged.lists)
        # No await in between: a revocation takes effect before the check or after the commit.
        if not staged.sites <= {_site(self.caller_now())}:
            raise PartMissing("the token's site has changed; stage the parts again")
        return await self.sequencer.commit(staged.bulk, self.mark)

    def _answer(self, commit: Commit, *, fresh: bool) -> Committed:
        if commit.batch != self.mark.batch:
            return Committed(None, None, None, True)
        return Committed(commit.first or None, commit.last or None, commit.count, not fresh)


async def _check_grant(
    caller_now: Callable[[], Caller], lists: Sequence[bytes] | frozenset[bytes]
) -> None:
    """Check that the caller may still publish with all these tag lists.

    They may be many, so they are checked in a thread, and again where the token has changed
    meanwhile. On return the token is the one that was checked.

    Raises:
        NotGranted: one of them needs more.
    """
    record = caller_now().record
    while record is not None and lists:
        if not await trio.to_thread.run_sync(_may_publish, record.grant, lists):
            raise NotGranted
        before, record = record, caller_now().record
        if record is before:
            return


def _may_publish(grant: Grant, lists: Sequence[bytes] | frozenset[bytes]) -> bool:
    return all(grant.may_publish(frozenset(each.decode().split(","))) for each in lists)


def _make(body: bytes, context: Context, caller: Caller) -> tuple[int, Sequence[bytes], bytes]:
    try:
        from mist.http.staging_parts import make_part
    except ModuleNotFoundError as error:
        raise no_arrow() from error
    return make_part(
        body,
        context.hub.limits,
        caller.name,
        is_service=caller.is_service,
        site=_site(caller),
    )


def _site(caller: Caller) -> str:
    """What the caller's messages are restricted to; empty is nothing."""
    return "" if caller.record is None else caller.record.attributes.site


def no_arrow() -> Problem:
    """The answer where pyarrow is missing."""
    return Problem(501, "archive_extra_missing", "the server needs mist-pubsub[archive] for that")


def _batch(request: Request, caller: Caller) -> Batch:
    writer = request.path_params["txn"]
    if not WRITER.fullmatch(writer):
        raise _no_name("txn", "1 to 128 letters, digits, '.', '_' and '-'")
    return Batch(None if caller.is_service else caller.name, writer, _number(request, "batch"))


def _number(request: Request, name: str) -> int:
    text: str = request.path_params[name]
    if not text.isascii() or not text.isdecimal() or len(text) > 16 or int(text) > MAX_ID:
        raise _no_name(name, f"a number from 0 to {MAX_ID}")
    return int(text)


def _no_name(name: str, expected: str) -> Problem:
    return Problem(400, "invalid_name", f"{name} is {expected}")


def _attempts(asked: CommitRequest) -> list[Attempt]:
    if sum([each.parts for each in asked.attempts]) > _MOST_PARTS:
        raise Problem(413, "commit_too_large", f"a commit takes at most {_MOST_PARTS} parts")
    if len({each.partition for each in asked.attempts}) < len(asked.attempts):
        raise Problem(409, "two_attempts", "only one attempt at a partition counts")
    return [Attempt(each.partition, each.attempt, each.parts) for each in asked.attempts]


# OpenAPI

_NAME: Final = {"type": "string", "pattern": r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"}
_WHOLE: Final = {"type": "integer", "minimum": 0, "maximum": MAX_ID}
_PART: Final = "/v1/log/stage/{txn}/{batch}/{partition}/{attempt}/{part}"
_BATCH: Final = "/v1/log/stage/{txn}/{batch}"
_UNAVAILABLE: Final = "The history can't be written, or the server is stopping; retry."
NO_ARROW: Final = "The server lacks the extra that reads and writes Arrow."


def _path(name: str, description: str, example: object) -> Parameter:
    schema = _NAME if name == "txn" else _WHOLE
    return parameter(name, description, schema, place="path", example=example)


_TXN: Final = _path("txn", "The writer, such as a query's id. It belongs to the credential.", "q1")
_NUMBER: Final = _path("batch", "Number of the batch, ascending for each writer.", 17)

OPERATIONS: Final[Operations] = {
    _PART: {
        "put": Operation(
            summary="Stage a part",
            details="Rows for a later commit. Columns: `tags` list<string>, `data` binary or "
            "string; from services also `audience` string (as `users=1&groups=a`), `meta` "
            "map<string,binary>. Not "
            "compressed, no dictionaries. A part replaces one of the same name; parts "
            "that are not committed are deleted after a day.",
            who=EITHER,
            parameters=[
                _TXN,
                _NUMBER,
                _path("partition", "Of the batch.", 0),
                _path("attempt", "At the partition.", 3),
                _path("part", "Of the attempt, from 0.", 0),
            ],
            body=Body({"type": "string", "format": "binary"}, None, media_type=ARROW),
            answers={201: Answer("Staged.", StagedRows, {"rows": 1000})},
            problems={
                409: "There is no history, or the batch is being committed.",
                422: "A row is invalid; the text names it.",
                501: NO_ARROW,
                503: _UNAVAILABLE,
            },
        )
    },
    _BATCH: {
        "delete": Operation(
            summary="Discard a batch",
            who=EITHER,
            parameters=[_TXN, _NUMBER],
            answers={204: Answer("Nothing of it is staged any more.")},
            problems={409: "The batch is being committed."},
        )
    },
    "/v1/log/commit": {
        "post": Operation(
            summary="Commit staged parts",
            details="In one transaction. A repeat, that is any batch number up to the writer's "
            "last, appends nothing.",
            who=EITHER,
            body=Body(
                CommitRequest,
                {
                    "txn": "q1",
                    "batch": 17,
                    "attempts": [{"partition": 0, "attempt": 3, "parts": 1}],
                },
            ),
            answers={
                200: Answer(
                    "Stored, and delivered to subscribers.",
                    Committed,
                    {"first": 18, "last": 1017, "rows": 1000, "repeated": False},
                )
            },
            problems={
                409: "There is no history, a part is missing or the token's site has changed since "
                "it was staged, or a partition is there twice.",
                503: _UNAVAILABLE,
            },
        )
    },
}
