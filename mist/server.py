"""A server: listeners, a hub, and one nursery that owns every task.

    with closed listeners   registry opened, ports bound: whatever can fail at the start does
                            so before anyone is told that the server listens
    serving                 one accept loop a listener, one task a connection, a sweeper
    draining                no more accepting; every session ends with code 1001 and has a
                            while to take what is queued for it

`Server` is the part to embed: it takes a nursery of yours, or makes one. `serve` is what the
command line runs: a server, signals, a lock on the data folder.
"""

import errno
import fcntl
import os
import signal
import socket
import ssl
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from mist import collector
from mist.auth import open_registry
from mist.config import Config, Listen
from mist.errors import HistoryUnavailable, StartupError
from mist.history import Durability, History, open_history
from mist.history.keeper import keep
from mist.http import Context, HttpTransport, make_app
from mist.http.access import Access
from mist.http.subscribers import Streams
from mist.http.tickets import Tickets
from mist.hub import Hub, HubLimits
from mist.outbox import OutboxLimits, SlowConsumer
from mist.sequencer import Sequencer
from mist.transports.departures import end_sessions
from mist.transports.gate import Gate
from mist.transports.handshake import Origins
from mist.transports.tcp import TcpTransport
from mist.transports.websocket import WebSocketTransport

__all__ = ["Server", "open_server", "serve"]

log = structlog.stdlib.get_logger("mist.server")

_BACKLOG: Final = 1024  # connections the kernel completes before they are accepted


@attrs.frozen
class _Listening:
    """One listener that is bound: what it was asked to be, and what it became."""

    listen: Listen  # with the real port
    listener: trio.abc.Listener[trio.abc.Stream]


class Server:
    """A hub behind its listeners. Made by `open_server`.

    Attributes:
        hub: to publish and to look at, from inside the process.
        urls: where it listens, ports made out.
    """

    def __init__(self, config: Config, hub: Hub, listening: list[_Listening]) -> None:
        self.hub = hub
        self._config = config
        self._listening = listening
        self._accepting = trio.CancelScope()
        self._started = time.time()
        self._http: list[HttpTransport] = []
        self._tickets = Tickets(hub.registry)
        self._streams = Streams(hub, most_of_token=config.max_connections_per_address)

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
        config = self._config
        gate = Gate(
            config.max_connections, config.max_connections_per_address, config.trusted_proxies
        )
        async with trio.open_nursery() as background:
            background.start_soon(self.hub.report_drops)
            background.start_soon(self._streams.sweep)
            sequencer = self.hub.sequencer
            if sequencer is not None:
                background.start_soon(sequencer.run)
                background.start_soon(keep, sequencer.history, config.policy)
            async with trio.open_nursery() as connections:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        for each in self._listening:
                            transport = self._transport(each.listen, gate)
                            if isinstance(transport, WebSocketTransport):
                                background.start_soon(transport.sweep)
                            elif isinstance(transport, HttpTransport):
                                self._http.append(transport)
                            await accepting.start(
                                partial(
                                    trio.serve_listeners,
                                    partial(transport.handle, nursery=background),
                                    [each.listener],
                                    handler_nursery=connections,
                                )
                            )
                        task_status.started(self)
                # Only `drain` gets here. The nursery ends with the last connection, or when
                # patience does.
                connections.cancel_scope.deadline = trio.current_time() + config.drain_seconds
                background.start_soon(end_sessions, self.hub, config.drain_seconds)
                for transport in self._http:
                    await transport.drain()
            if connections.cancel_scope.cancelled_caught:
                log.warning("some connections did not drain in time")
            if sequencer is not None:
                with trio.move_on_after(config.drain_seconds):
                    await sequencer.settled()
            background.cancel_scope.cancel()

    def drain(self) -> None:
        """Stop being ready, stop accepting, and have every session end: see `departures`."""
        self.hub.ending = True
        self._accepting.cancel()

    def _transport(
        self, listen: Listen, gate: Gate
    ) -> TcpTransport | WebSocketTransport | HttpTransport:
        config = self._config
        if listen.protocol == "tcp":
            return TcpTransport(
                self.hub, gate, name=listen.scheme, handshake_seconds=config.handshake_seconds
            )
        origins = Origins(
            config.allow_origin,
            config.server_names,
            [listen.port] if listen.port else [],
            loopback=listen.is_local,
        )
        if listen.protocol == "http":
            context = Context(
                self.hub,
                config,
                tuple(each.listen for each in self._listening),
                Access(self.hub, config.token_rate),
                lambda: self.hub.ending,
                self._started,
                self._tickets,
                self._streams,
            )
            return HttpTransport(
                make_app(context, gate, origins, config.server_names),
                gate,
                listen,
                max_header=config.max_header,
                handshake_seconds=config.handshake_seconds,
                idle_seconds=config.handshake_seconds,
            )
        return WebSocketTransport(
            self.hub,
            gate,
            origins,
            name=listen.scheme,
            query_token=config.allow_query_token,
            redeem=self._tickets.redeem_from,
            handshake_seconds=config.handshake_seconds,
            auth_seconds=config.auth_seconds,
            ping_seconds=config.ping_seconds,
            idle_seconds=config.idle_seconds,
        )


