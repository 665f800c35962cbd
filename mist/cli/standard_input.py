"""Standard input, of commands that read one line where they are given `-`."""

import sys

import click

__all__ = ["read_line"]


def read_line() -> str:
    """The first line, without its end. What isn't UTF-8 becomes surrogates, as in arguments."""
    if sys.stdin is None:
        raise click.UsageError("-: standard input is closed")
    line = sys.stdin.buffer.readline().decode(errors="surrogateescape")
    return line.removesuffix("\n").removesuffix("\r")
