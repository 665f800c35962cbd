"""Settings: every setting of a server as a field, with its default and its help text.

A field's metadata is the one place where an option is described: flags, environment variables,
keys of the file and help texts are all made from it.
"""

from pathlib import Path
from typing import Final

import attrs

from mist.config import kinds
from mist.config.addresses import Listen
from mist.config.credential_settings import CredentialSettings
from mist.config.kinds import Network, without_password
from mist.config.options import about
from mist.config.places import shares
from mist.config.public_url import PublicUrl
from mist.history.retention import Policy, Rule
from mist.message import (
    MAX_DATA,
    MAX_MESSAGE_TAGS,
    MAX_SUBSCRIPTION_TAGS,
    MAX_TOKEN_TAGS,
    Limits,
)

__all__ = ["Settings"]

_KIB: Final = 1 << 10  # bytes
_MIB: Final = 1 << 20  # bytes
_LINE_SLACK: Final = 64 * _KIB  # bytes of a line beside its data: a command and 64 long tags


@attrs.frozen(kw_only=True)
class Settings(CredentialSettings):
    """The settings of a server, each valid by itself; `Config` checks them against each other.

    The meaning and unit of each field are its help text. Fields have their final types here;
    `load_config` parses text.
    """

    listen: tuple[Listen, ...] = attrs.field(
        default=(
            Listen("tcp", "127.0.0.1", 1445),
            Listen("ws", "127.0.0.1", 8888),
            Listen("http", "127.0.0.1", 8080),
        ),
        metadata=about(
            kinds.LISTEN,
            "Where to listen; given once or more it replaces the defaults",
            repeatable=True,
        ),
    )
    data: Path = attrs.field(
        default=Path("mist-data"),
        metadata=about(kinds.path("DIR"), "Data directory: all that has to survive a restart"),
    )
    tokens: str | None = attrs.field(
        default=None,
        repr=lambda url: repr(url and without_password(url)),
        metadata=about(
            kinds.URL,
            "Token registry: sqlite:///FILE; redis://HOST or postgresql://HOST/DATABASE, which "
            "servers may share; or memory:// to lose it on exit",
            default_text="the engine's, else tokens.db in the data directory",
        ),
    )
    token_key_file: Path | None = attrs.field(
        default=None,
        metadata=about(
            kinds.path(),
            "Key of a shared token registry, the same at all its servers; mist token key makes one",
        ),
    )
    history: str | None = attrs.field(
        default=None,
        repr=lambda url: repr(url and without_password(url)),
        metadata=about(
            kinds.HISTORY,
            "Message history: sqlite:///FILE, memory:// to lose it on exit, or none",
            default_text="history.db in the data directory",
        ),
    )
    engine: str | None = attrs.field(
        default=None,
        repr=lambda url: repr(url and without_password(url)),
        metadata=about(
            kinds.ENGINE,
            "Engine on which several nodes act as one: redis://HOST, "
            "redis+sentinel://HOST,HOST/MASTER, redis+cluster://HOST,HOST, "
            "postgresql://HOST/DATABASE; memory://NAME for tests",
        ),
    )
    engine_replicas: int = attrs.field(
        default=0,
        metadata=about(
            kinds.count(0),
            "Replicas of a Redis that have what is stored before it is acknowledged or delivered",
        ),
    )
    node: str | None = attrs.field(
        default=None,
        metadata=about(
            kinds.NODE,
            "Name of this node, as operators see it",
            default_text="the host name and a port",
        ),
    )
    advertise: str | None = attrs.field(
        default=None,
        metadata=about(
            kinds.ADVERTISE,
            "URL at which this node is reached, shown to operators",
        ),
    )
    public_url: PublicUrl | None = attrs.field(
        default=None,
        metadata=about(
            kinds.PUBLIC_URL,
            "URL at which a proxy has this server, as browsers know it; a path is the proxy's",
        ),
    )
    checkpoint_bytes: int = attrs.field(
        default=64 * _MIB,
        metadata=about(
            kinds.size(),
            "With an engine: bytes published, at least, before its log is trimmed to a checkpoint",
        ),
    )
    archive: Path | None = attrs.field(
        default=None,
        metadata=about(
            kinds.path("DIR"), "Directory of the archive that Spark reads; needs the extra archive"
        ),
    )
    durability: str = attrs.field(
        default="power",
        metadata=about(
            kinds.choice("power", "process"),
            "What a stored message survives: a power cut, or a crash of the server",
        ),
    )
    keep_age: float = attrs.field(
        default=7 * 86_400.0,
        metadata=about(
            kinds.seconds(), "Retention: age at which messages are removed from the history"
        ),
    )
    keep_bytes: int = attrs.field(
        default=1 << 30,
        metadata=about(
            kinds.size(), "Retention: bytes of history above which the oldest messages are removed"
        ),
    )
    keep: tuple[Rule, ...] = attrs.field(
        default=(),
        metadata=about(
            kinds.KEEP,
            "Retention rule: newest messages of a tag to keep beyond that, by number, age, or "
            "both: room:*=100,7d",
            repeatable=True,
        ),
    )
    latest: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(
            kinds.LATEST,
            "Tags of which the newest message is indexed, for subscribers that ask for latest "
            "values: order:*",
            repeatable=True,
        ),
    )
    secret: str | None = attrs.field(
        default=None,
        repr=False,
        metadata=about(
            kinds.SECRET,
            "Secret of services; prefer --secret-file or MIST_SECRET, since other users of the "
            "machine can see a flag",
            hidden=True,
        ),
    )
    secret_file: Path | None = attrs.field(
        default=None,
        metadata=about(kinds.path(), "File that holds the secret; one line end is ignored"),
    )
    insecure: bool = attrs.field(
        default=False,
        metadata=about(
            kinds.SWITCH, "Listen beyond loopback without a secret: anyone may do anything"
        ),
    )
    tls_cert: Path | None = attrs.field(
        default=None,
        metadata=about(
            kinds.path(), "Certificate chain in PEM, for tcps://, wss://, https:// and natss://"
        ),
    )
    tls_key: Path | None = attrs.field(
        default=None, metadata=about(kinds.path(), "Private key in PEM of that certificate")
    )

    log_format: str = attrs.field(
        default="console",
        metadata=about(kinds.choice("console", "json"), "How log lines are written"),
    )
    log_level: str = attrs.field(
        default="info",
        metadata=about(kinds.choice("debug", "info", "warning", "error"), "Minimum log level"),
    )

    outbox_bytes: int = attrs.field(
        default=8 * _MIB,
        metadata=about(kinds.size(), "Bytes queued for one connection before it counts as slow"),
    )
    outbox_messages: int = attrs.field(
        default=100_000,
        metadata=about(
            kinds.count(), "Messages queued for one connection before it counts as slow"
        ),
    )
    slow_consumer: str = attrs.field(
        default="drop",
        metadata=about(
            kinds.choice("drop", "disconnect"),
            "Slow consumer policy: drop its newest messages, or disconnect it",
        ),
    )

    allow_origin: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(
            kinds.ORIGIN,
            "Origin whose pages may connect, scheme://host[:port]",
            default_text="the server names, and loopback names when bound to loopback",
            repeatable=True,
        ),
    )
    server_names: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(
            kinds.HOST,
            "Public name of this server, as browsers know it",
            name="server_name",
            repeatable=True,
        ),
    )
    allow_query_token: bool = attrs.field(
        default=False,
        metadata=about(kinds.SWITCH, "Accept tokens in ?x-auth-token=, though URLs end up in logs"),
    )
    open_metrics: bool = attrs.field(
        default=False,
        metadata=about(kinds.SWITCH, "Show /metrics to anyone, without the secret"),
    )
    token_policy: str = attrs.field(
        default="any",
        metadata=about(
            kinds.choice("any", "strict"),
            "How many tags of a subscription the token must grant: any one, or (strict) all",
        ),
    )

    presence: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(
            kinds.PRESENCE,
            "Tags whose subscribers may be asked for, by services and by tokens with @TAG",
            repeatable=True,
        ),
    )
    events: bool = attrs.field(
        default=False,
        metadata=about(
            kinds.SWITCH,
            "Publish events for services, tagged mist:connected and so on: of connections, and of "
            "tags under --presence",
        ),
    )
    telemetry: bool = attrs.field(
        default=False,
        metadata=about(
            kinds.SWITCH,
            "Export traces by OTLP, as OTEL_… environment variables say; needs the extra otel",
        ),
    )

    trusted_proxies: tuple[Network, ...] = attrs.field(
        default=(),
        metadata=about(
            kinds.NETWORK,
            "Address or network of a proxy, whose X-Forwarded-… headers count",
            name="trusted_proxy",
            repeatable=True,
        ),
    )
    max_connections: int = attrs.field(
        default=20_000, metadata=about(kinds.count(), "Connections in total")
    )
    max_connections_per_address: int = attrs.field(
        default=1_000,
        metadata=about(
            kinds.count(), "Connections from one address; none from loopback and trusted proxies"
        ),
    )
    max_unauthenticated: int = attrs.field(
        default=256, metadata=about(kinds.count(), "Connections that have not authenticated yet")
    )
    max_subscriptions: int = attrs.field(
        default=1_000_000, metadata=about(kinds.count(), "Subscriptions of a TCP connection")
    )
    max_token_subscriptions: int = attrs.field(
        default=20_000,
        metadata=about(kinds.count(), "Subscriptions of all sessions of a token, together"),
    )
    max_matches: int = attrs.field(
        default=250_000,
        metadata=about(kinds.count(), "Distinct subscribed tag sets that one message may match"),
    )
    max_tags_per_token: int = attrs.field(
        default=1_000, metadata=about(kinds.count(), "Tags a token may carry")
    )
    max_data: int = attrs.field(
        default=MAX_DATA, metadata=about(kinds.size(), "Bytes of data in a message")
    )
    max_line: int = attrs.field(
        # Follows max_data, so that raising the one needs no knowledge of the other.
        default=attrs.Factory(lambda self: self.max_data + _LINE_SLACK, takes_self=True),
        metadata=about(kinds.size(), "Bytes of a line over TCP", default_text="max_data + 64KiB"),
    )
    max_frame: int = attrs.field(
        default=128 * _KIB,
        # A control frame has up to 125 bytes (RFC 6455, 5.5).
        metadata=about(kinds.size(125), "Bytes of a WebSocket message to the server"),
    )
    max_body: int = attrs.field(
        default=3 * _MIB, metadata=about(kinds.size(), "Bytes of an HTTP request's body")
    )
    max_stage: int = attrs.field(
        default=1 << 30,
        metadata=about(kinds.size(), "Bytes staged for commits over HTTP, in total"),
    )
    max_header: int = attrs.field(
        default=16 * _KIB,
        metadata=about(kinds.size(1024), "Bytes of an HTTP request's line and headers"),
    )
    request_rate: int = attrs.field(
        default=200,
        metadata=about(
            kinds.count(),
            "HTTP requests per second from one address; none from loopback and trusted proxies",
        ),
    )
    token_rate: int = attrs.field(
        default=50, metadata=about(kinds.count(), "HTTP requests per second with one token")
    )
    max_message_tags: int = attrs.field(
        default=MAX_MESSAGE_TAGS, metadata=about(kinds.count(), "Tags of a message")
    )
    max_subscription_tags: int = attrs.field(
        default=MAX_SUBSCRIPTION_TAGS, metadata=about(kinds.count(), "Tags of a subscription")
    )
    max_token_tags: int = attrs.field(
        default=MAX_TOKEN_TAGS, metadata=about(kinds.count(), "Tags in one command about a token")
    )

    bus_backlog_size: int = attrs.field(
        default=1_000,
        metadata=about(kinds.count(), "Messages of a channel shown to MessageBus clients"),
    )
    bus_backlog_total: int = attrs.field(
        default=2_000,
        metadata=about(
            kinds.count(), "Messages of all channels together shown to MessageBus clients"
        ),
    )
    bus_backlog_age: float = attrs.field(
        default=7 * 86_400.0,
        metadata=about(
            kinds.seconds(),
            "Time without a message after which MessageBus clients see an empty channel",
        ),
    )

    handshake_seconds: float = attrs.field(
        default=10.0,
        metadata=about(kinds.seconds(), "Timeout of a handshake, and of auth over TCP"),
    )
    body_seconds: float = attrs.field(
        default=10.0, metadata=about(kinds.seconds(), "Timeout of an HTTP request's body")
    )
    auth_seconds: float = attrs.field(
        default=5.0,
        metadata=about(
            kinds.seconds(), "Auth timeout: time for a WebSocket's first frame with a token"
        ),
    )
    ping_seconds: float = attrs.field(
        default=25.0, metadata=about(kinds.seconds(), "Time between pings to a WebSocket")
    )
    idle_seconds: float = attrs.field(
        default=60.0,
        metadata=about(kinds.seconds(), "Idle timeout: silence after which a WebSocket is closed"),
    )
    drain_seconds: float = attrs.field(
        default=10.0,
        metadata=about(
            kinds.seconds(0.0), "Graceful shutdown: time for what was acknowledged to be sent"
        ),
    )

    @property
    def tokens_url(self) -> str:
        """The URL of the token registry, the default resolved: `sqlite:///mist-data/tokens.db`.

        What follows the third slash is the path, as it is: four slashes begin an absolute one.
        """
        return self.tokens or self.engine or f"sqlite:///{self.data / 'tokens.db'}"

    @property
    def shares_tokens(self) -> bool:
        """Whether other servers may have the same token registry."""
        return shares(self.tokens_url)

    @property
    def history_url(self) -> str | None:
        """The URL of the message history, the default resolved; None where there is none.

        With an engine, it is that of the mirror.
        """
        if self.history == "none":
            return None
        name = "history.db" if self.engine is None else "mirror.db"
        return self.history or f"sqlite:///{self.data / name}"

    @property
    def names(self) -> tuple[str, ...]:
        """The public names of this server: those given, and that of the public URL."""
        return self.server_names + ((self.public_url.host,) if self.public_url else ())

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins given whose pages may connect, and that of the public URL."""
        return self.allow_origin + ((self.public_url.origin,) if self.public_url else ())

    @property
    def policy(self) -> Policy:
        """The retention policy of the history."""
        return Policy(self.keep_age, self.keep_bytes, None, self.keep)

    @property
    def seal_seconds(self) -> float:
        """Age at which messages are sealed in the archive: well before retention removes them."""
        return min(600.0, self.keep_age / 4)

    @property
    def unsealed_bytes(self) -> int:
        """Bytes at which messages are sealed earlier: far less than the history holds."""
        return min(256 * _MIB, self.keep_bytes // 4)

    @property
    def limits(self) -> Limits:
        """Limits of what a peer sends."""
        return Limits(
            data=self.max_data,
            line=self.max_line,
            message_tags=self.max_message_tags,
            subscription_tags=self.max_subscription_tags,
            token_tags=self.max_token_tags,
            frame=self.max_frame,
            matches=self.max_matches,
        )

    @property
    def exposed(self) -> tuple[Listen, ...]:
        """The listeners that other machines can reach."""
        return tuple(listen for listen in self.listen if not listen.is_local)
