"""Events of a server: opened where `--events` asks for them, or a program that embeds it does."""

from collections.abc import Sequence

import trio

from mist.message import EVENTS
from mist.sessions.events import EventService
from mist.sessions.hub import Hub
from mist.sessions.local import subscribe
from mist.sessions.occasions import Hook, Kind, Occasion
from mist.sessions.occupancy import Occupancy
from mist.version import __version__

__all__ = ["ServerEvents", "open_events"]


class ServerEvents:
    """The tasks of a server's events. Made by `open_events`."""

    def __init__(self, hub: Hub, events: EventService, occupancy: Occupancy | None) -> None:
        self._hub = hub
        self._events = events
        self._occupancy = occupancy

    async def run(self) -> None:
        """Tell that the server has started, and what happens from then on, until cancelled."""
        events = self._events
        events.note(Occasion(Kind.RESTARTED, events.now(), events.node, version=__version__))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(events.run)
            if self._occupancy is not None:
                nursery.start_soon(self._occupancy.run)
                if self._hub.nodes is not None:
                    nursery.start_soon(self._follow, self._occupancy)

    async def _follow(self, occupancy: Occupancy) -> None:
        with subscribe(self._hub, {f"{EVENTS}{Kind.VACATED.value}"}) as messages:
            await occupancy.follow(messages)

    async def settled(self) -> None:
        """Wait until all that has happened is told."""
        await self._events.settled()


def open_events(
    hub: Hub, node: str, *, publishes: bool, hooks: Sequence[Hook] = ()
) -> ServerEvents | None:
    """Tell of what happens; None where nobody asks. Before the first session, and behind presence.

    Args:
        node: the server's name.
        publishes, hooks: see `EventService`.
    """
    if not publishes and not hooks:
        return None
    events = EventService(hub, node, hub.now, publishes=publishes, hooks=hooks, tracing=hub.tracing)
    hub.events = hub.sessions.events = events
    occupancy: Occupancy | None = None
    if hub.broker.presence is not None:
        occupancy = Occupancy(events)
        hub.broker.presence.on_tag = occupancy.changed
        if hub.nodes is not None and hub.broker.shares is not None:
            occupancy.join(hub.broker.shares, hub.nodes.living)
    return ServerEvents(hub, events, occupancy)
