"""Exit codes, and the one line that a command ends with where it fails. See `mist --help`."""

import errno
import os
import sys
from typing import Final, NoReturn

import click

__all__ = ["FULL", "INTERRUPTED", "REFUSED", "UNREACHABLE", "USAGE", "drop_output", "fail"]

REFUSED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Numbers of errors that writing to a file may have, and a pipe or a terminal seldom."""


def fail(error: str, code: int) -> NoReturn:
    """End the command with one line on standard error."""
    context = click.get_current_context(silent=True)
    name = context.command_path if context is not None else "mist"
    click.echo(f"{name}: {error}", err=True)
    sys.exit(code)


def drop_output() -> None:
    """Have what was printed and not written go nowhere: no further error at the process's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
