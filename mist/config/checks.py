"""What settings demand of each other, and what a person should know at the start.

A value that is wrong by itself never gets here: its kind refused it. These rules look at a
whole Config, whoever made it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mist.config import kinds
from mist.config.addresses import Listen
from mist.errors import ConfigError

if TYPE_CHECKING:
    from mist.config.settings import Config

__all__ = ["ClashError", "find_clashes", "find_doubts", "read_secret"]

_SECRET_FILE_READ: Final = 4096  # bytes; more than a secret has, and /dev/zero has an end


class ClashError(ConfigError):
    """Settings that are fine each by itself and can't be used together.

    Attributes:
        fields: the fields of Config concerned, the one to change first.
        problem: what is wrong, in words that stand without naming a source.
    """

    def __init__(self, fields: tuple[str, ...], problem: str) -> None:
        super().__init__(f"{' and '.join(fields)}: {problem}")
        self.fields = fields
        self.problem = problem


def read_secret(config: "Config") -> bytes | None:
    """The effective secret, None where there is none. Reads the file once: it may be a pipe.

    Raises:
        ClashError: the file can't be read, or what it holds can't be a secret.
    """
    if config.secret is not None:
        return _check_secret("secret", "", config.secret.encode("utf-8", "surrogatepass"))
    if config.secret_file is None:
        return None
    name = f"{str(config.secret_file)!r}: "
    try:
        with config.secret_file.open("rb") as file:
            raw = file.read(_SECRET_FILE_READ)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "not a path"
        raise ClashError(("secret_file",), f"{name}can't be read: {problem}") from error
    # One line end, as `echo` and editors leave it; more would be part of the secret.
    return _check_secret("secret_file", name, raw.removesuffix(b"\n").removesuffix(b"\r"))


def _check_secret(field: str, name: str, raw: bytes) -> bytes:
    try:
        kinds.SECRET.parse(raw.decode())
    except UnicodeDecodeError:
        # Not chained: that error holds the secret.
        raise ClashError((field,), f"{name}the secret is not UTF-8") from None
    except ValueError as error:
        text = f"{name}the secret can't be used, {error}; expected {kinds.SECRET.expected}"
        raise ClashError((field,), text) from None
    return raw


def find_clashes(config: "Config") -> Iterator[ClashError]:
    """What can't stand together, the worst first; usually nothing."""
    if config.secret is not None and config.secret_file is not None:
        yield ClashError(("secret", "secret_file"), "both give the secret; give one of them")
    yield from _listen_clashes(config)
    yield from _tls_clashes(config)
    if config.archive is not None and config.history_url is None:
        yield ClashError(("archive", "history"), "an archive is made of the history: keep one")
    if config.max_line <= config.max_data:
        problem = f"max_line {config.max_line} must be more than max_data {config.max_data}"
        yield ClashError(("max_line", "max_data"), problem)
    if config.idle_seconds <= config.ping_seconds:
        # A peer that only listens is heard from when it answers a ping.
        problem = (
            f"idle_seconds {config.idle_seconds:g} must be more than "
            f"ping_seconds {config.ping_seconds:g}"
        )
        yield ClashError(("idle_seconds", "ping_seconds"), problem)


def _listen_clashes(config: "Config") -> Iterator[ClashError]:
    if not config.listen:
        yield ClashError(("listen",), "expected at least one listener")
    seen: dict[tuple[str, int, str], Listen] = {}
    for listen in config.listen:
        # The address without the scheme: two protocols can't share a port either.
        address = (listen.host, listen.port, listen.path)
        if address in seen and (listen.port or listen.is_unix):
            problem = f"{seen[address]} and {listen} are the same address"
            yield ClashError(("listen",), problem)
        seen[address] = listen
    if config.exposed and config.secret_bytes is None and not config.insecure:
        yield ClashError(
            ("listen",),
            f"{config.exposed[0]} can be reached from other machines and there is no secret: "
            "listen on loopback, or give --secret-file or MIST_SECRET, or accept that anyone "
            "may publish and register tokens with --insecure",
        )


def _tls_clashes(config: "Config") -> Iterator[ClashError]:
    secure = [listen for listen in config.listen if listen.tls]
    has_cert, has_key = config.tls_cert is not None, config.tls_key is not None
    if has_cert != has_key:
        yield ClashError(("tls_cert", "tls_key"), "tls_cert and tls_key are given together")
    if secure and not has_cert:
        yield ClashError(("listen",), f"{secure[0]} needs --tls-cert and --tls-key")
    if has_cert and not secure:
        # Not a warning: whoever gave a certificate believes that the traffic is encrypted.
        problem = (
            "no listener uses TLS; listen on tcps://, wss://, https:// or natss://, "
            "or leave them out"
        )
        yield ClashError(("tls_cert", "tls_key"), problem)


def find_doubts(config: "Config") -> Iterator[str]:
    """What can stand and may not be meant, a line each."""
    if config.exposed and config.secret_bytes is None:
        yield f"anyone who reaches {config.exposed[0]} may publish and register tokens (insecure)"
    if config.outbox_bytes < config.max_data:
        yield (
            f"outbox_bytes {config.outbox_bytes} is less than max_data {config.max_data}: "
            "messages that large are published but never delivered"
        )
