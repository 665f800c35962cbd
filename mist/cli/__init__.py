"""The command line: `mist serve` runs a server, everything else is a client of one.

    serve       the server
    messages    publish, subscribe, ping, list, who
    token       token new, register, unregister, set, unset, tags
    history     history show, tail, stats, trim, verify, new-epoch
    bench       what this machine does
    pipeline    Spark over what was published
    common      where the server is, what errors and exit codes mean

Exit codes are for scripts, see `mist --help`.
"""

import click

from mist.cli.bench import bench
from mist.cli.history import history
from mist.cli.messages import list_tags, ping, publish, subscribe, who
from mist.cli.pipeline import pipeline
from mist.cli.serve import serve
from mist.cli.token import token

__all__ = ["main"]


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  mist serve                                   a server on this machine
  mist subscribe order,eu                      show what carries both tags
  mist publish order,eu,paid 17                tell everyone who wants to know
  tail -f app.log | mist publish log --stdin   a message a line
  mist token new 'order:*'                     a token for a browser

\b
Exit codes:
  0  done                     3  no connection, or lost it
  1  the server said no     130  interrupted
  2  wrong usage or settings""",
)
@click.version_option(package_name="mist-pubsub", prog_name="mist")
def main() -> None:
    """Publish and subscribe by tags."""


for command in (serve, publish, subscribe, ping, list_tags, who, token, history, bench, pipeline):
    main.add_command(command)
