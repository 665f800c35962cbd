"""Command line: `mist serve` runs a server, the other commands are its clients.

    serve       the server
    reload      its settings, again
    backup      backup, restore
    messages    publish, subscribe, ping, list, who
    connections  connections list, show, end
    top         a live view of a server
    token       token new, register, unregister, set, unset, tags
    history     history show, tail, stats, trim, verify, new-epoch
    bench       benchmarks
    pipeline    Spark jobs over published messages
    config      config show, check
    completion  what a shell completes
    lazy        lazy loading: a command is imported when it is used
    options     options that commands share; exits: errors and exit codes
    common      a connection to the server, and errors; http, requests: over HTTP

Exit codes are for scripts, see `mist --help`.
"""

import click

from mist.cli.lazy import LazyGroup
from mist.version import __version__

__all__ = ["main"]


def _show_version(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        # Here, since no other use of the command line needs the index.
        from mist.index import COMPILED

        click.echo(f"mist, version {__version__} ({'compiled' if COMPILED else 'pure Python'})")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    commands={
        "serve": ("mist.cli.serve:serve", "Run a server until it is told to stop."),
        "reload": ("mist.cli.reload:reload", "Have a running server take its settings again."),
        "backup": ("mist.cli.backup:backup", "Back up a running server."),
        "restore": ("mist.cli.backup:restore", "Make a data directory of the backup in DIR."),
        "publish": ("mist.cli.messages:publish", "Publish DATA with TAGS."),
        "subscribe": ("mist.cli.messages:subscribe", "Print messages that carry all of TAGS."),
        "ping": ("mist.cli.messages:ping", "Check that the server responds."),
        "list": ("mist.cli.messages:list_tags", "List all tags with subscriptions."),
        "who": ("mist.cli.messages:who", "Count connections."),
        "connections": (
            "mist.cli.connections:connections",
            "List connections, and end their sessions.",
        ),
        "nodes": ("mist.cli.nodes:nodes", "List the nodes that act as one server."),
        "top": ("mist.cli.top:top", "Watch what a server does, live."),
        "token": ("mist.cli.token:token", "Create, change and revoke tokens."),
        "history": ("mist.cli.history:history", "Inspect and maintain the message history."),
        "bench": ("mist.cli.bench:bench", "Measure mist on this machine."),
        "completion": (
            "mist.cli.completion:completion",
            "Print a script for completion in a shell.",
        ),
        "config": ("mist.cli.config:config", "Look at a server's settings before it is started."),
        "pipeline": ("mist.cli.pipeline:pipeline", "Process published messages with Spark."),
    },
    extras={"bench": "bench", "pipeline": "spark"},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  mist serve                                   a server on this machine
  mist subscribe order,eu                      messages that carry both tags
  mist publish order,eu,paid 17                one message
  tail -f app.log | mist publish log --stdin   a message per line
  mist token new 'order:*'                     a token for a browser

\b
Exit codes:
  0  success                  3  not connected, or connection lost
  1  refused by the server  130  interrupted
  2  wrong usage or settings""",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Publish and subscribe by tags."""
