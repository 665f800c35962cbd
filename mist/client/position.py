"""Places in a server's history, as a program gives them."""

import attrs

from mist.commands import Since
from mist.errors import InvalidPosition
from mist.protocols.positions import position

__all__ = ["Position", "place"]


@attrs.frozen
class Position:
    """A place in a message history: after the message of this id.

    Attributes:
        epoch: which log; another one gives the same ids to other messages.
        id: 0 is before the first message.
    """

    epoch: str
    id: int


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
