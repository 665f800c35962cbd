"""What the command line runs: a server, signals, and the service manager.

serve       a server until SIGTERM or SIGINT, which start a graceful shutdown
"""

import os
import signal
from collections.abc import AsyncIterator, Callable

import structlog
import trio

from mist import collector
from mist.broker.projection import COMPILED
from mist.config import Config
from mist.server import Server, open_server
from mist.sessions.readiness import not_ready
from mist.systemd import Notifier, PassedSockets
from mist.version import __version__

__all__ = ["serve"]

log = structlog.stdlib.get_logger("mist.server")


async def serve(config: Config, announce: Callable[[str], None] = lambda url: None) -> None:
    """Run a server until SIGTERM or SIGINT, then drain it. A second signal ends it at once.

    Args:
        announce: called with each listener's URL once it accepts.

    Raises:
        StartupError: one line that says what stands in the way.
    """
    for warning in config.warnings:
        log.warning(warning)
    notifier, passed = Notifier.of(os.environ), PassedSockets.of(os.environ)
    async with open_server(config, passed) as server, trio.open_nursery() as nursery:
        nursery.start_soon(collector.keep_small)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            nursery.start_soon(_obey, signals, server, nursery.cancel_scope, notifier)
            await nursery.start(_run_then_cancel, server, nursery.cancel_scope)
            log.info("started", version=__version__, compiled=COMPILED)
            for url in server.urls:
                announce(url)
            notifier.ready()
            await notifier.run(lambda: _status(server))
            await trio.sleep_forever()


def _status(server: Server) -> str:
    reason = not_ready(server.hub)
    state = "ready" if reason is None else reason.detail
    return f"{state}; {server.hub.sessions.connected} connections"


async def _run_then_cancel(
    server: Server, scope: trio.CancelScope, *, task_status: trio.TaskStatus[Server]
) -> None:
    await server.run(task_status=task_status)
    scope.cancel()


async def _obey(
    signals: AsyncIterator[int], server: Server, scope: trio.CancelScope, notifier: Notifier
) -> None:
    draining = False
    async for number in signals:
        name = signal.Signals(number).name
        if draining:
            log.warning("stopping at once", signal=name)
            scope.cancel()
            return
        log.info("draining", signal=name, connections=server.hub.sessions.connected)
        draining = True
        notifier.stopping()
        server.drain()
