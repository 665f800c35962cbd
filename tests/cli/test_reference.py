"""The command line as one product: its reference, and what all commands have in common."""

import subprocess
import sys

import click
import pytest

from mist.cli import main
from tests.cli.reference import PAGE, Found, reference, walk
from tests.processes import environment, mist

SILENT = {
    "mist serve",  # its output is its log, see --log-format
    "mist completion",  # a script for a shell
    "mist token key",  # a file
    "mist connections end",
    # They say nothing where they succeed.
    *(f"mist token {name}" for name in ("change", "grant", "revoke", "set", "set-attr")),
    *(f"mist token {name}" for name in ("ungrant", "unregister", "unset")),
}
COMMANDS = [found for found in walk() if not isinstance(found.command, click.Group)]


def flags(found: Found) -> set[str]:
    return {flag for option in found.command.params for flag in option.opts}


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == reference(), "run: python -m tests.cli.reference"


@pytest.mark.parametrize("found", COMMANDS, ids=lambda found: found.path)
def test_each_command_that_prints_has_json(found: Found) -> None:
    assert ("--json" in flags(found)) != (found.path in SILENT)


@pytest.mark.parametrize("found", COMMANDS, ids=lambda found: found.path)
def test_the_server_has_one_name(found: Found) -> None:
    for option in found.command.params:
        assert isinstance(option, click.Argument | click.Option)
        if isinstance(option, click.Option) and {"--host", "--url"} & set(option.opts):
            assert option.hidden
            assert "--server" in flags(found)


@pytest.mark.parametrize("command", main.list_commands(click.Context(main)))
def test_each_command_starts_alone(command: str) -> None:
    # Other tests run commands in processes that have imported all of them.
    done = subprocess.run(
        [sys.executable, "-m", "mist", command, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: mist {command}")


def test_an_option_mistyped_is_told_what_may_be_meant() -> None:
    for arguments, meant in (
        (["ping", "--sever", "x"], "--server"),
        (["serve", "--outbox-byte", "1"], "--outbox-bytes"),
        (["history", "stats", "--jsn"], "--json"),
        (["pipeline", "stream", "--sever", "x"], "--server"),
    ):
        done = mist(*arguments)
        assert done.returncode == 2
        last = done.stderr.splitlines()[-1]
        assert last.startswith("Error: No such option")
        assert meant in last
