"""`mist pipeline`: Spark over what was published.

    reports     match, report, audit: they look
    keeping     compact, retain, erase: they change the archive
    moving      export, replay, stream: they carry messages elsewhere
    options     which messages, which Spark
    running     a session, progress, results, exit codes

Nothing of Spark, Arrow or numpy is imported before a command needs it: `mist --help` is for
those who have none of them, too.
"""

import click

from mist.cli.pipeline.keeping import compact, erase, retain
from mist.cli.pipeline.moving import export, replay, stream
from mist.cli.pipeline.reports import audit, match, report

__all__ = ["pipeline"]


@click.group(
    epilog="""\b
Messages come from --archive, which `mist serve --archive DIR` keeps, or from a live server by
--url. Needs the extra mist-pubsub[spark], and Java 17 or 21.

\b
Examples:
  mist pipeline report volume --html volume.html --from 2026-11-01
  mist pipeline match --subscriptions wanted.txt --out matches
  mist pipeline export --format jsonl --subscribe order,eu --out orders
  mist pipeline stream --url http://127.0.0.1:8080 --to lake
  mist pipeline erase --tag user:4711 --receipt gone.json

\b
Exit codes:
  0  done                     3  no answer from the server or the cluster
  1  it went wrong          130  interrupted
  2  wrong usage, or something is missing""",
)
def pipeline() -> None:
    """Work on what was published, with Spark: reports, replay, erasure."""


for command in (compact, match, report, audit, export, replay, erase, retain, stream):
    pipeline.add_command(command)
