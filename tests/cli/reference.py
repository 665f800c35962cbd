"""docs/cli.md, made from the commands themselves.

python -m tests.cli.reference      writes it again
"""

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import attrs
import click

from mist.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
OF_ALL = {"-h", "--help", "--version"}
INTRODUCTION = """\
# The command line

`mist serve` runs a server; the other commands are clients of one, or work on its files. This page
is made from the commands, of which `mist COMMAND --help` says the same.

**Which server.** `--server URL`, or the variable `MIST_SERVER`. The scheme says how to get there:
`tcp://`, `tcps://` and `tcp+unix://` for the line protocol, `ws://` and `wss://` with a token,
`http://` and `https://` for all that can be asked by requests (`publish`, `ping`, `list`, `who`,
`token`, `connections`, `nodes`, `top`, `pipeline`), and for `subscribe`, which makes a WebSocket of
it. A command that can't go the way that `MIST_SERVER` names says so. Older names are understood:
`--host` and `MIST_HOST`, `--url` and `MIST_URL`. `mist bench` and `mist pipeline` take the flag
only: a variable that is set for other commands would change what they measure or read.

    export MIST_SERVER=tcp://127.0.0.1:1445
    mist ping

**JSON.** Each command that prints has `--json`: one object, or one on each line (`subscribe`,
`history show`, `history tail`, `ping`, `top`). Errors stay one line on standard error, with an exit
code.

**Completion.** `mist completion bash`, `zsh` or `fish` prints a script for the shell:

    source <(mist completion bash)
"""


@attrs.frozen
class Found:
    """A command, as it is called."""

    path: str
    command: click.Command
    context: click.Context


def walk(command: click.Command = main, parent: click.Context | None = None) -> Iterator[Found]:
    """All commands and groups, each before those in it; none that is hidden."""
    context = click.Context(command, info_name=command.name if parent else "mist", parent=parent)
    yield Found(context.command_path, command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None
            if not each.hidden:
                each.name = name
                yield from walk(each, context)


def reference() -> str:
    """The page."""
    parts = [INTRODUCTION]
    for found in walk():
        parts += section(found)
    return "\n".join(parts)


def section(found: Found) -> Iterator[str]:
    """Heading, call, text, options, examples of one command."""
    command, context = found.command, found.context
    yield f"{'#' * min(2 + found.path.count(' '), 4)} {found.path}\n"
    yield f"    {found.path} {' '.join(command.collect_usage_pieces(context))}\n"
    yield from blocks(command.help or "")
    options = [each for each in command.get_params(context) if not OF_ALL & {*each.opts}]
    rows = [record for each in options if (record := each.get_help_record(context))]
    if found.path == "mist serve":
        rows = []
        yield "Options are the [settings](settings.md).\n"
    if rows:
        yield "| option | meaning |\n|---|---|"
        yield from (f"| `{cell(name)}` | {cell(text)} |" for name, text in rows)
        yield ""
    yield from blocks(command.epilog or "")


def cell(text: str) -> str:
    """Text in a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def blocks(text: str) -> Iterator[str]:
    """Paragraphs of a help text; those that click is told to leave alone are code."""
    if not text:
        return
    for paragraph in inspect.cleandoc(text).replace("\r", "").split("\n\n"):
        lines = paragraph.split("\n")
        if lines[0] != "\b":
            yield paragraph.replace("*", "\\*") + "\n"
            continue
        title = lines[1] if lines[1].endswith(":") else None
        if title is not None:
            yield title + "\n"
        code = textwrap.dedent("\n".join(lines[1 if title is None else 2 :]))
        yield textwrap.indent(code, "    ") + "\n"


if __name__ == "__main__":
    PAGE.write_text(reference())
