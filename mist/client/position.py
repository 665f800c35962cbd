"""History positions: as a program gives them, and what a client knows of the server's history."""

import attrs

from mist.commands import Since
from mist.errors import InvalidPosition
from mist.protocols.positions import latest, position

__all__ = ["Latest", "Position", "ServerHistory", "Start", "parse_position"]


@attrs.frozen
class Position:
    """A position in a message history: after the message with this id.

    Attributes:
        epoch: which log; another log gives the same ids to other messages.
        id: 0 is before the first message.
    """

    epoch: str
    id: int


@attrs.frozen
class Latest:
    """In the place of a position: of each tag that matches, only the newest message.

    Attributes:
        pattern: the beginning of tags and `*`, as `order:*`; or a tag.
    """

    pattern: str


Start = int | tuple[str, int] | Position | Latest
"""Where a subscription begins in the history; see `Client.subscribe`."""


@attrs.define
class ServerHistory:
    """What a client knows of its server's history.

    Attributes:
        available: whether the server keeps one; None while that is unknown.
        epoch: the log that the subscriptions' positions belong to; None for none.
        newest: every live subscription has received all its messages up to this id.
    """

    available: bool | None = None
    epoch: str | None = None
    newest: int = 0

    def set_epoch(self, epoch: str) -> None:
        """The server named its log."""
        self.available = True
        if self.epoch != epoch:
            self.epoch = epoch
            self.newest = 0

    def advance(self, id_: int) -> None:
        """All messages up to this id have arrived."""
        self.newest = max(self.newest, id_)

    def disable(self) -> None:
        """The server said that it keeps no history."""
        self.available = False
        self.epoch = None

    def note_id(self, id_: int) -> None:
        """A message with this id arrived."""
        if id_ > self.newest:
            self.newest = id_
        if self.available is False:
            self.available = None  # there is a history after all: ask at the next connection


def parse_position(since: Start) -> Since:
    """The command's form of an id, -N, a pair of epoch and id, a `Position`, or `Latest`.

    Raises:
        InvalidPosition: out of range, -N with an epoch, or no pattern.
    """
    match since:
        case bool():  # which Python takes for an integer
            raise InvalidPosition
        case int():
            return position(since)
        case Position(epoch, id_) | (str(epoch), int(id_)):
            return position(id_, epoch)
        case Latest(str(pattern)):
            return latest(pattern)
        case _:
            raise InvalidPosition
