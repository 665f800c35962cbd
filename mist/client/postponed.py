"""Requests that a server refused for the moment: they are made again a while later."""

from collections.abc import Callable
from typing import Final

import anyio

from mist.client.change import Change
from mist.client.dialect import Request
from mist.client.errors import Temporary, remote_error
from mist.commands import Command
from mist.replies import Failed, Reply

__all__ = ["Postponed", "passes_by_itself"]

_RETRY: Final = 5.0  # seconds until the server is asked again


def passes_by_itself(reply: Reply) -> bool:
    """Whether a reply refuses what may be accepted a while later."""
    return isinstance(reply, Failed) and isinstance(remote_error(str(reply.error)), Temporary)


class Postponed:
    """See the module.

    Args:
        send: queues a request for the current connection.
    """

    def __init__(self, send: Callable[[Request], None]) -> None:
        self._send = send
        self._waiting: list[tuple[Command, Callable[[], bool]]] = []
        self._added = Change()

    def add(self, command: Command, wanted: Callable[[], bool]) -> None:
        """Ask for this again.

        Args:
            wanted: whether it is still to be asked for, by then.
        """
        self._waiting.append((command, wanted))
        self._added.notify()

    def clear(self) -> None:
        """The connection is gone, and its requests with it."""
        self._waiting.clear()

    async def run(self) -> None:
        """Ask again, for as long as a connection lasts. Never returns."""
        while True:
            while not self._waiting:
                await self._added.wait()
            await anyio.sleep(_RETRY)
            waiting, self._waiting = self._waiting, []
            for command, wanted in waiting:
                if wanted():
                    self._send(Request(command))
