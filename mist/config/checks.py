"""Validation of settings against each other: conflicts, and warnings for the operator.

A value that is wrong by itself never gets here: its kind has refused it. These rules look at
all settings together.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from mist.config import kinds
from mist.config.addresses import Listen
from mist.config.places import has_replicas, is_network, place_of
from mist.config.settings import Settings
from mist.errors import ConfigError

__all__ = ["ConflictError", "find_conflicts", "find_warnings", "read_secret"]

_SECRET_FILE_READ: Final = 4096  # bytes; longer than any secret; a bound for /dev/zero

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
# Prefix lengths of the widest networks that may be proxies alone: 10.0.0.0/8, fc00::/7.
_WIDEST: Final = {4: 8, 6: 7}


class ConflictError(ConfigError):
    """Settings that are valid each by itself and can't be used together.

    Attributes:
        fields: the settings concerned, first the one to change.
        problem: what is wrong, without naming a source.
    """

    def __init__(self, fields: tuple[str, ...], problem: str) -> None:
        super().__init__(f"{' and '.join(fields)}: {problem}")
        self.fields = fields
        self.problem = problem


def read_secret(settings: Settings) -> bytes | None:
    """The effective secret, None where there is none. Reads the file once: it may be a pipe.

    Raises:
        ConflictError: the file can't be read, or what it holds can't be a secret.
    """
    if settings.secret is not None:
        return _check_secret("secret", "", settings.secret.encode("utf-8", "surrogatepass"))
    if settings.secret_file is None:
        return None
    name = f"{str(settings.secret_file)!r}: "
    try:
        with settings.secret_file.open("rb") as file:
            raw = file.read(_SECRET_FILE_READ)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "not a path"
        raise ConflictError(("secret_file",), f"{name}can't be read: {problem}") from error
    # One line end, as `echo` and editors leave it; more would be part of the secret.
    return _check_secret("secret_file", name, raw.removesuffix(b"\n").removesuffix(b"\r"))


def _check_secret(field: str, name: str, raw: bytes) -> bytes:
    try:
        kinds.SECRET.parse(raw.decode())
    except UnicodeDecodeError:
        # Not chained: that error holds the secret.
        raise ConflictError((field,), f"{name}the secret is not UTF-8") from None
    except ValueError as error:
        text = f"{name}the secret can't be used, {error}; expected {kinds.SECRET.expected}"
        raise ConflictError((field,), text) from None
    return raw


def find_conflicts(settings: Settings, *, has_secret: bool) -> Iterator[ConflictError]:
    """Settings that contradict each other, the worst first; usually none."""
    if settings.secret is not None and settings.secret_file is not None:
        yield ConflictError(("secret", "secret_file"), "both give the secret; give one of them")
    yield from _listen_conflicts(settings, has_secret=has_secret)
    yield from _tls_conflicts(settings)
    if settings.archive is not None and settings.history_url is None:
        yield ConflictError(("archive", "history"), "an archive is made of the history: keep one")
    if settings.latest and settings.history_url is None:
        yield ConflictError(("latest", "history"), "latest values are of the history: keep one")
    if settings.engine is not None and settings.history_url is None:
        yield ConflictError(("engine", "history"), "a node needs a history, to mirror the engine's")
    if settings.engine_replicas and not has_replicas(settings.engine or settings.tokens_url):
        yield ConflictError(("engine_replicas",), _no_replicas(settings.engine))
    yield from _token_conflicts(settings)
    yield from _credential_conflicts(settings)
    if settings.max_line <= settings.max_data:
        problem = f"max_line {settings.max_line} must be more than max_data {settings.max_data}"
        yield ConflictError(("max_line", "max_data"), problem)
    if settings.idle_seconds <= settings.ping_seconds:
        # A peer that only receives sends nothing but answers to pings.
        problem = (
            f"idle_seconds {settings.idle_seconds:g} must be more than "
            f"ping_seconds {settings.ping_seconds:g}"
        )
        yield ConflictError(("idle_seconds", "ping_seconds"), problem)


def _no_replicas(engine: str | None) -> str:
    if engine is not None and is_network(engine):
        return "PostgreSQL waits for replicas by itself: set its synchronous_standby_names"
    return "there is no Redis whose replicas could be waited for; give --engine redis://HOST"


def _listen_conflicts(settings: Settings, *, has_secret: bool) -> Iterator[ConflictError]:
    if not settings.listen:
        yield ConflictError(("listen",), "expected at least one listener")
    seen: dict[tuple[str, int, str], Listen] = {}
    for listen in settings.listen:
        # The address without the scheme: two protocols can't share a port either.
        address = (listen.host, listen.port, listen.path)
        if address in seen and (listen.port or listen.is_unix):
            problem = f"{seen[address]} and {listen} are the same address"
            yield ConflictError(("listen",), problem)
        seen[address] = listen
    public = settings.public_url
    if public is not None and not (public.is_local or has_secret or settings.insecure):
        yield ConflictError(
            ("public_url",),
            f"{public} can be reached by others and there is no secret: give --secret-file or "
            "MIST_SECRET, or accept that whom a proxy does not report may publish and register "
            "tokens with --insecure",
        )
    if settings.exposed and not has_secret and not settings.insecure:
        yield ConflictError(
            ("listen",),
            f"{settings.exposed[0]} can be reached from other machines and there is no secret: "
            "listen on loopback, or give --secret-file or MIST_SECRET, or accept that anyone "
            "may publish and register tokens with --insecure",
        )


def _token_conflicts(settings: Settings) -> Iterator[ConflictError]:
    engine, tokens, key = settings.engine, settings.tokens_url, settings.token_key_file
    # Without a network, nodes are in one process, such as that of a test.
    if engine is not None and is_network(engine) and place_of(engine) != place_of(tokens):
        problem = "nodes keep their tokens with their log: leave tokens out, or name the same realm"
        yield ConflictError(("tokens", "engine"), problem)
    if is_network(tokens) and key is None:
        problem = (
            "servers that share their tokens need the same key: give --token-key-file FILE; "
            "mist token key FILE makes one"
        )
        yield ConflictError(("engine" if settings.tokens is None else "tokens",), problem)
    if key is not None and not settings.shares_tokens:
        problem = "only a token registry that servers share has a key file of its own"
        yield ConflictError(("token_key_file", "tokens"), problem)


def _credential_conflicts(settings: Settings) -> Iterator[ConflictError]:
    for name in ("jwt_issuer", "jwt_audience"):
        if getattr(settings, name) and not settings.accepts_jwts:
            problem = "no JWT is accepted: give --jwt-jwks or --jwt-secret-file"
            yield ConflictError((name, "jwt_jwks"), problem)
    asked = settings.auth_url or settings.auth_url_subscribe
    if settings.auth_url_secret_file is not None and asked is None:
        problem = "nothing is asked: give --auth-url"
        yield ConflictError(("auth_url_secret_file", "auth_url"), problem)


def _tls_conflicts(settings: Settings) -> Iterator[ConflictError]:
    secure = [listen for listen in settings.listen if listen.tls]
    has_cert, has_key = settings.tls_cert is not None, settings.tls_key is not None
    if has_cert != has_key:
        yield ConflictError(("tls_cert", "tls_key"), "tls_cert and tls_key are given together")
    if secure and not has_cert:
        yield ConflictError(("listen",), f"{secure[0]} needs --tls-cert and --tls-key")
    if has_cert and not secure:
        # Not a warning: an operator who gives a certificate expects encryption.
        problem = (
            "no listener uses TLS; listen on tcps://, wss://, https:// or natss://, "
            "or leave them out"
        )
        yield ConflictError(("tls_cert", "tls_key"), problem)


def _is_open(url: str) -> bool:
    """Whether what goes to and from a URL can be read and changed on the way."""
    return url.startswith("http://") and urlsplit(url).hostname not in _LOOPBACK


def find_warnings(settings: Settings, *, has_secret: bool) -> Iterator[str]:
    """Settings that work and may not be intended, a line each."""
    if settings.exposed and not has_secret:
        yield f"anyone who reaches {settings.exposed[0]} may publish and register tokens (insecure)"
    for network in settings.trusted_proxies:
        if network.prefixlen < _WIDEST[network.version]:
            yield (
                f"trusted_proxy {network} holds clients as well: each may say which address it "
                "has, and none is limited by it"
            )
    if settings.jwt_jwks and not settings.jwt_audience:
        yield "JWTs that their issuer made for other services are accepted: give --jwt-audience"
    if settings.auth_url is not None and _is_open(settings.auth_url):
        yield "auth_url is http://: credentials can be read on the way"
    for url in settings.jwt_jwks:
        if _is_open(url):
            yield "keys of JWTs come over http://: who is on the way may replace them"
    if settings.outbox_bytes < settings.max_data:
        yield (
            f"outbox_bytes {settings.outbox_bytes} is less than max_data {settings.max_data}: "
            "messages that large are published but never delivered"
        )
