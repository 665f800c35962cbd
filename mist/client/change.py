"""As `mist.change`, under asyncio and trio."""

import anyio

__all__ = ["Change"]


class Change:
    """What several tasks wait for, again and again; see `mist.change`.

    The server's has trio's own event, which costs less: one is made for each wait.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    async def wait(self) -> None:
        """Wait for the next `notify`. A checkpoint."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()

    def notify(self) -> None:
        """Wake every task that waits now."""
        event = self._event
        if event is not None:
            self._event = None
            event.set()
