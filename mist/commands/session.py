"""What is about the session itself, and what is no command."""

import attrs

from mist.commands.base import BaseCommand
from mist.errors import MistError

__all__ = ["Auth", "Bye", "Echo", "Escape", "Hangup", "Invalid", "Pause", "Ping", "Who"]


@attrs.define
class Ping(BaseCommand):
    """Is the server alive? Also a fence: its reply follows all that the commands before caused."""


@attrs.define
class Who(BaseCommand):
    """How many sessions there are now, and how many since the start."""


@attrs.define
class Auth(BaseCommand):
    """Present a secret (services) or a token (browsers, mid-session).

    Attributes:
        credential: never shown by `repr`, so that no log line can hold it.
    """

    credential: str = attrs.field(repr=False)


@attrs.define
class Echo(BaseCommand):
    """Whether this session receives what it publishes itself."""

    on: bool


@attrs.define
class Escape(BaseCommand):
    """Whether deliveries of this session escape LF, CR and backslash."""

    on: bool


@attrs.define
class Invalid(BaseCommand):
    """Input that is no valid command; its error has its place in the order of replies.

    Attributes:
        error: what is wrong with it.
        name: the command's name as written, where one could be made out.
    """

    error: MistError
    name: str | None = None

    def __attrs_post_init__(self) -> None:
        self.error.as_value()  # what parses a batch holds all of it in a frame


@attrs.define
class Hangup(BaseCommand):
    """The peer speaks another protocol (HTTP, say) or breaks this one: end the session.

    Attributes:
        reason: for the log and the close frame; no text of the peer's.
        code: a WebSocket close code.
    """

    reason: str
    code: int = 4400


@attrs.define
class Bye(BaseCommand):
    """The peer ends the session."""


@attrs.define
class Pause(BaseCommand):
    """Nothing: a protocol that has been reading for long lets others have their turns."""
