"""Coalescing: one call to a store for all tasks that ask the same."""

from collections.abc import Awaitable, Callable

from mist.change import Change
from mist.errors import RegistryUnavailable

__all__ = ["Coalesced"]


class Coalesced:
    """A call that many tasks make, and that is made once for all that came before it began.

    A task never gets the outcome of a call that began before it asked: that one may have missed
    what the task wants to know of. So at any time one call is under way, and one is wanted.

    Args:
        call: made by one of the tasks. Where that one is cancelled, another makes it again.
    """

    def __init__(self, call: Callable[[], Awaitable[None]]) -> None:
        self._call = call
        self._begun = 0
        self._ended = 0  # the last one that came to its end
        self._error: RegistryUnavailable | None = None  # of that one
        self._running = False
        self._changed = Change()

    async def __call__(self) -> None:
        """Wait for the outcome of a call that begins from now on.

        Raises:
            RegistryUnavailable: the call raised it.
        """
        wanted = self._begun + 1
        while self._ended < wanted:
            if self._running:
                await self._changed.wait()
            else:
                await self._run()
        if self._error is not None:
            raise RegistryUnavailable from self._error.__cause__

    async def _run(self) -> None:
        self._running = True
        self._begun += 1
        error: RegistryUnavailable | None = None
        try:
            try:
                await self._call()
            except RegistryUnavailable as raised:
                error = raised.as_value()
            self._ended, self._error = self._begun, error
        finally:
            self._running = False
            self._changed.notify()
