"""A server: listeners, a hub, and one nursery that owns every task.

    with closed listeners   registry opened, ports bound: whatever can fail at the start does
                            so before anyone is told that the server listens
    serving                 one accept loop a listener, one task a connection, a sweeper
    draining                not ready, as HTTP says to the end; nobody else is accepted; nothing
                            more is read from publishers; then every session ends with code 1001
                            and has a while to take what is queued

`Server` is the part to embed: it takes a nursery of yours, or makes one. `serving` is what the
command line runs.
"""

import fcntl
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING

import attrs
import structlog
import trio

from mist.auth.registry import Registry
from mist.broker.outbox import OutboxLimits, SlowConsumer
from mist.certificate import Certificate
from mist.config import Config
from mist.engine.node import Node, open_node
from mist.engine.tokens import open_tokens
from mist.errors import HistoryUnavailable, StartupError
from mist.history import Durability, History
from mist.history.maintenance import run_maintenance
from mist.history.opening import open_history
from mist.http import Context, HttpTransport, Site
from mist.http.access import Access
from mist.http.open_streams import Streams
from mist.http.ticket_store import Tickets
from mist.listening import Listening, bind, reason
from mist.protocols.subjects.info import ServerInfo
from mist.sessions.archiving import (
    open_archive,
    open_shared_archive,
    open_side_tables,
    seal_soon,
)
from mist.sessions.authorities import open_credentials, open_subscription_callout
from mist.sessions.close_reason import HISTORY_FORKED
from mist.sessions.events_opening import ServerEvents, open_events
from mist.sessions.expiry import discard_expired_tokens
from mist.sessions.hub import Hub, HubLimits
from mist.sessions.node_sequencer import NodeSequencer
from mist.sessions.node_state import describe
from mist.sessions.nodes import Nodes, NodeState
from mist.sessions.occasions import Hook
from mist.sessions.presence_opening import join_presence, open_presence
from mist.sessions.sequencer import Sequencer
from mist.systemd import PassedSockets
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.forwarding import Proxies
from mist.transports.graceful_shutdown import end_sessions
from mist.transports.handshake import Origins
from mist.transports.nats import NatsTransport
from mist.transports.tcp import TcpTransport
from mist.transports.websocket import WebSocketTransport
from mist.version import __version__

if TYPE_CHECKING:
    from mist.archive.sealer import Sealer  # needs pyarrow, which is an extra
    from mist.archive.sharing import SharedSealer
    from mist.archive.side_tables import SideTables

__all__ = ["Server", "open_server"]

log = structlog.stdlib.get_logger("mist.server")