@asynccontextmanager
async def open_server(config: Config) -> AsyncIterator[Server]:
    """A server with its registry open and its ports bound, not yet serving.

    For embedding: `async with open_server(config) as server: await nursery.start(server.run)`.

    Raises:
        StartupError: one line that says what stands in the way.
    """
    with _locked_folder(config):
        context = _tls_context(config)
        listening: list[_Listening] = []
        registry = await open_registry(config.tokens_url, max_tags=config.max_tags_per_token)
        history: History | None = None
        try:
            if config.history_url is not None:
                history = await open_history(
                    config.history_url, durability=Durability(config.durability)
                )
            for listen in config.listen:
                listening.append(await _bind(listen, context))
            hub = Hub(
                registry,
                secret=config.secret_bytes,
                limits=config.limits,
                outbox_limits=OutboxLimits(
                    config.outbox_bytes, config.outbox_messages, SlowConsumer(config.slow_consumer)
                ),
                hub_limits=HubLimits(
                    subscriptions=config.max_subscriptions,
                    token_subscriptions=config.max_token_subscriptions,
                    strict_grants=config.token_policy == "strict",
                    strangers=config.max_unauthenticated,
                ),
            )
            if history is not None:
                try:
                    hub.sequencer = await Sequencer.over(hub.broker, history)
                except HistoryUnavailable as error:
                    raise StartupError(f"history: {error}") from error
            yield Server(config, hub, listening)
        finally:
            with trio.CancelScope(shield=True):
                if history is not None:
                    await history.close()
                for each in listening:
                    await each.listener.aclose()
                    if each.listen.is_unix:
                        _unlink_socket(each.listen.path)
                await registry.aclose()


async def serve(config: Config, announce: Callable[[str], None] = lambda url: None) -> None:
    """Run a server until SIGTERM or SIGINT, then drain it. A second signal ends it at once.

    Args:
        announce: called with each listener's URL once it accepts.

    Raises:
        StartupError: one line that says what stands in the way.
    """
    for warning in config.warnings:
        log.warning(warning)
    async with open_server(config) as server, trio.open_nursery() as nursery:
        nursery.start_soon(collector.keep_small, server.hub.broker.tag_sets)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            nursery.start_soon(_obey, signals, server, nursery.cancel_scope)
            await nursery.start(_run_then_cancel, server, nursery.cancel_scope)
            for url in server.urls:
                announce(url)
            await trio.sleep_forever()


async def _run_then_cancel(
    server: Server, scope: trio.CancelScope, *, task_status: trio.TaskStatus[Server]
) -> None:
    await server.run(task_status=task_status)
    scope.cancel()


async def _obey(signals: AsyncIterator[int], server: Server, scope: trio.CancelScope) -> None:
    draining = False
    async for number in signals:
        name = signal.Signals(number).name
        if draining:
            log.warning("stopping at once", signal=name)
            scope.cancel()
            return
        log.info("draining", signal=name, connections=server.hub.connected)
        draining = True
        server.drain()


# What a server holds on to


@contextmanager
def _locked_folder(config: Config) -> Iterator[None]:
    """The data folder, made where it is missing, for this server alone."""
    folder = config.data
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartupError(f"data folder {folder}: {_reason(error)}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupError(f"data folder {folder}: another server uses it") from None
        except OSError as error:
            raise StartupError(f"data folder {folder}: {_reason(error)}") from error
        yield
    finally:
        os.close(handle)


def _tls_context(config: Config) -> ssl.SSLContext | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (config.tls_cert, config.tls_key):
        try:
            path.read_bytes()
        except OSError as error:
            raise StartupError(f"{path}: {_reason(error)}") from error
    try:
        # An encrypted key would make OpenSSL ask on the terminal; an empty answer fails.
        context.load_cert_chain(config.tls_cert, config.tls_key, password="")
    except (ssl.SSLError, OSError) as error:
        pair = f"{config.tls_cert} and {config.tls_key}"
        raise StartupError(f"{pair}: no usable certificate and key") from error
    return context


async def _bind(listen: Listen, context: ssl.SSLContext | None) -> _Listening:
    try:
        sock = _unix_socket(listen.path) if listen.is_unix else await _tcp_socket(listen)
    except OSError as error:
        raise StartupError(f"{listen}: {_reason(error)}") from error
    if not listen.is_unix:
        listen = attrs.evolve(listen, port=sock.getsockname()[1])
    plain = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    if not listen.tls:
        return _Listening(listen, plain)
    assert context is not None  # config demands a certificate for a TLS listener
    # A WebSocket has a goodbye of its own; a line protocol's end must be told from a cut line.
    compatible = listen.protocol == "ws"
    return _Listening(listen, trio.SSLListener(plain, context, https_compatible=compatible))


async def _tcp_socket(listen: Listen) -> socket.socket:
    found = await trio.socket.getaddrinfo(
        listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # [::] beside 0.0.0.0 shall be two listeners, whatever the system's default is.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _unix_socket(path: str) -> socket.socket:
    _unlink_socket(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        os.chmod(path, 0o660)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _unlink_socket(path: str) -> None:
    """Remove a socket that nobody listens on, left by a server that was killed.

    Raises:
        OSError: EADDRINUSE where somebody does, or where something else is there.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(Path(path).lstat().st_mode):
            raise OSError(errno.EADDRINUSE, "not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                Path(path).unlink()
            else:
                raise OSError(errno.EADDRINUSE, "in use")


def _reason(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "the address is in use"
        case errno.EACCES | errno.EPERM:
            return "permission denied"
        case errno.ENOTDIR | errno.EEXIST:
            return "not a folder"
        case _:
            return (error.strerror or str(error)).lower()
