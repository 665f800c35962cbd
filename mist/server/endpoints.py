"""Endpoints: what is served at each listener, and what they have in common."""

import secrets
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from mist.config import Config, Listen
from mist.http import Context, HttpTransport, Site
from mist.http.access import Access
from mist.http.open_streams import Streams
from mist.http.ticket_store import Tickets
from mist.listening import Listening
from mist.sessions.hub import Hub
from mist.sessions.known_nodes import NodeState
from mist.transports.connection_limiter import ConnectionLimiter
from mist.transports.forwarding import Proxies
from mist.transports.handshake import Origins
from mist.transports.tcp import TcpTransport
from mist.transports.websocket import WebSocketTransport
from mist.version import __version__

if TYPE_CHECKING:
    from mist.engine.contract import Engine
    from mist.transports.nats import NatsTransport

__all__ = ["AnyTransport", "Endpoints"]

AnyTransport: TypeAlias = "TcpTransport | WebSocketTransport | HttpTransport | NatsTransport"


class Endpoints:
    """Makes the transport of each listener.

    Args:
        config: of the server.
        hub: behind all of them.
        listening: all listeners, ports made out.
        describe: what the server says of itself.
        engine: on which tickets are kept, where there is one.

    Attributes:
        limiter: of connections, all listeners together.
        streams: event streams and polls that are open.
    """

    def __init__(
        self,
        config: Config,
        hub: Hub,
        listening: Sequence[Listening],
        describe: Callable[[], NodeState],
        engine: "Engine | None" = None,
    ) -> None:
        self.limiter = ConnectionLimiter(
            config.max_connections, config.max_connections_per_address, config.trusted_proxies
        )
        self.streams = Streams(hub, most_of_token=config.max_connections_per_address)
        self._config = config
        self._hub = hub
        self._listening = listening
        self._describe = describe
        self._tickets = Tickets(hub.registry, engine=engine)
        self._origins: list[Origins] = []
        self._proxies: list[Proxies] = []
        self._http: list[HttpTransport] = []
        self._started = time.time()
        self._id = secrets.token_hex(16)

    def configure(self, config: Config) -> None:
        """Take other settings, as `Server.configure`."""
        self._config = config
        self.limiter.configure(
            config.max_connections, config.max_connections_per_address, config.trusted_proxies
        )
        self.streams.configure(config.max_connections_per_address)
        for origins in self._origins:
            origins.configure(config.origins, config.names)
        for proxies in self._proxies:
            proxies.configure(config.trusted_proxies)
        if self._http:
            self._site.configure(config)

    async def drain(self) -> None:
        """Have requests end that would go on for ever; see `HttpTransport.drain`."""
        for transport in self._http:
            await transport.drain()

    def transport(self, listening: Listening) -> AnyTransport:
        """What serves a listener's connections."""
        listen = listening.listen
        self._hub.sessions.transports |= _transports_of(listen)
        match listen.protocol:
            case "tcp":
                return TcpTransport(
                    self._hub,
                    self.limiter,
                    name=listen.scheme,
                    handshake_seconds=self._config.handshake_seconds,
                )
            case "nats":
                return self._nats(listening)
            case "ws":
                return self._websocket(listening, *self._guards(listening))
            case _:
                return self._requests(listening)

    def _nats(self, listening: Listening) -> "NatsTransport":
        # Imported here: most servers have no such listener.
        from mist.protocols.subjects.info import ServerInfo
        from mist.transports.nats import NatsTransport

        listen = listening.listen
        info = ServerInfo(
            self._id,
            __version__,
            listen.host,
            listen.port,
            tls_required=listen.tls,
        )
        return NatsTransport(
            self._hub,
            self.limiter,
            info,
            name=listen.scheme,
            certificate=listening.certificate,
            handshake_seconds=self._config.handshake_seconds,
        )

    def _guards(self, listening: Listening) -> tuple[Origins, Proxies]:
        """Whose pages may connect to a listener, and which proxies are before it."""
        listen, config = listening.listen, self._config
        origins = Origins(
            config.origins,
            config.names,
            [listen.port] if listen.port else [],
            loopback=listen.is_local,
        )
        proxies = Proxies(config.trusted_proxies, unix=listen.is_unix)
        self._origins.append(origins)
        self._proxies.append(proxies)
        return origins, proxies

    def _websocket(
        self, listening: Listening, origins: Origins, proxies: Proxies
    ) -> WebSocketTransport:
        listen, config = listening.listen, self._config
        return WebSocketTransport(
            self._hub,
            self.limiter,
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

    def _requests(self, listening: Listening) -> HttpTransport:
        config = self._config
        origins, proxies = self._guards(listening)
        self._note_refused(0)  # a series that begins with its first refusal shows no increase
        transport = HttpTransport(
            self._site.behind(origins),
            self.limiter,
            listening.listen,
            turns=self._hub.turns,
            newcomers=self._hub.newcomers,
            proxies=proxies,
            websocket=self._websocket(listening, origins, proxies),
            max_header=config.max_header,
            handshake_seconds=config.handshake_seconds,
            idle_seconds=config.handshake_seconds,
            note_refused=self._note_refused,
            note_failed=self._hub.broker.failures.count,
        )
        self._http.append(transport)
        return transport

    def _note_refused(self, connections: int = 1) -> None:
        self._hub.sessions.refused["http"] += connections

    @cached_property
    def _site(self) -> Site:
        """What all HTTP listeners serve, where there is one."""
        config = self._config
        context = Context(
            self._hub,
            config,
            tuple(each.listen for each in self._listening),
            Access(self._hub, config.token_rate),
            lambda: self._hub.ending,
            self._started,
            self._tickets,
            self.streams,
            self._describe,
        )
        return Site(context, self.limiter, config.names)


def _transports_of(listen: Listen) -> set[str]:
    """What the sessions of a listener are counted as."""
    websocket = "wss" if listen.tls else "ws"
    match listen.protocol:
        case "http":
            return {websocket, "sse", "poll", "bus"}
        case "ws":
            return {websocket}
        case _:
            return {listen.scheme}
