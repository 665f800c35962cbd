"""What the command line runs: a server, signals, the service manager, the control socket.

SIGTERM and SIGINT start a graceful shutdown; a second one ends the process at once. SIGHUP has the
server take its settings again; see `mist.reloading`.
"""

import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Final

import attrs
import structlog
import trio

from mist import allocator, collector
from mist.backup import DESCRIBE, EXPORT_TOKENS
from mist.broker.projection import COMPILED
from mist.config import Config
from mist.control import Commands, serve_control
from mist.errors import StartupError
from mist.reloading import Reloader, watch_certificate
from mist.server import Server, open_server
from mist.sessions.readiness import not_ready
from mist.systemd import Notifier, PassedSockets
from mist.version import __version__

__all__ = ["serve"]

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)

log = structlog.stdlib.get_logger("mist.server")


async def serve(
    config: Config,
    announce: Callable[[str], None] = lambda url: None,
    read_config: Callable[[], Config] | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT, then drain it. A second signal ends it at once.

    Args:
        announce: called with each listener's URL once it accepts.
        read_config: gives the settings as they are by then, for SIGHUP; None where they can't
            be read again, and SIGHUP is left as it is.

    Raises:
        StartupError: one line that says what stands in the way.
    """
    for warning in config.warnings:
        log.warning(warning)
    notifier, passed = Notifier.of(os.environ), PassedSockets.of(os.environ)
    async with open_server(config, passed) as server, trio.open_nursery() as nursery:
        nursery.start_soon(collector.keep_small)
        nursery.start_soon(allocator.keep_trimmed)
        wanted = _ENDING if read_config is None else (*_ENDING, signal.SIGHUP)
        with trio.open_signal_receiver(*wanted) as signals:
            # A process inherits what its parent has blocked, and would hear of no end but SIGKILL.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, wanted)
            process = _Process(server, notifier, read_config, nursery)
            nursery.start_soon(process.obey, signals)
            await nursery.start(_run_then_cancel, server, nursery.cancel_scope)
            await nursery.start(serve_control, config.data, process.commands)
            nursery.start_soon(watch_certificate, server)
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


class _Process:
    """A server, and what it is told from outside."""

    def __init__(
        self,
        server: Server,
        notifier: Notifier,
        read_config: Callable[[], Config] | None,
        nursery: trio.Nursery,
    ) -> None:
        self._server = server
        self._notifier = notifier
        self._nursery = nursery
        self._reloader = None if read_config is None else Reloader(server, read_config)
        self.commands: Commands = {
            "reload": self._reload,
            DESCRIBE: self._describe_data,
            EXPORT_TOKENS: self._export_tokens,
        }

    async def obey(self, signals: AsyncIterator[int]) -> None:
        """Do what signals say."""
        async for number in signals:
            if number == signal.SIGHUP:
                self._nursery.start_soon(self._reload_quietly)
            else:
                self._end(signal.Signals(number).name)

    def _end(self, name: str) -> None:
        server = self._server
        if server.hub.ending:
            log.warning("stopping at once", signal=name)
            self._nursery.cancel_scope.cancel()
            return
        log.info("draining", signal=name, connections=server.hub.sessions.connected)
        self._notifier.stopping()
        server.drain()

    async def _reload_quietly(self) -> None:
        with suppress(StartupError):  # which is logged
            await self._reload()

    async def _reload(self) -> Mapping[str, object]:
        if self._reloader is None:
            raise StartupError("its settings can't be read again")
        if self._server.hub.ending:
            raise StartupError("the server is shutting down")
        with self._notifier.reloading():
            return attrs.asdict(await self._reloader.reload())

    # Imported where they are used: few starts of a server see a backup.

    async def _describe_data(self) -> Mapping[str, object]:
        from mist.backup.exporting import describe_data

        return await describe_data(self._server.config)

    async def _export_tokens(self) -> Mapping[str, object]:
        from mist.backup.exporting import export_tokens

        return await export_tokens(self._server.hub, self._server.config)
