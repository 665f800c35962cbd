"""`Server`: a hub behind its listeners, and the tasks of both."""

import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
import structlog
import trio

from mist.certificate import Certificate
from mist.config import Config
from mist.history.maintenance import run_maintenance
from mist.http import HttpTransport
from mist.listening import Listening
from mist.server.endpoints import Endpoints
from mist.server.limits import hub_limits, outbox_limits
from mist.sessions.expiry import discard_expired_tokens
from mist.sessions.hub import Hub
from mist.sessions.known_nodes import NodeState
from mist.sessions.node_state import describe
from mist.transports.graceful_shutdown import end_sessions
from mist.transports.tcp import TcpTransport

if TYPE_CHECKING:
    from mist.engine.node import Node  # off in most servers, as events are
    from mist.sessions.events_opening import ServerEvents

__all__ = ["Server"]

log = structlog.stdlib.get_logger("mist.server")


class Server:
    """A hub behind its listeners. Made by `open_server`.

    Attributes:
        hub: to publish and to look at, from inside the process.
        config: as it was set up, or as `configure` last changed it.
        events: tells what happens; None where nobody asks. Set before `run`.
        urls: where it listens, ports made out.
    """

    def __init__(
        self,
        config: Config,
        hub: Hub,
        listening: Sequence[Listening],
        node: "Node | None" = None,
    ) -> None:
        self.hub = hub
        self.config = config
        self.events: ServerEvents | None = None
        self._listening = listening
        self._accepting = trio.CancelScope()
        hub.is_full = lambda: any(each.outage for each in listening)
        self._began = time.monotonic()
        self._name = config.node or _default_name(listening)
        self._endpoints = Endpoints(
            config, hub, listening, self.describe, None if node is None else node.engine
        )

    @property
    def certificate(self) -> Certificate | None:
        """Of its TLS listeners; None where there is none."""
        return self.hub.certificate

    def describe(self) -> NodeState:
        """What it says of itself, to operators and to other nodes."""
        return describe(
            self.hub,
            name=self._name,
            advertise=self.config.advertise,
            uptime=time.monotonic() - self._began,
        )

    @property
    def urls(self) -> list[str]:
        """Where it listens: `tcp://127.0.0.1:1445`, in the order configured."""
        return [str(each.listen) for each in self._listening]

    async def run(
        self, *, task_status: trio.TaskStatus["Server"] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until `drain` has finished or this is cancelled.

        Started (`nursery.start(server.run)`) once every listener accepts.
        """
        config, limiter = self.config, self._endpoints.limiter
        async with trio.open_nursery() as background:
            await self._start(background)
            async with trio.open_nursery() as connections:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        for each in self._listening:
                            transport = self._endpoints.transport(each)
                            # HTTP answers to the end: load balancers are told that it isn't ready.
                            is_http = isinstance(transport, HttpTransport)
                            if not isinstance(transport, TcpTransport):
                                background.start_soon(transport.sweep)
                            # Where the socket stays open for the next server, they wait for it.
                            to_the_end = is_http and not each.is_passed
                            await (connections if to_the_end else accepting).start(
                                each.serve,
                                partial(transport.handle, nursery=background),
                                connections,
                                self.hub.turns,
                            )
                        task_status.started(self)
                        await trio.sleep_forever()
                # Only `drain` gets here.
                if self.hub.nodes is not None:
                    await self.hub.nodes.queue_members.leave()
                background.start_soon(end_sessions, self.hub, config.drain_seconds)
                await self._endpoints.drain()
                with trio.move_on_after(config.drain_seconds):
                    await limiter.emptied()
                if limiter.awaited:
                    log.warning("some connections did not drain in time", left=limiter.awaited)
                connections.cancel_scope.cancel()
            if self.events is not None:
                with trio.move_on_after(config.drain_seconds):
                    await self.events.settled()
            if self.hub.sequencer is not None:
                with trio.move_on_after(config.drain_seconds):
                    await self.hub.sequencer.settled()
            if self.hub.sealer is not None:
                # So that a stopped server's archive is whole.
                with trio.move_on_after(config.drain_seconds):
                    await self.hub.sealer.retire()
            background.cancel_scope.cancel()

    async def _start(self, background: trio.Nursery) -> None:
        """Start what runs for as long as the server does, but for its listeners."""
        await background.start(self.hub.turns.run)
        await background.start(self.hub.newcomers.run)
        background.start_soon(self.hub.flush_scheduler.run)
        background.start_soon(self.hub.token_changes.run)
        background.start_soon(self.hub.free_matches)
        background.start_soon(self.hub.report_drops)
        background.start_soon(self.hub.recorder.run)
        background.start_soon(self._endpoints.streams.watch)
        background.start_soon(self.hub.registry.run)
        background.start_soon(self.hub.credentials.run)
        if self.hub.subscription_callout is not None:
            background.start_soon(self.hub.subscription_callout.run)
        background.start_soon(self.hub.expiry.run)
        background.start_soon(discard_expired_tokens, self.hub.registry)
        sequencer = self.hub.sequencer
        if sequencer is not None:
            background.start_soon(sequencer.run)
            if self.hub.nodes is not None:
                await background.start(self.hub.nodes.run)
            sealer = self.hub.sealer
            sealed = None if sealer is None else lambda: sealer.sealed
            background.start_soon(
                partial(
                    run_maintenance,
                    sequencer.history,
                    lambda: self.config.policy,
                    clock=sequencer.now,
                    sealed=sealed,
                    forget_keys=sequencer.forget_keys,
                )
            )
            if sealer is not None:
                background.start_soon(sealer.run)
        if self.hub.side_tables is not None:
            background.start_soon(self.hub.side_tables.run)
        if self.hub.presence is not None:
            background.start_soon(self.hub.presence.run)
        if self.events is not None:
            background.start_soon(self.events.run)

    def configure(self, config: Config) -> None:
        """Take other settings, those that `mist.reloading` names; the others are as they were.

        It is done between two turns of the event loop. Sessions that are there stay.
        """
        hub = self.hub
        self.config = config
        hub.set_secret(config.secret_bytes)
        hub.credentials.renew()
        hub.limits = config.limits
        hub.outbox_limits = outbox_limits(config)
        hub.hub_limits = attrs.evolve(
            hub_limits(config), failed_auth_delay=hub.hub_limits.failed_auth_delay
        )
        hub.sessions.unauthenticated = config.max_unauthenticated
        hub.credentials.limit_tags(config.max_tags_per_token)
        self._endpoints.configure(config)

    def drain(self) -> None:
        """Stop being ready, stop accepting, and have every session end: see `graceful_shutdown`."""
        self.hub.ending = True
        self._accepting.cancel()


def _default_name(listening: Sequence[Listening]) -> str:
    """A node's name where it is given none: the machine's, and a port."""
    ports = [each.listen.port for each in listening if each.listen.port]
    return ":".join([socket.gethostname()[:64] or "node", *map(str, ports[:1])])
