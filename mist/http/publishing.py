"""Publishing over HTTP: all of a request's messages, or none."""

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated

import attrs
import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from mist.broker.attribute_index import for_site
from mist.errors import NotGranted
from mist.history import Key
from mist.http.access import Caller
from mist.http.bodies import answer
from mist.http.context import Context
from mist.http.idempotency import conflict
from mist.http.problems import Problem
from mist.http.publications import Reading
from mist.message import Envelope
from mist.sessions.batching import Checked
from mist.sessions.hub import Hub
from mist.turns import emptying

__all__ = ["Published", "Publishing", "check_room"]


class Published(msgspec.Struct, frozen=True):
    """The id of one message; of a list the ids of its first and last message, and their number."""

    id: int | UnsetType = UNSET
    ids: Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)] | UnsetType = UNSET
    count: int | UnsetType = UNSET


class Publishing:
    """One request to publish.

    Args:
        context: of the server.
        request: with its body read.
        caller: of it.
    """

    def __init__(self, context: Context, request: Request, caller: Caller) -> None:
        self._hub = context.hub
        self._access = context.access
        self._request = request
        self._caller = caller
        self._account = context.access.account(caller, request)
        grant = None if caller.record is None else caller.record.grant
        self._found = Reading(context.hub.limits, grant)
        self._envelopes: list[Envelope | None] = []
        self._site: str | None = None  # for which these were made

    async def publish(self, body: bytes, key: Key | None, *, lines: bool) -> Response:
        """Publish a body's messages, and answer."""
        hub, found = self._hub, self._found
        await hub.turns.drive(found.steps(body, lines=lines), self._account)
        del body
        count = len(found.messages)
        self._access.charge(self._caller, count)
        if hub.sequencer is None:
            if not await self._publish_live(key):
                raise conflict()
            return answer({}, 202)
        first = await (
            self._store(None)
            if key is None
            else hub.sequencer.keys_in_flight.once(key, lambda: self._store(key))
        )
        if first is None:
            raise conflict()
        if found.is_list:
            return answer(Published(ids=[first, first + count - 1], count=count))
        return answer(Published(id=first))

    async def _publish_live(self, key: Key | None) -> bool:
        """Publish where there is no history; False where the key was used for something else."""
        hub = self._hub
        with Checked(hub.broker) as checked:
            await self._check(checked)
            # From here to the first message without an await. Once that is published all will be.
            fresh: list[Key] = []
            if key is not None and not hub.keys_in_memory.once(key, lambda: fresh.append(key)):
                return False
            if key is None or fresh:
                await hub.publish_checked(checked, self._envelopes, self._account)
            await self._let_go(checked)
        return True

    async def _store(self, key: Key | None) -> int:
        """Publish durably; the id of the first."""
        hub = self._hub
        with Checked(hub.broker) as checked:
            await self._check(checked)
            first = await hub.store_checked(checked, self._caller.name, key, self._envelopes)
            await self._let_go(checked)
        return first

    async def _check(self, checked: Checked) -> None:
        """Check the messages, in turns, and then the right to publish them: see `_authorize`.

        Args:
            checked: takes them in.

        Raises:
            EmptyTag, InvalidTag, TooManyTags, TooManyMatches: of the first invalid one.
            NotGranted, Problem: as `_authorize`; or too much waits for the disk (503).
        """
        await self._hub.check(checked, self._found.messages, self._account)
        await self._authorize(checked)
        check_room(self._hub)

    async def _let_go(self, checked: Checked) -> None:
        """Free the messages, in turns."""
        await self._hub.let_go(checked, self._account)
        found = self._found
        await self._hub.turns.drive(emptying(found.messages), self._account)

    async def _authorize(self, checked: Checked) -> None:
        """Check the right to publish all of it, and make the batches, in turns.

        When this returns the token is as it was when the last message was checked, and its site as
        it is in the batches; it stays so until the next await.

        Raises:
            NotGranted: the token may not publish one of them.
            Problem: the token was revoked (401).
        """
        found = self._found
        while True:
            caller = self._caller = self._access.again(self._caller, self._request)
            record = caller.record
            if record is not None and found.grant != record.grant:  # the token has changed since
                await self._hub.turns.drive(found.ask(record.grant), self._account)
                continue
            if not found.granted:
                raise NotGranted
            site = "" if record is None else record.attributes.site
            if site == self._site:
                return
            traced = self._traced()
            if traced is None and not site and not any(found.audiences):
                self._envelopes, self._site = [], site  # nothing beside, as nearly always
                return
            await self._hub.turns.drive(self._address(site, traced, checked), self._account)

    def _address(self, site: str, traced: Envelope | None, checked: Checked) -> Iterator[None]:
        """Address all messages, in steps; neighbours with one audience have one envelope."""
        self._site = None
        audiences = self._found.audiences
        if not site and not any(audiences):
            self._envelopes = [traced] * len(audiences)
        else:
            self._envelopes = []
            for audience, same in groupby(audiences):
                bound = for_site(audience, site) if site else audience
                envelope = traced
                if bound is not None:
                    bound.text  # noqa: B018  # kept, as by `Reading`
                    envelope = attrs.evolve(traced or Envelope(), audience=bound)
                self._envelopes += [envelope] * len(list(same))
                yield
        yield from checked.address(self._envelopes)
        self._site = site

    def _traced(self) -> Envelope | None:
        """What tells consumers the trace; None where the publisher doesn't know it either."""
        tracing = self._hub.tracing
        if tracing is None or "traceparent" not in self._request.headers:
            return None
        from mist.protocols.subjects.forms import HEADERS, header_block  # only to trace

        return Envelope(meta={HEADERS: header_block(tracing.headers())})


def check_room(hub: Hub) -> None:
    """Refuse a publish (503) where too much waits for the disk, which is backpressure.

    And where the server shuts down and stores nothing: subscribers, whose sessions end, would
    miss it.
    """
    if hub.ending and hub.sequencer is None:
        raise Problem(503, "draining", "the server is shutting down", {"Retry-After": "1"})
    if hub.sequencer is not None and hub.sequencer.congested:
        raise Problem(503, "busy", "too much is waiting to be stored", {"Retry-After": "1"})