class Server:
    """A hub behind its listeners. Made by `open_server`.

    Attributes:
        hub: to publish and to look at, from inside the process.
        config: as it was set up, or as `configure` last changed it.
        certificate: of its TLS listeners; None where there is none.
        events: tells what happens; None where nobody asks. Set before `run`.
        urls: where it listens, ports made out.
    """

    def __init__(
        self,
        config: Config,
        hub: Hub,
        listening: list[Listening],
        node: Node | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        self.hub = hub
        self.config = config
        self.certificate = certificate
        self.events: ServerEvents | None = None
        self._listening = listening
        self._origins: list[Origins] = []
        self._proxies: list[Proxies] = []
        self._accepting = trio.CancelScope()
        self._started = time.time()
        self._began = time.monotonic()
        self._name = config.node or _default_name(listening)
        self._id = secrets.token_hex(16)
        self._limiter = ConnectionLimiter(
            config.max_connections, config.max_connections_per_address, config.trusted_proxies
        )
        self._http: list[HttpTransport] = []
        self._tickets = Tickets(hub.registry, engine=None if node is None else node.engine)
        self._streams = Streams(hub, most_of_token=config.max_connections_per_address)

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
        config, limiter = self.config, self._limiter
        async with trio.open_nursery() as background:
            await background.start(self.hub.turns.run)
            background.start_soon(self.hub.flush_scheduler.run)
            background.start_soon(self.hub.report_drops)
            background.start_soon(self._streams.watch)
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
            async with trio.open_nursery() as connections:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        for each in self._listening:
                            transport = self._transport(each)
                            # HTTP answers to the end: load balancers are told that it isn't ready.
                            is_http = isinstance(transport, HttpTransport)
                            if isinstance(
                                transport, HttpTransport | WebSocketTransport | NatsTransport
                            ):
                                background.start_soon(transport.sweep)
                            # Where the socket stays open for the next server, they wait for it.
                            to_the_end = is_http and not each.is_passed
                            await (connections if to_the_end else accepting).start(
                                each.serve,
                                partial(transport.handle, nursery=background),
                                connections,
                            )
                        task_status.started(self)
                        await trio.sleep_forever()
                # Only `drain` gets here.
                if self.hub.nodes is not None:
                    await self.hub.nodes.queue_members.leave()
                background.start_soon(end_sessions, self.hub, config.drain_seconds)
                for transport in self._http:
                    await transport.drain()
                with trio.move_on_after(config.drain_seconds):
                    await limiter.emptied()
                if limiter.connected:
                    log.warning("some connections did not drain in time", left=limiter.connected)
                connections.cancel_scope.cancel()
            if self.events is not None:
                with trio.move_on_after(config.drain_seconds):
                    await self.events.settled()
            if sequencer is not None:
                with trio.move_on_after(config.drain_seconds):
                    await sequencer.settled()
            if self.hub.sealer is not None:
                # So that a stopped server's archive is whole.
                with trio.move_on_after(config.drain_seconds):
                    await self.hub.sealer.retire()
            background.cancel_scope.cancel()

    def configure(self, config: Config) -> None:
        """Take other settings, those that `mist.reloading` names; the others are as they were.

        It is done between two turns of the event loop. Sessions that are there stay.
        """
        hub = self.hub
        self.config = config
        hub.set_secret(config.secret_bytes)
        hub.credentials.renew()
        hub.limits = config.limits
        hub.outbox_limits = _outbox_limits(config)
        hub.hub_limits = attrs.evolve(
            _hub_limits(config), failed_auth_delay=hub.hub_limits.failed_auth_delay
        )
        hub.sessions.unauthenticated = config.max_unauthenticated
        hub.registry.limit_tags(config.max_tags_per_token)
        self._limiter.configure(
            config.max_connections, config.max_connections_per_address, config.trusted_proxies
        )
        for origins in self._origins:
            origins.configure(config.origins, config.names)
        for proxies in self._proxies:
            proxies.configure(config.trusted_proxies)
        if self._http:
            self._site.configure(config)

    def drain(self) -> None:
        """Stop being ready, stop accepting, and have every session end: see `graceful_shutdown`."""
        self.hub.ending = True
        self._accepting.cancel()

    @cached_property
    def _site(self) -> Site:
        """What all HTTP listeners serve, where there is one."""
        config = self.config
        context = Context(
            self.hub,
            config,
            tuple(each.listen for each in self._listening),
            Access(self.hub, config.token_rate),
            lambda: self.hub.ending,
            self._started,
            self._tickets,
            self._streams,
            self.describe,
        )
        return Site(context, self._limiter, config.names)

    def _transport(
        self, listening: Listening
    ) -> TcpTransport | WebSocketTransport | HttpTransport | NatsTransport:
        config, limiter, listen = self.config, self._limiter, listening.listen
        if listen.protocol == "tcp":
            return TcpTransport(
                self.hub, limiter, name=listen.scheme, handshake_seconds=config.handshake_seconds
            )
        if listen.protocol == "nats":
            info = ServerInfo(
                self._id,
                __version__,
                listen.host,
                listen.port,
                tls_required=listen.tls,
            )
            return NatsTransport(
                self.hub,
                limiter,
                info,
                name=listen.scheme,
                certificate=listening.certificate,
                handshake_seconds=config.handshake_seconds,
            )
        origins = Origins(
            config.origins,
            config.names,
            [listen.port] if listen.port else [],
            loopback=listen.is_local,
        )
        self._origins.append(origins)
        proxies = Proxies(config.trusted_proxies, unix=listen.is_unix)
        self._proxies.append(proxies)
        websocket = WebSocketTransport(
            self.hub,
            limiter,
            origins,
            name="wss" if listen.tls else "ws",
            max_header=config.max_header,
            query_token=config.allow_query_token,
            bring=self._tickets.bring,
            redeem=self._tickets.redeem_from,
            handshake_seconds=config.handshake_seconds,
            auth_seconds=config.auth_seconds,
            ping_seconds=config.ping_seconds,
            idle_seconds=config.idle_seconds,
            is_local=listen.is_local,
            proxies=proxies,
        )
        if listen.protocol == "ws":
            return websocket
        transport = HttpTransport(
            self._site.behind(origins),
            limiter,
            listen,
            turns=self.hub.turns,
            proxies=proxies,
            websocket=websocket,
            max_header=config.max_header,
            handshake_seconds=config.handshake_seconds,
            idle_seconds=config.handshake_seconds,
        )
        self._http.append(transport)
        return transport


@asynccontextmanager
async def open_server(
    config: Config, passed: PassedSockets | None = None, *, hooks: Sequence[Hook] = ()
) -> AsyncIterator[Server]:
    """A server with its registry open and its ports bound, not yet serving.

    For embedding: `async with open_server(config) as server: await nursery.start(server.run)`.

    Args:
        passed: sockets that are bound already.
        hooks: called with each `mist.sessions.occasions.Occasion`, one after the other, in a task
            of its own each; may be async. What one raises is logged and counted, and ends nothing.

    Raises:
        StartupError: one line that says what stands in the way.
    """
    with _locked_folder(config):
        certificate = None
        if config.tls_cert is not None and config.tls_key is not None:
            certificate = Certificate.load(config.tls_cert, config.tls_key)
        listening: list[Listening] = []
        registry: Registry | None = None
        history: History | None = None
        node: Node | None = None
        node_sequencer: NodeSequencer | None = None
        shared: SharedSealer | None = None
        sealer: Sealer | SharedSealer | None = None
        side_tables: SideTables | None = None
        try:
            if config.engine is not None and config.history_url is not None:
                node = await open_node(
                    config.engine,
                    config.history_url,
                    durability=Durability(config.durability),
                    replicas=config.engine_replicas,
                )
                history = node.history
            elif config.history_url is not None:
                history = await open_history(
                    config.history_url, durability=Durability(config.durability)
                )
            if history is not None:
                await history.keep_latest(config.latest)
            # Behind the node: what a checkpoint has brought is not older than the tokens then are.
            registry = await open_tokens(
                config.tokens_url,
                key_file=config.token_key_file,
                max_tags=config.max_tags_per_token,
                durability=Durability(config.durability),
                replicas=config.engine_replicas,
            )
            for listen in config.listen:
                listening.append(await bind(listen, certificate, passed))
            if passed is not None:
                passed.check_all_taken()
            hub = Hub(
                registry,
                secret=config.secret_bytes,
                limits=config.limits,
                outbox_limits=_outbox_limits(config),
                hub_limits=_hub_limits(config),
            )
            hub.credentials = await open_credentials(config, hub)
            hub.subscription_callout = await open_subscription_callout(config, hub)
            if history is not None:
                try:
                    if node is None:
                        # Ahead of the sequencer: it may begin a new epoch of the history.
                        if config.archive is not None:
                            sealer = await open_archive(config, config.archive, history)
                        hub.sequencer = await Sequencer.over(
                            hub.broker, history, hub.flush_scheduler
                        )
                    else:
                        hub.sequencer = node_sequencer = await NodeSequencer.following(
                            hub.broker,
                            node,
                            hub.flush_scheduler,
                            registry=registry,
                            on_epoch=partial(hub.end_subscribers, HISTORY_FORKED),
                        )
                        if config.archive is not None:
                            sealer = shared = await open_shared_archive(
                                config, config.archive, node, node_sequencer, hub
                            )
                    if sealer is not None:
                        hub.sealer = sealer
                        hub.side_tables = side_tables = open_side_tables(sealer, hub)
                except HistoryUnavailable as error:
                    raise StartupError(f"history: {error}") from error
            open_presence(hub, config.presence)
            server = Server(config, hub, listening, node, certificate)
            if node is not None and node_sequencer is not None:
                hub.nodes = Nodes(
                    node,
                    node_sequencer,
                    hub.broker,
                    hub.sessions,
                    server.describe,
                    erase=None if shared is None else shared.erase,
                    note_erasure=None if shared is None else shared.note_erasure,
                    seal_soon=partial(seal_soon, shared, side_tables),
                    checkpoint_bytes=config.checkpoint_bytes,
                )
                join_presence(hub)
            server.events = open_events(
                hub, server.describe().name, publishes=config.events, hooks=hooks
            )
            yield server
        finally:
            with trio.CancelScope(shield=True):
                if side_tables is not None:
                    await side_tables.aclose()
                if sealer is not None:
                    await sealer.aclose()
                if node is not None:
                    await node.close()
                elif history is not None:
                    await history.close()
                for each in listening:
                    each.close()
                if registry is not None:
                    await registry.aclose()


def _outbox_limits(config: Config) -> OutboxLimits:
    return OutboxLimits(
        config.outbox_bytes, config.outbox_messages, SlowConsumer(config.slow_consumer)
    )


def _hub_limits(config: Config) -> HubLimits:
    return HubLimits(
        subscriptions=config.max_subscriptions,
        token_subscriptions=config.max_token_subscriptions,
        strict_grants=config.token_policy == "strict",
        unauthenticated=config.max_unauthenticated,
    )


# What a server holds on to


def _default_name(listening: list[Listening]) -> str:
    """A node's name where it is given none: the machine's, and a port."""
    ports = [each.listen.port for each in listening if each.listen.port]
    return ":".join([socket.gethostname()[:64] or "node", *map(str, ports[:1])])


@contextmanager
def _locked_folder(config: Config) -> Iterator[None]:
    """Create the data directory if missing, and lock it for this server."""
    folder = config.data
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartupError(f"data directory {folder}: {reason(error)}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupError(f"data directory {folder}: another server uses it") from None
        except OSError as error:
            raise StartupError(f"data directory {folder}: {reason(error)}") from error
        yield
    finally:
        os.close(handle)
