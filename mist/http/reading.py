"""Whether a request may read the history of certain tags: by its token's grant, or, where a backend
is asked about what a grant doesn't allow, by its answer."""

from collections.abc import Iterable

from starlette.requests import Request

from mist.errors import NotGranted
from mist.http.access import Caller
from mist.message import TagSet
from mist.sessions.hub import Hub

__all__ = ["check_reading"]


async def check_reading(
    hub: Hub, request: Request, caller: Caller, tag_sets: Iterable[TagSet]
) -> None:
    """Check that a caller may read what carries all tags of any of these.

    Raises:
        NotGranted: it may not.
        RegistryUnavailable: the backend can't tell now.
    """
    record, callout = caller.record, hub.subscription_callout
    if record is None:
        return
    strict = hub.hub_limits.strict_grants
    for tags in tag_sets:
        if record.grant.permits(tags, strict=strict):
            continue
        address: str = request.scope["client"][0]
        if callout is None or not await callout.permits(record, "http", address, tags):
            raise NotGranted
