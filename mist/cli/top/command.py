"""The command: on a terminal a live screen; with --once or --json, text for scripts."""

import queue
import shutil
import sys
import time

import click

from mist.cli.exits import UNREACHABLE, USAGE, fail
from mist.cli.http import HTTP_DEFAULT, HttpError, Site
from mist.cli.numbers import FiniteRange
from mist.cli.options import HTTP_SCHEMES, json_option, print_json, secret_option, server_option
from mist.cli.top.figures import Sample, Series
from mist.cli.top.screen import SORTS, View, render
from mist.cli.top.terminal import Terminal, open_terminal
from mist.cli.top.watching import Watcher, take_sample

__all__ = ["top"]


@click.command(
    epilog="""\b
Keys:
  q        quit
  b m d r  sort slow connections by queued bytes, queued messages, dropped, rate of delivery
  space    hold the screen, and go on

\b
Examples:
  mist top
  mist top --server https://mist.example --secret-file secret.txt
  mist top --once                      rates over a second, as text
  mist top --json | jq .rates.delivered"""
)
@click.option(
    "-i",
    "--interval",
    metavar="SECONDS",
    type=FiniteRange(0.2, 3600),
    default=1.0,
    show_default=True,
    help="Time between two looks",
)
@click.option("--once", is_flag=True, help="Print the screen once, as text")
@json_option("A JSON object at each interval; with --once, one")
@server_option(
    HTTP_SCHEMES, HTTP_DEFAULT, "The server's HTTP listener", alias="--url", variable="MIST_URL"
)
@secret_option
def top(interval: float, once: bool, as_json: bool, server: str, secret: str | None) -> None:
    """Watch what a server does, live.

    Rates, drops, nodes, slow connections, top tags. Slow connections are the twenty with the most
    bytes queued; a + behind the messages queued marks those that are fed from the history. A server
    that goes away is asked until it is back.
    """
    try:
        site = Site.of(server, secret)
        first = take_sample(site)
    except HttpError as error:
        fail(str(error), error.code)
    if once or as_json:
        _print(site, first, interval, once=once, as_json=as_json)
    elif not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("not a terminal: give --once or --json", USAGE)
    else:
        _watch(site, first, interval)


def _print(site: Site, first: Sample, interval: float, *, once: bool, as_json: bool) -> None:
    series = Series()
    series.add(first)
    while True:
        time.sleep(interval)
        try:
            now = take_sample(site)
        except HttpError as error:
            if once or error.code != UNREACHABLE:
                fail(str(error), error.code)
            continue
        figures = series.add(now)
        if as_json:
            print_json(figures.as_json())
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
            for line in render(View(site.name, figures), width, 200, keys=False):
                click.echo(line.text)
        if once:
            return


def _watch(site: Site, first: Sample, interval: float) -> None:
    """The live screen, until `q`."""
    series = Series()
    view = View(site.name, series.add(first))
    found: queue.SimpleQueue[Sample | HttpError] = queue.SimpleQueue()
    with open_terminal() as terminal:

        def deliver(each: Sample | HttpError) -> None:
            found.put(each)
            terminal.ring()

        watcher = Watcher(site, interval, deliver)
        watcher.start()
        try:
            _show(terminal, view, series, found)
        except EOFError:
            pass  # nobody looks any more
        finally:
            watcher.stop()


def _show(
    terminal: Terminal,
    view: View,
    series: Series,
    found: "queue.SimpleQueue[Sample | HttpError]",
) -> None:
    while True:
        width, height = terminal.size
        terminal.draw(render(view, width, height))
        for key in terminal.wait():
            if key in "qQ\x03\x04":
                return
            if key == " ":
                view.paused = not view.paused
            elif key in SORTS:
                view.sort = key
        while not found.empty():
            each = found.get()
            if isinstance(each, HttpError):
                view.problem = str(each)
                continue
            view.problem = ""
            if not view.paused:
                view.figures = series.add(each)
