"""The command line: `mist serve` runs a server, everything else is a client of one.

    serve       the server
    messages    publish, subscribe, ping, list, who
    token       token new, register, unregister, set, unset, tags
    history     history show, tail, stats, trim, verify, new-epoch
    bench       what this machine does
    pipeline    Spark over what was published
    loading     commands are imported when they are asked for
    common      where the server is, what errors and exit codes mean

Exit codes are for scripts, see `mist --help`.
"""

import click

from mist.cli.loading import Commands

__all__ = ["main"]


@click.group(
    cls=Commands,
    places={
        "serve": ("mist.cli.serve:serve", "Run a server until it is told to stop."),
        "publish": ("mist.cli.messages:publish", "Publish DATA to everyone subscribed to TAGS."),
        "subscribe": ("mist.cli.messages:subscribe", "Show messages that carry all of TAGS."),
        "ping": ("mist.cli.messages:ping", "Ask the server whether it is alive."),
        "list": ("mist.cli.messages:list_tags", "List every tag that anyone is subscribed to."),
        "who": ("mist.cli.messages:who", "Count the connections."),
        "token": ("mist.cli.token:token", "Make, change and take back the tokens."),
        "history": ("mist.cli.history:history", "Look at the message log and look after it."),
        "bench": ("mist.cli.bench:bench", "Measure mist on this machine."),
        "pipeline": ("mist.cli.pipeline:pipeline", "Work on what was published, with Spark."),
    },
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
