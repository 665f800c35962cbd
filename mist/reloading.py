"""Reload: a running server takes its settings again, without a restart and without losing anyone.

SIGHUP and `mist reload` read flags, environment, the file of `--config`, the secret's file and the
certificate's anew. All of it is checked before anything changes: a setting that can't be used
changes nothing, and says why. What is in `RELOADED` holds from then on, for connections and
requests that come then; those that are there stay, also where their secret is another by now. What
else has changed is named, and needs a restart.

A certificate is also taken where its files change (`watch_certificate`), as certbot and Kubernetes
change them; looked at every few seconds, since no dependency tells of it on all systems.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from mist import logs
from mist.certificate import Certificate, digest_of
from mist.config import CONFIG_FILE, OPTIONS, Config
from mist.errors import ConfigError, StartupError
from mist.server import Server

__all__ = ["RELOADED", "Reloaded", "Reloader", "changes", "settle", "watch_certificate"]

log = logging.getLogger("mist.server")

RELOADED: Final = frozenset(
    {
        *("secret", "secret_file", "tls_cert", "tls_key"),
        *("allow_origin", "server_names", "trusted_proxies"),
        *("log_level", "log_format"),
        *("max_connections", "max_connections_per_address", "max_unauthenticated"),
        *("max_subscriptions", "max_token_subscriptions", "max_tags_per_token"),
        *("max_data", "max_line", "max_frame", "max_body", "body_seconds"),
        *("max_subscription_tags", "max_token_tags"),
        *("request_rate", "token_rate"),
        *("outbox_bytes", "outbox_messages", "slow_consumer"),
        *("keep", "keep_age", "keep_bytes"),
    }
)
"""Fields of Settings that take effect without a restart."""

_OF_SEALING: Final = frozenset({"keep", "keep_age", "keep_bytes"})
"""Those of them that an archive is sealed by: with one, they need a restart."""

_READ_SECONDS: Final = 10.0  # a secret may be in a pipe, which nobody writes to again
_WATCH_SECONDS: Final = 5.0


@attrs.frozen
class Reloaded:
    """What came of a reload.

    Attributes:
        changed: options that hold from now on, by their names.
        needs_restart: options that were changed and don't.
    """

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


class Reloader:
    """Reloads a server's settings; one reload at a time.

    Args:
        read: gives the settings as they are now, or raises ConfigError. Blocks.
    """

    def __init__(self, server: Server, read: Callable[[], Config]) -> None:
        self._server = server
        self._read = read
        self._lock = trio.Lock()

    async def reload(self) -> Reloaded:
        """Take the settings again, and log what came of it.

        Raises:
            StartupError: one line that says what can't be used; nothing was changed.
        """
        async with self._lock:
            try:
                reloaded = await self._reload()
            except StartupError as error:
                log.error("settings are not reloaded", extra={"reason": str(error)})  # noqa: TRY400
                raise
        log.info("settings are reloaded", extra={"changed": list(reloaded.changed)})
        if reloaded.needs_restart:
            log.warning(
                "settings that need a restart", extra={"settings": list(reloaded.needs_restart)}
            )
        return reloaded

    async def _reload(self) -> Reloaded:
        server = self._server
        before = server.config
        read = partial(settle, self._read, before)
        with trio.move_on_after(_READ_SECONDS):
            wanted, effective = await trio.to_thread.run_sync(read, abandon_on_cancel=True)
            changed = tuple(changes(before, effective))
            needs_restart = tuple(changes(effective, wanted))
            if server.certificate is not None:
                await _renew(server.certificate, effective)
            server.configure(effective)
            if {"log_format", "log_level"} & {*changed}:
                logs.configure(effective.log_format, effective.log_level)
            for warning in effective.warnings if changed else ():
                log.warning(warning)
            return Reloaded(changed, needs_restart)
        raise ConfigError(f"the settings could not be read within {_READ_SECONDS:g} seconds")


def settle(read: Callable[[], Config], before: Config) -> tuple[Config, Config]:
    """The settings as they are wanted now, and as they then are without a restart.

    The latter are checked as a whole, too: the secret may go only together with a listener that
    stays, for one.
    """
    wanted = read()
    names = RELOADED if before.archive is None else RELOADED - _OF_SEALING
    return wanted, attrs.evolve(before, **{name: getattr(wanted, name) for name in names})


def changes(before: Config, after: Config) -> list[str]:
    """Options with another value, by their names."""
    fields = {
        option.field
        for option in OPTIONS
        if option is not CONFIG_FILE
        and getattr(before, option.field) != getattr(after, option.field)
    }
    if before.secret_bytes != after.secret_bytes and not fields & {"secret", "secret_file"}:
        fields.add("secret_file")  # the same file, with another secret in it
    return [option.name for option in OPTIONS if option.field in fields]


async def _renew(certificate: Certificate, config: Config) -> None:
    load = partial(Certificate.load, *_files(config))
    certificate.replace(await trio.to_thread.run_sync(load))


def _files(config: Config) -> tuple[Path, Path]:
    assert config.tls_cert is not None
    assert config.tls_key is not None
    return config.tls_cert, config.tls_key


async def watch_certificate(server: Server, interval: float = _WATCH_SECONDS) -> None:
    """Take the certificate where its files have changed, until cancelled.

    Two files are seldom replaced in one moment: what doesn't fit together is logged, and looked at
    again when it changes again. So is, once, that it ends soon, or isn't valid.

    Args:
        interval: seconds between two looks.
    """
    certificate = server.certificate
    if certificate is None:
        return
    failed: bytes | None = None
    told: str | None = None
    while True:
        config = server.config
        found = await trio.to_thread.run_sync(digest_of, *_files(config))
        if found not in (certificate.digest, failed):
            try:
                await _renew(certificate, config)
            except StartupError as error:
                failed = found
                log.error("the certificate is not renewed", extra={"reason": str(error)})  # noqa: TRY400
            else:
                log.info("the certificate is renewed", extra={"file": str(config.tls_cert)})
        before, told = told, certificate.trouble(time.time())
        if told is not None and told != before:
            log.warning("the certificate has to be renewed", extra={"reason": told})
        await trio.sleep(interval)
