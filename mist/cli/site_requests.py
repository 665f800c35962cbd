"""Requests over HTTP from an async command: in a thread, and again where they were too many."""

import functools
from types import TracebackType
from typing import Any, Final, Self

import trio

from mist.cli.http import HttpError, Site

__all__ = ["SiteRequests"]

_TRIES: Final = 30  # times that a request is made which was one too many
_PAUSE: Final = 1.0  # seconds in between
_TOO_MANY: Final = 429


class SiteRequests:
    """Asks a site. An async context manager, as a connection is one, though there is none to open.

    Raises:
        HttpError: from every method.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await trio.lowlevel.checkpoint()

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer to one request, parsed; None where it has no body.

        Args:
            body: to be sent as JSON; None for none.
        """
        asking = functools.partial(self._site.ask, method, path, body)
        for _ in range(_TRIES):
            try:
                return await trio.to_thread.run_sync(asking)
            except HttpError as error:
                if error.status != _TOO_MANY:
                    raise
                # It was not handled, so it can be asked again.
                await trio.sleep(_PAUSE)
        return await trio.to_thread.run_sync(asking)
