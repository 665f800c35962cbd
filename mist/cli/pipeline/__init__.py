"""`mist pipeline`: Spark jobs over published messages.

    reports      match, report, audit: read only
    maintenance  compact, retain, erase: change the archive
    transfer     export, replay, stream: copy messages elsewhere
    options      options for the source of messages and for Spark
    pages        HTML pages of the results
    runner       a Spark session, progress, results, exit codes

Spark, Arrow and numpy are imported only when a command needs them, so `mist --help` works
without them.
"""

import click

from mist.cli.pipeline.maintenance import compact, erase, retain
from mist.cli.pipeline.reports import audit, match, report
from mist.cli.pipeline.transfer import export, replay, stream

__all__ = ["pipeline"]


@click.group(
    epilog="""\b
Messages come from --archive, which `mist serve --archive DIR` writes, or from a live server by
--server. Needs the extra mist-pubsub[spark], and Java 17 or 21.

\b
Examples:
  mist pipeline report volume --html volume.html --from 2026-11-01
  mist pipeline match --subscriptions wanted.txt --out matches
  mist pipeline export --format jsonl --subscribe order,eu --out orders
  mist pipeline stream --server http://127.0.0.1:8080 --to lake
  mist pipeline erase --tag user:4711 --receipt gone.json

\b
Exit codes:
  0  success                  3  server or cluster unreachable
  1  failed                 130  interrupted
  2  wrong usage, or something is missing""",
)
def pipeline() -> None:
    """Process published messages with Spark: reports, replay, erasure."""


for command in (compact, match, report, audit, export, replay, erase, retain, stream):
    pipeline.add_command(command)
