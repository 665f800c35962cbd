"""`mist reload`: have a running server take its settings again."""

from pathlib import Path

import click

from mist.cli.exits import REFUSED, UNREACHABLE, fail
from mist.cli.options import data_option, json_option, print_json
from mist.control import ControlError, NoServer, ask

__all__ = ["reload"]


@click.command()
@data_option
@json_option("One JSON object")
def reload(data: Path, as_json: bool) -> None:
    """Have a running server take its settings again.

    As SIGHUP does: certificates, secret, limits, origins and the log level hold at once, and
    connections stay. What needs a restart is named. Settings that can't be used change nothing.
    Run it as the server's user, on its machine.
    """
    try:
        answer = ask(data, "reload")
    except NoServer as error:
        fail(str(error), UNREACHABLE)
    except ControlError as error:
        fail(f"nothing was changed: {error}", REFUSED)
    if as_json:
        print_json(answer)
        return
    click.echo(f"changed: {', '.join(answer['changed']) or 'nothing'}")
    if answer["needs_restart"]:
        click.echo(f"needs a restart: {', '.join(answer['needs_restart'])}")
