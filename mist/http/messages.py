"""Messages: publish some, read what was.

POST /v1/messages       all of a request's messages or none; durable when answered, where
                        there is a history
GET /v1/messages        a page of what matches any of some tag sets, by ascending ids
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import attrs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.auth import Record
from mist.commands import Since
from mist.errors import HistoryOff, NotGranted
from mist.history import Key, Selection, StoredMessage
from mist.http.access import Caller
from mist.http.bodies import NDJSON, answer
from mist.http.context import Context
from mist.http.idempotency import conflict, key_of
from mist.http.paging import limit_of
from mist.http.problems import Problem
from mist.http.publications import Publications, read_publications
from mist.http.queries import Query, Wanted
from mist.hub import Hub
from mist.message import TagSet
from mist.sequencer import Sequencer

__all__ = ["routes"]

_PAGE: Final = 1 << 20  # bytes of messages, after which a page ends


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/v1/messages`."""

    async def publish(request: Request) -> Response:
        caller = await context.access.caller(request)
        _check_room(context.hub)
        body = await request.body()
        kind = request.headers["content-type"].partition(";")[0].strip().lower()
        found = read_publications(body, context.hub.limits, lines=kind == NDJSON)
        key = key_of(request, caller, body, kind)
        return await _publish(
            context.hub, found, key, lambda: context.access.again(caller, request)
        )

    async def read(request: Request) -> Response:
        caller = await context.access.caller(request)
        sequencer = context.hub.sequencer
        if sequencer is None:
            raise HistoryOff
        wanted = Wanted.of(request, context.hub.limits)
        limit = limit_of(Query(request))
        _check_reading(context.hub, caller.record, wanted.tag_sets)
        since = wanted.since or Since(after=0)
        page = await _read(sequencer, Selection(wanted.tag_sets), since, limit)
        messages = [_object(each, caller) for each in page.messages]
        return answer({**attrs.asdict(page, recurse=False), "messages": messages})

    async def either(request: Request) -> Response:
        return await (publish if request.method == "POST" else read)(request)

    # One route, so that the answer to any other method names both.
    return [Route("/v1/messages", either, methods=["GET", "POST"])]


# publishing


async def _publish(
    hub: Hub, found: Publications, key: Key | None, caller_now: Callable[[], Caller]
) -> Response:
    def checked() -> str:
        _check_room(hub)
        caller = caller_now()
        _check_publishing(caller.record, found)
        return caller.name

    def publish() -> int:
        return hub.publish_all(found.messages, checked())

    async def store() -> int:
        return await hub.store_all(found.messages, checked(), key)

    if hub.sequencer is None:
        if key is None:
            publish()
        elif not hub.recent.once(key, publish):
            raise conflict()
        return answer({}, 202)
    first = await (store() if key is None else hub.sequencer.repeats.once(key, store))
    if first is None:
        raise conflict()
    count = len(found.messages)
    if found.is_list:
        return answer({"ids": [first, first + count - 1], "count": count})
    return answer({"id": first})


def _check_room(hub: Hub) -> None:
    """Have publishers wait on their side where they are faster than the disk."""
    if hub.sequencer is not None and hub.sequencer.crowded:
        raise Problem(503, "busy", "too much is waiting to be stored", {"Retry-After": "1"})


def _check_publishing(record: Record | None, found: Publications) -> None:
    if record is None:
        return
    for tags in {tags for tags, _ in found.messages}:
        if not record.grant.may_publish(tags):
            raise NotGranted


# reading


@attrs.frozen
class _Page:
    """See `GET /v1/messages`: names and order are those of the answer."""

    epoch: str
    first: int
    newest: int
    id: int
    recovered: bool
    complete: bool
    messages: Sequence[StoredMessage]


async def _read(sequencer: Sequencer, selection: Selection, since: Since, limit: int) -> _Page:
    history, newest = sequencer.history, sequencer.newest
    if since.last is not None:
        start = await history.last(selection, since.last, upto=newest)
    else:
        start = since.start(sequencer.epoch, newest)
    page = await history.read(selection, after=start, upto=newest, limit=limit, max_bytes=_PAGE)
    while not page.stored and not page.complete:
        page = await history.read(
            selection, after=page.after, upto=newest, limit=limit, max_bytes=_PAGE
        )
    # Asked last, so that it knows of whatever retention took before the page was read.
    recovered = True
    if since.after or since.epoch is not None:
        recovered = await history.recovered(selection, since.after or 0, since.epoch)
    position = await history.position()
    return _Page(
        sequencer.epoch,
        position.first,
        newest,
        page.after,
        recovered,
        page.after >= newest,
        list(page.messages()),
    )


def _check_reading(hub: Hub, record: Record | None, tag_sets: Iterable[TagSet]) -> None:
    if record is None:
        return
    strict = hub.hub_limits.strict_grants
    if not all(record.grant.permits(tags, strict=strict) for tags in tag_sets):
        raise NotGranted


def _object(message: StoredMessage, caller: Caller) -> dict[str, Any]:
    """A message as JSON; who published it is for services to know."""
    found: dict[str, Any] = {"keys": sorted(message.tags)}
    try:
        found["data"] = message.data.decode()
    except UnicodeDecodeError:
        found["data64"] = message.data  # which is written in Base64
    found |= {"id": message.id, "time": message.time}
    if caller.is_service and message.publisher:
        found["publisher"] = message.publisher
    return found
