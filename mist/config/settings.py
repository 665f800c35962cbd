"""Config: every setting of a server, with its default, its help text and its demands.

A field's metadata is the one place an option is described. `OPTIONS` is read off the fields,
and flags, variables, keys of the file and help texts off `OPTIONS`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from mist.config import kinds
from mist.config.addresses import Listen
from mist.config.checks import find_clashes, find_doubts, read_secret
from mist.config.kinds import Network, without_password
from mist.config.options import Option, about, option_of
from mist.history.retention import Policy, Rule
from mist.message import (
    MAX_DATA,
    MAX_MESSAGE_TAGS,
    MAX_SUBSCRIPTION_TAGS,
    MAX_TOKEN_TAGS,
    Limits,
)

__all__ = ["CONFIG_FILE", "OPTIONS", "Config"]

_KIB: Final = 1 << 10  # bytes
_MIB: Final = 1 << 20  # bytes
_LINE_SLACK: Final = 64 * _KIB  # bytes of a line beside its data: a command and 64 long tags


@attrs.frozen(kw_only=True)
class Config:
    """What a server is to do. `Config()` is a server for this machine alone.

    Meaning and unit of each field are its help text. Fields are of their final types here;
    text becomes values in `load_config`. What fields demand of each other is checked here.

    Attributes:
        secret_bytes: the effective secret, from `secret` or read from `secret_file` when the
            Config is made; None where there is none. Not an option.
        source_warnings: what `load_config` noticed about where values came from.

    Raises:
        ConfigError: settings that contradict each other, or a secret that can't be read.
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
        metadata=about(kinds.path("DIR"), "Folder for all that must last"),
    )
    tokens: str | None = attrs.field(
        default=None,
        repr=lambda url: repr(url and without_password(url)),
        metadata=about(
            kinds.URL,
            "Token registry: sqlite:///FILE, or memory:// to forget it at the end",
            default_text="tokens.db in the data folder",
        ),
    )
    history: str | None = attrs.field(
        default=None,
        repr=lambda url: repr(url and without_password(url)),
        metadata=about(
            kinds.HISTORY,
            "Message history: sqlite:///FILE, memory:// to forget it at the end, or none",
            default_text="history.db in the data folder",
        ),
    )
    archive: Path | None = attrs.field(
        default=None,
        metadata=about(
            kinds.path("DIR"), "Folder for the archive that Spark reads; needs the extra archive"
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
        metadata=about(kinds.seconds(), "Age at which messages leave the history"),
    )
    keep_bytes: int = attrs.field(
        default=1 << 30,
        metadata=about(kinds.size(), "Bytes of history, above which the oldest messages leave"),
    )
    keep: tuple[Rule, ...] = attrs.field(
        default=(),
        metadata=about(
            kinds.KEEP,
            "Newest messages of a tag to keep beyond that, by number, age, or both: room:*=100,7d",
            repeatable=True,
        ),
    )
    secret: str | None = attrs.field(
        default=None,
        repr=False,
        metadata=about(
            kinds.SECRET,
            "What a TCP client must know; prefer --secret-file or MIST_SECRET, since other "
            "users of the machine can see a flag",
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
        metadata=about(
            kinds.choice("debug", "info", "warning", "error"), "The least that is logged"
        ),
    )

    outbox_bytes: int = attrs.field(
        default=8 * _MIB,
        metadata=about(kinds.size(), "Bytes queued for one connection before it counts as slow"),
    )
    outbox_messages: int = attrs.field(
        default=100_000,
        metadata=about(kinds.count(), "Messages queued for one connection, likewise"),
    )
    slow_consumer: str = attrs.field(
        default="drop",
        metadata=about(
            kinds.choice("drop", "disconnect"),
            "What a full queue does: drop the newest message, or end the connection",
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

    trusted_proxies: tuple[Network, ...] = attrs.field(
        default=(),
        metadata=about(
            kinds.NETWORK,
            "Address or network of a proxy, to which the limit for an address doesn't apply",
            name="trusted_proxy",
            repeatable=True,
        ),
    )
    max_connections: int = attrs.field(
        default=20_000, metadata=about(kinds.count(), "Connections in all")
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
        default=1_000, metadata=about(kinds.count(), "Subscriptions of a token's session")
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
        metadata=about(kinds.size(), "Bytes staged for commits over HTTP, all together"),
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
        metadata=about(kinds.count(), "Messages of all channels together, likewise"),
    )
    bus_backlog_age: float = attrs.field(
        default=7 * 86_400.0,
        metadata=about(
            kinds.seconds(), "Silence of a channel, after which nothing of it is shown, likewise"
        ),
    )

    handshake_seconds: float = attrs.field(
        default=10.0,
        metadata=about(kinds.seconds(), "Time for a handshake, and for auth over TCP"),
    )
    body_seconds: float = attrs.field(
        default=10.0, metadata=about(kinds.seconds(), "Time for an HTTP request's body")
    )
    auth_seconds: float = attrs.field(
        default=5.0,
        metadata=about(kinds.seconds(), "Time for a WebSocket's first frame to bring a token"),
    )
    ping_seconds: float = attrs.field(
        default=25.0, metadata=about(kinds.seconds(), "Time between pings to a WebSocket")
    )
    idle_seconds: float = attrs.field(
        default=60.0,
        metadata=about(kinds.seconds(), "Silence after which a WebSocket is closed"),
    )
    drain_seconds: float = attrs.field(
        default=10.0,
        metadata=about(kinds.seconds(0.0), "Time for queued messages to leave when stopping"),
    )

    secret_bytes: bytes | None = attrs.field(
        init=False, repr=False, default=attrs.Factory(read_secret, takes_self=True)
    )
    source_warnings: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        for clash in find_clashes(self):
            raise clash

    @property
    def tokens_url(self) -> str:
        """Where the token registry is, the default made out: `sqlite:///mist-data/tokens.db`.

        What follows the third slash is the path, as it is: four slashes begin an absolute one.
        """
        return self.tokens or f"sqlite:///{self.data / 'tokens.db'}"

    @property
    def history_url(self) -> str | None:
        """Where messages are kept, the default made out; None where none are."""
        if self.history == "none":
            return None
        return self.history or f"sqlite:///{self.data / 'history.db'}"

    @property
    def policy(self) -> Policy:
        """How long messages stay in the history."""
        return Policy(self.keep_age, self.keep_bytes, None, self.keep)

    @property
    def seal_seconds(self) -> float:
        """How long messages wait for the archive: well before they leave the history."""
        return min(600.0, self.keep_age / 4)

    @property
    def unsealed_bytes(self) -> int:
        """How much of it waits for the archive: far less than the history holds."""
        return min(256 * _MIB, self.keep_bytes // 4)

    @property
    def limits(self) -> Limits:
        """How large what a peer sends may be."""
        return Limits(
            data=self.max_data,
            line=self.max_line,
            message_tags=self.max_message_tags,
            subscription_tags=self.max_subscription_tags,
            token_tags=self.max_token_tags,
            frame=self.max_frame,
        )

    @property
    def exposed(self) -> tuple[Listen, ...]:
        """The listeners that other machines can reach."""
        return tuple(listen for listen in self.listen if not listen.is_local)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know at the start, a line each. Holds no secret."""
        return (*self.source_warnings, *find_doubts(self))


def _options() -> Iterator[Option]:
    defaults = Config()
    for field in attrs.fields(Config):
        if field.metadata:
            yield option_of(field, getattr(defaults, field.name))


CONFIG_FILE: Final = Option(
    "config", "", kinds.path(), "TOML file with any of these options as keys"
)
"""The one option that is no setting: where settings are. Not allowed in the file itself."""

OPTIONS: Final[tuple[Option, ...]] = (*_options(), CONFIG_FILE)
"""Every option of `mist serve`, in the order that a help text should have."""
