"""`mist config`: look at a server's settings before it is started.

show          every value, and where it came from
check         whether a server could start with them, here and now
findings      what a check says
local         of this machine: directories, disk, open files, ports, clock
certificates  when a certificate ends, and whether its key belongs to it
stores        the history, the tokens, the engine, the keys of JWTs
"""

import click

from mist.cli.lazy import LazyGroup

__all__ = ["config"]


@click.group(
    cls=LazyGroup,
    commands={
        "check": ("mist.cli.config.check:check", "Check whether a server could start so."),
        "show": ("mist.cli.config.show:show", "Print every setting, and where its value is from."),
    },
    epilog="""\b
Both take the options of mist serve, the same variables, and the same file.

\b
Examples:
  mist config show --config /etc/mist.toml
  mist config check --config /etc/mist.toml && systemctl restart mist""",
)
def config() -> None:
    """Look at a server's settings before it is started."""
