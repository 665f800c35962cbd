"""Options that commands share: which server, with which secret, and `--json`.

Each function gives a decorator; the parameter that it adds stands in its docstring. Nothing here
imports a client, so that commands which need none start fast.
"""

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from mist.cli.exits import USAGE, fail
from mist.cli.paths import LocalPath

__all__ = [
    "HTTP_SCHEMES",
    "Command",
    "data_option",
    "json_option",
    "print_json",
    "secret_option",
    "server_option",
]

Command = Callable[..., Any]

HTTP_SCHEMES: Final = ("http", "https")

_SERVER: Final = "MIST_SERVER"
_SECRET_READ: Final = 4096  # bytes; longer than any secret


class _ServerOption(click.Option):
    """`--server`, also given by variables: the first that names a way this command can go.

    One variable serves all commands, but a TCP listener has no HTTP. So where MIST_SERVER names
    what the command can't use, an older variable of its own still counts.
    """

    def __init__(
        self, *args: Any, schemes: Sequence[str], variables: Sequence[str], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._schemes = schemes
        self._variables = variables

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """The value from the environment; None where no variable is set."""
        found = [value for name in self._variables if (value := os.environ.get(name))]
        fitting = [each for each in found if self._fits(each)]
        return next(iter([*fitting, *found]), None)

    def _fits(self, url: str) -> bool:
        scheme, separator, _ = url.partition("://")
        return not separator or scheme.lower() in self._schemes


def server_option(
    schemes: Sequence[str],
    default: str | None,
    text: str,
    *,
    alias: str,
    variable: str | None = None,
    environment: bool = True,
) -> Callable[[Command], Command]:
    """`--server URL`, as the parameter `server`.

    Args:
        schemes: of URLs that the command can use.
        alias: a hidden flag of the same meaning: what the option was called before.
        variable: the same of `MIST_SERVER`.
        environment: whether a variable may give it: not where it decides what a command does.
    """
    variables = [_SERVER, *([] if variable is None else [variable])] if environment else []
    about = [f"env var: {_SERVER}"] if environment else []
    about += [] if default is None else [f"default: {default}"]
    shown = f"{text}  [{'; '.join(about)}]" if about else text

    def decorate(function: Command) -> Command:
        @click.option(
            "--server",
            cls=_ServerOption,
            schemes=schemes,
            variables=variables,
            metavar="URL",
            default=default,
            envvar=variables,
            help=shown,
        )
        @click.option(alias, "server_alias", metavar="URL", hidden=True)
        @functools.wraps(function)
        def command(*args: Any, server: str | None, server_alias: str | None, **kwargs: Any) -> Any:
            if server_alias is not None:
                source = click.get_current_context().get_parameter_source("server")
                if source is click.core.ParameterSource.COMMANDLINE:
                    raise click.UsageError(f"--server and {alias} are the same: give --server")
                server = server_alias
            return function(*args, server=server, **kwargs)

        return command

    return decorate


def secret_option(function: Command) -> Command:
    """`--secret` and `--secret-file`, as the parameter `secret`: None where there is none.

    A file counts more than a text, and an option more than a variable.
    """

    @click.option(
        "--secret",
        metavar="TEXT",
        envvar="MIST_SECRET",
        show_envvar=True,
        help="The server's secret; visible to other users here, so prefer the alternatives",
    )
    @click.option(
        "--secret-file",
        type=LocalPath(exists=True, dir_okay=False),
        envvar="MIST_SECRET_FILE",
        show_envvar=True,
        help="File with the secret",
    )
    @functools.wraps(function)
    def command(*args: Any, secret: str | None, secret_file: Path | None, **kwargs: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        is_told = source("secret") is ParameterSource.COMMANDLINE
        if secret_file is not None and not (
            is_told and source("secret_file") is ParameterSource.ENVIRONMENT
        ):
            secret = _read_secret(secret_file)
        return function(*args, secret=secret, **kwargs)

    return command


def _read_secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_SECRET_READ).decode().removesuffix("\n")
    except OSError as error:
        fail(f"--secret-file: {path}: {error.strerror}", USAGE)
    except UnicodeDecodeError:
        fail(f"--secret-file: {path}: the secret is not UTF-8", USAGE)


data_option = click.option(
    "--data",
    metavar="DIR",
    type=LocalPath(),
    default=Path("mist-data"),
    envvar="MIST_DATA",
    show_default=True,
    show_envvar=True,
    help="The server's data directory",
)
"""`--data`, as the parameter `data`."""


def json_option(text: str) -> Callable[[Command], Command]:
    """`--json`, as the parameter `as_json`.

    Args:
        text: what is printed, for the help.
    """
    return click.option("--json", "as_json", is_flag=True, help=text)


def print_json(value: object) -> None:
    """Print one JSON value on a line of its own, at once."""
    line = json.dumps(value, ensure_ascii=False)
    # Of a name that is no UTF-8: what stands for its bytes is written as JSON has it, `\udcff`.
    click.echo(line.encode(errors="backslashreplace").decode())
