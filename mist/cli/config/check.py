"""`mist config check`: whether a server could start with these settings, here and now."""

import logging
import os
import sys
import time

import click
import trio

from mist.cli.config.findings import Finding, Status, bad, warn
from mist.cli.config.local import is_running, local_findings
from mist.cli.config.stores import store_findings
from mist.cli.exits import USAGE
from mist.cli.options import json_option, print_json
from mist.cli.settings import settings_options
from mist.config import load_config
from mist.errors import ConfigError

__all__ = ["check"]


@click.command()
@click.option("-q", "--quiet", is_flag=True, help="Only warnings and errors")
@json_option("One JSON object")
@settings_options
def check(quiet: bool, as_json: bool, **flags: object) -> None:
    """Check whether a server could start so.

    The settings themselves; that directories can be written, disk, open files, listeners, the
    clock; that key and certificate belong together, and when that ends; that the history, the
    tokens and the engine can be opened, and the keys of JWTs fetched. A line for each; exit code 2
    if there is an error, so that a deployment can stop there.

    Nothing is changed, but that an engine is opened as a server opens it. Beside a server that
    runs, what it has in use is not looked at.
    """
    found = _findings(flags)
    if as_json:
        print_json(
            {
                "ok": not any(each.status is Status.ERROR for each in found),
                "checks": [
                    {"check": each.check, "status": each.status.value, "text": each.text}
                    for each in found
                ],
            }
        )
    else:
        for each in found:
            if not quiet or each.status is not Status.OK:
                click.echo(f"{each.status.value:<7}  {each.check}: {each.text}")
    if any(each.status is Status.ERROR for each in found):
        sys.exit(USAGE)


def _findings(flags: dict[str, object]) -> list[Finding]:
    try:
        config = load_config(flags, os.environ)
    except ConfigError as error:
        # Without settings there is nothing else to look at.
        return [bad("settings", str(error))]
    found = [warn("settings", each) for each in config.warnings]
    found += local_findings(config, time.time())

    log = logging.getLogger("mist")
    log.propagate = False  # to where a server's log goes
    log.addHandler(_Notes(found))

    async def look() -> None:
        running = is_running(config.data)
        async for each in store_findings(config, running=running):
            found.append(each)

    trio.run(look)
    return found


class _Notes(logging.Handler):
    """What a server would log when it opens something is a warning of the check."""

    def __init__(self, found: list[Finding]) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(warn("note", record.getMessage()))
