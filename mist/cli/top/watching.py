"""Polling a server for its figures, in a thread of its own.

So that keys are obeyed while the server doesn't answer. A server that can't be reached is asked
again until it can.
"""

import threading
import time
from collections.abc import Callable

import attrs

from mist.cli.exits import REFUSED
from mist.cli.http import HttpError, Site
from mist.cli.top.figures import Sample

__all__ = ["Watcher", "take_sample"]


def take_sample(site: Site) -> Sample:
    """What the server says now. Blocks.

    Raises:
        HttpError: it doesn't.
    """
    stats = site.get("/v1/stats")
    if not isinstance(stats, dict) or "uptime" not in stats:
        raise HttpError(f"{site.name} is no mist server", REFUSED)
    nodes = site.get("/v1/nodes")["nodes"] if stats.get("nodes") is not None else []
    return Sample(time.monotonic(), stats, nodes)


@attrs.define(eq=False)
class Watcher:
    """Takes a sample each `interval` seconds until `stop`.

    Args:
        deliver: called in the thread with each sample, or with why there is none.
    """

    site: Site
    interval: float
    deliver: Callable[[Sample | HttpError], None]
    _stopped: threading.Event = attrs.field(factory=threading.Event, init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)

    def start(self) -> None:
        """Begin, in a thread that doesn't keep the process alive."""
        self._thread = threading.Thread(target=self._run, name="mist top", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples. Doesn't wait for one that is being asked for."""
        self._stopped.set()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(due - time.monotonic(), 0.0)):
            try:
                found: Sample | HttpError = take_sample(self.site)
            except HttpError as error:
                found = error
            if self._stopped.is_set():
                return
            self.deliver(found)
            # From now on where it took long: no burst of questions behind a slow answer.
            due = max(due + self.interval, time.monotonic() + self.interval / 2)
