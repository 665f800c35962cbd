"""Predicates that keep messages of a channel from clients.

The program that a server runs in registers them, by `mist.bus`; whatever serves channels to
clients asks them. They are kept in the hub, one set for a server, so they know no more of a
message than its channel.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["ChannelMessage", "ClientFilters"]

log = logging.getLogger("mist.bus")


class ChannelMessage(Protocol):
    """What is asked about: a `mist.bus.BusMessage`."""

    @property
    def channel(self) -> str:
        """The channel that it comes from."""


class ClientFilters:
    """Which messages of channels clients get."""

    def __init__(self) -> None:
        self._predicates: list[tuple[str, Callable[[Any], bool]]] = []

    def register(self, prefix: str, predicate: Callable[[Any], bool]) -> None:
        """Give clients messages of the channels that begin with `prefix` only where `predicate`
        returns True. It is called for each client and message, and must not wait.
        """
        self._predicates.append((prefix, predicate))

    def concerns(self, channel: str) -> bool:
        """Whether any predicate applies to messages of a channel."""
        return any(channel.startswith(prefix) for prefix, _ in self._predicates)

    def admit(self, message: ChannelMessage) -> bool:
        """Whether a client may get a message: every predicate that applies returns True.

        A predicate that raises has refused: what it was to keep back stays back.
        """
        for prefix, predicate in self._predicates:
            if not message.channel.startswith(prefix):
                continue
            try:
                if not predicate(message):
                    return False
            except Exception:
                log.exception("a client message filter failed", extra={"prefix": prefix})
                return False
        return True
