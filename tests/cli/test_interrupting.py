"""Ctrl-C while a command is still imported: no traceback, and the exit code of an interruption."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mist.cli import main
from mist.cli.lazy import LazyGroup
from tests.processes import environment

# A real signal, at the moment at which a module is about to be imported. Once it is handled by
# Python, which is when the next line of Python runs, the process is to be gone.
PROGRAM = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            print("importing", name, flush=True)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv[0] = "mist"
from mist.__main__ import main
main()
"""


def run(code: str, arguments: Sequence[str], cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )


SERVE = ("serve", "--listen", "tcp://127.0.0.1:0")


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (("--help",), "click"),
        (("--help",), "mist.cli.lazy"),
        (SERVE, "mist.cli.serve"),
        (SERVE, "trio"),
        (SERVE, "mist.server"),
        (("subscribe", "a"), "mist.client"),
        (("token", "new", "a"), "mist.cli.common"),
        (("bench",), "mist.bench.cell"),
        (("pipeline", "report", "volume"), "mist.archive"),
        (("pipeline", "report", "volume"), "pyarrow"),
        (("pipeline", "report", "volume"), "pandas"),
        (("pipeline", "report", "volume"), "pyspark"),
    ],
)
def test_it_ends_without_a_word(tmp_path: Path, arguments: tuple[str, ...], module: str) -> None:
    done = run(PROGRAM.format(module=module), arguments, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, f"importing {module}\n", "")
    assert list(tmp_path.iterdir()) == []


def test_where_it_is_ignored_it_stays_so(tmp_path: Path) -> None:
    # As in a script's background, where Ctrl-C is for what runs in front.
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + PROGRAM
    done = run(ignoring.format(module="mist.cli.messages"), ["ping", "--help"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the server responds" in done.stdout


def test_a_command_that_knows_nothing_of_it_ends_so(tmp_path: Path) -> None:
    @click.command()
    def command() -> None:
        signal.raise_signal(signal.SIGINT)

    commands = {"command": ("tests.cli.test_interrupting:given", "")}
    globals()["given"] = command
    result = CliRunner().invoke(LazyGroup("mist", commands=commands), ["command"])
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.parametrize("name", sorted(main.lazy_commands))  # type: ignore[attr-defined]
def test_every_command_is_where_it_is_looked_for(name: str) -> None:
    assert isinstance(main, LazyGroup)
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    # What the list says of it is how it begins itself.
    listed = main.lazy_commands[name][1].removesuffix(".")
    assert command.get_short_help_str(200).startswith(listed)


def test_what_is_no_command_is_told() -> None:
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2
    assert "No such command 'nonsense'" in result.output
