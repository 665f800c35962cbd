"""Exit codes, and the one line that a command ends with where it fails. See `mist --help`."""

import sys
from typing import Final, NoReturn

import click

__all__ = ["INTERRUPTED", "REFUSED", "UNREACHABLE", "USAGE", "fail"]

REFUSED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130


def fail(error: str, code: int) -> NoReturn:
    """End the command with one line on standard error."""
    context = click.get_current_context(silent=True)
    name = context.command_path if context is not None else "mist"
    click.echo(f"{name}: {error}", err=True)
    sys.exit(code)
