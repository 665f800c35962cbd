"""`mist bench`: what mist does on this machine, in figures that print.

    commands    a command for each kind of figure
    options     what they take
    settings    what they share: which server, which form of results
    running     progress, tables, JSON, exit codes

What is measured, and what the figures mean, is in `mist.bench`; what a row of `--json` holds
is in `mist.bench.report`.
"""

from mist.cli.bench.commands import bench

__all__ = ["bench"]
