"""Predicates that withhold messages from clients."""

import logging
from collections.abc import Callable

from mist.bus.messages import BusMessage

__all__ = ["ClientFilters"]

log = logging.getLogger("mist.bus")

Predicate = Callable[[BusMessage], bool]


class ClientFilters:
    """Which messages clients are given, by the program that a server runs in. One for a hub."""

    def __init__(self) -> None:
        self._predicates: list[tuple[str, Predicate]] = []

    def register(self, prefix: str, predicate: Predicate) -> None:
        """Have messages of the channels that begin with `prefix` given to clients only where
        `predicate` says so. It is asked for each client and message; it must not wait.
        """
        self._predicates.append((prefix, predicate))

    def concerns(self, channel: str) -> bool:
        """Whether a predicate is to be asked about messages of a channel."""
        return any(channel.startswith(prefix) for prefix, _ in self._predicates)

    def admit(self, message: BusMessage) -> bool:
        """Whether a client may be given a message: all predicates that it concerns say so.

        One that fails has said no: what it was to keep from somebody stays where it is.
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
