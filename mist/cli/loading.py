"""Commands that are imported when they are asked for.

All of mist takes over a second to import, a server the most of it, and a command that asks one
something needs a third of that. So the top of the command line knows its commands by name, and
what to say of each in the list.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import click

__all__ = ["INTERRUPTED", "Commands", "gone_at_once"]

INTERRUPTED: Final = 130


class Commands(click.Group):
    """A group whose commands are in modules of their own.

    Args:
        places: of each command by its name, as (`module:attribute`, what it does): the line
            that says it in `--help`.
    """

    def __init__(self, *args: Any, places: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.places = places

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments."""
        with gone_at_once():
            return super().make_context(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the alphabet."""
        return sorted(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None where there is none of the name."""
        if cmd_name not in self.places:
            return None
        module, _, name = self.places[cmd_name][0].partition(":")
        with gone_at_once():
            command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of them in `--help`, for which none is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.places[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C that it doesn't know of ends it without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


@contextlib.contextmanager
def gone_at_once() -> Iterator[None]:
    """Have Ctrl-C end the process in the block, and not come up as an exception.

    For imports: there it would come up in places that print it and go on. Only for a block that
    has nothing to leave in order.
    """
    before = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread()
    if not here or before is not signal.default_int_handler:  # someone has other ideas of it
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
