"""Places in a server's history: as a program gives them, and as far as a client knows it."""

import attrs

from mist.commands import Since
from mist.errors import InvalidPosition
from mist.protocols.positions import position

__all__ = ["Known", "Position", "place"]


@attrs.frozen
class Position:
    """A place in a message history: after the message of this id.

    Attributes:
        epoch: which log; another one gives the same ids to other messages.
        id: 0 is before the first message.
    """

    epoch: str
    id: int


@attrs.define
class Known:
    """What a client knows of the history of its server.

    Attributes:
        history: whether there is one; None where that is yet to be found out.
        epoch: of the log that subscriptions have their places in; None for none.
        newest: no subscription that is live misses anything up to this id.
    """

    history: bool | None = None
    epoch: str | None = None
    newest: int = 0

    def begun(self, epoch: str) -> None:
        """The server told which log it has."""
        self.history = True
        if self.epoch != epoch:
            self.epoch = epoch
            self.newest = 0

    def reached(self, id_: int) -> None:
        """All up to this id has arrived."""
        self.newest = max(self.newest, id_)

    def off(self) -> None:
        """The server said that it has none."""
        self.history = False
        self.epoch = None

    def numbered(self, id_: int) -> None:
        """A message with an id arrived."""
        if id_ > self.newest:
            self.newest = id_
        if self.history is False:
            self.history = None  # there is one after all: ask next time


def place(since: int | tuple[str, int] | Position) -> Since:
    """What the commands take: from an id, -N, a pair of epoch and id, or a `Position`.

    Raises:
        InvalidPosition: it is no place: out of range, or -N with an epoch.
    """
    match since:
        case bool():  # which Python takes for an integer
            raise InvalidPosition
        case int():
            return position(since)
        case Position(epoch, id_) | (str(epoch), int(id_)):
            return position(id_, epoch)
        case _:
            raise InvalidPosition
