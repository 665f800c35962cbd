"""`mist serve`: run a server, configured by flags, environment and file."""

import os
import sys
from functools import partial

import click

from mist.cli.exits import USAGE, fail
from mist.cli.lazy import exit_on_interrupt, lean_imports
from mist.cli.settings import settings_options
from mist.config import load_config
from mist.errors import StartupError

__all__ = ["serve"]


@click.command(
    epilog="""\b
Every option is also a key in the TOML file of --config and an environment variable MIST_….

\b
Examples:
  mist serve --listen tcp://127.0.0.1:0
  mist serve --secret-file secret.txt --listen tcp://0.0.0.0:1445
  MIST_SECRET=… mist serve --listen wss://0.0.0.0:443 --tls-cert c.pem --tls-key k.pem"""
)
@settings_options
def serve(**flags: object) -> None:
    """Run a server until it is told to stop.

    Prints `listening on URL` for each listener once it is open. SIGTERM and Ctrl-C start a
    graceful shutdown; a second signal ends it at once. SIGHUP has it take its settings again, as
    `mist reload` does.
    """
    try:
        config = load_config(flags, os.environ)
        with exit_on_interrupt(), lean_imports("rich"):
            # Not for a help text, or to be told of a wrong setting.
            import trio

            from mist import allocator, collector, descriptors, logs
            from mist.serving import serve as run_server

        logs.configure(config.log_format, config.log_level)
        allocator.settle()
        descriptors.reserve(config.max_connections)
        collector.settle()
        trio.run(run_server, config, _announce, partial(load_config, flags, os.environ))
    except StartupError as error:
        fail(str(error), USAGE)
    except BaseExceptionGroup as group:
        startup, others = group.split(StartupError)
        if startup is None or others is not None:
            raise
        fail(str(startup.exceptions[0]), USAGE)


def _announce(url: str) -> None:
    try:
        print(f"listening on {url}", flush=True)
    except OSError:
        # The parent process has stopped reading, or a disk is full; serve anyway.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the rest of the process
