"""Lazy loading: each command is imported when it is used.

Importing all of mist takes over a second, most of it for the server; a client command needs a
third of that. So the command line knows its commands by name, with a line of help for each.
"""

import contextlib
import gc
import io
import linecache
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from mist.cli.exits import FULL, INTERRUPTED, REFUSED, USAGE, drop_output, fail

__all__ = ["LazyGroup", "exit_on_interrupt", "lean_imports"]

_YOUNG: Final = 10_000  # objects to a pass of the collector; of imports, nearly all stay


class LazyGroup(click.Group):
    """A group that imports its commands on demand.

    Args:
        commands: by name, where each command is and its help: (`module:attribute`, text).
        extras: by name, the extra of mist-pubsub that installs a command.
    """

    def __init__(
        self,
        *args: Any,
        commands: Mapping[str, tuple[str, str]],
        extras: Mapping[str, str] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy_commands = commands
        self.extras = extras

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments."""
        with exit_on_interrupt():
            return super().make_context(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is no such command.

        Ends the process where the command is of an extra that is not installed.
        """
        if cmd_name not in self.lazy_commands:
            return None
        module, _, name = self.lazy_commands[cmd_name][0].partition(":")
        try:
            with exit_on_interrupt(), lean_imports():
                command = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name != module or cmd_name not in self.extras:
                raise
            if ctx.resilient_parsing:  # Tab was pressed; there is nothing to complete
                return click.Command(cmd_name)
            extra = self.extras[cmd_name]
            fail(f"{cmd_name} is missing; pip install 'mist-pubsub[{extra}]'", USAGE)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names that begin so, and options; imports none of the commands."""
        names = [
            CompletionItem(name, help=self.lazy_commands[name][1])
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; one that is mistyped is refused with the name that may be meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            # click suggests those that it has loaded, which are none.
            from difflib import get_close_matches  # not for a command that is there

            similar = get_close_matches(args[0], self.list_commands(ctx), 1)
            if not similar or args[0].startswith("-"):
                raise
            text = f"No such command {args[0]!r}. Did you mean {similar[0]!r}?"
            raise click.UsageError(text, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in `--help`; imports none of them."""
        with formatter.section("Commands"):
            names = self.list_commands(ctx)
            formatter.write_dl([(name, self.lazy_commands[name][1]) for name in names])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; where a disk is full, that is one line."""
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # as standard error has it
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if error.errno not in FULL:
                raise
            drop_output()
            fail(f"can't write: {error.strerror}", REFUSED)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a Ctrl-C that it doesn't handle ends it without a traceback.

        And a reader of its output that has enough (`| head`) is no failure.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            drop_output()
            sys.exit(0)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


@contextlib.contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once in the block, instead of raising KeyboardInterrupt.

    For imports: some code there prints the exception and goes on. Only for a block that has
    nothing to clean up.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before is not signal.default_int_handler:  # handled elsewhere
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def lean_imports(*unwanted: str) -> Iterator[None]:
    """Import in the block with less time and memory.

    The collector has a tenth of its passes, which would find next to nothing. Modules that
    libraries import because they happen to be installed are as if they were not: rich, with what
    it highlights code by, was a tenth of the time and 3.5 MiB of an idle server. The sources of
    the methods that attrs generates, which it keeps for debuggers, are dropped: 1 MiB of a server.

    Args:
        unwanted: such modules; one that is imported already stays.
    """
    absent = [name for name in unwanted if name not in sys.modules]
    thresholds = gc.get_threshold()
    gc.set_threshold(_YOUNG, *thresholds[1:])
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]  # how the import system says it
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
        linecache.clearcache()
        gc.set_threshold(*thresholds)
