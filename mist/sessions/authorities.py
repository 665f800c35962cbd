"""Opening what tells which credentials are good, as a server is configured."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from mist.auth.credentials import Authority, Credentials
from mist.auth.issued import IssuedRecord
from mist.auth.jwt import LEEWAY
from mist.auth.secret_file import read_secret_file
from mist.config import Config
from mist.errors import StartupError
from mist.history.leaps import steady_seconds
from mist.sessions.hub import Hub

_MAX_TTL: Final = 86_400.0  # seconds; of `mist.auth.callout.questions`, which needs an extra

if TYPE_CHECKING:
    from mist.sessions.subscription_callout import SubscriptionCallout  # needs httpx, an extra

__all__ = ["open_credentials", "open_subscription_callout"]


async def open_credentials(config: Config, hub: Hub) -> Credentials:
    """The credentials that a server accepts. `Credentials.run` has to be running for logins.

    Raises:
        StartupError: one line that says why not: a file can't be read, an extra is missing.
    """
    jwt = await _open_jwt(config, hub) if config.accepts_jwts else None
    hub.registry.keep_revocations(max(config.jwt_max_age, _MAX_TTL) + 2 * LEEWAY)
    callout = await _open_callout(config.auth_url, config, hub) if config.auth_url else None
    return Credentials(hub.registry, jwt, callout)


@contextmanager
def _extra(what: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:  # joserfc, httpx, httpcore
        raise StartupError(
            f"{what}: {error.name} is missing; pip install 'mist-pubsub[jwt]'"
        ) from error


async def _open_jwt(config: Config, hub: Hub) -> Authority:
    with _extra("JWTs"):
        from mist.auth.jwt.claims import Expectations
        from mist.auth.jwt.key_set import KeySet, Source
        from mist.auth.jwt.keys import secret_key
        from mist.auth.jwt.verifier import Verifier
        from mist.auth.web import Web
    secret = await _secret(config.jwt_secret_file, "JWTs")
    web = Web(max(4, len(config.jwt_jwks)))  # none waits for another that hangs
    sources = [Source(place if "://" in place else Path(place), web) for place in config.jwt_jwks]
    for source in sources:
        await source.open()
    expected = Expectations(
        frozenset(config.jwt_issuer),
        frozenset(config.jwt_audience),
        config.jwt_claim,
        config.jwt_max_age,
        config.max_tags_per_token,
    )
    keys = KeySet(sources, [] if secret is None else [secret_key(secret)])
    return Verifier(keys, web, hub.registry, expected, hub.now)


async def _open_callout(url: str, config: Config, hub: Hub) -> Authority:
    with _extra("--auth-url"):
        from mist.auth.callout.backend import Backend
        from mist.auth.callout.logins import LoginCallout
        from mist.auth.callout.questions import Questions
    secret = await _secret(config.auth_url_secret_file, "--auth-url")
    questions = Questions(Backend(url, hub.turns, hub.tracing), secret, hub.now)
    return LoginCallout(
        questions,
        hub.registry,
        config.max_tags_per_token,
        hub.now,
        steady=steady_seconds,
        in_use=partial(_in_use, hub),
        replace=partial(_replace, hub),
    )


async def open_subscription_callout(config: Config, hub: Hub) -> "SubscriptionCallout | None":
    """Who is asked about subscriptions; None for nobody. Its `run` has to be running.

    Raises:
        StartupError: as `open_credentials`.
    """
    if config.auth_url_subscribe is None:
        return None
    with _extra("--auth-url-subscribe"):
        from mist.auth.callout.backend import Backend
        from mist.auth.callout.questions import Questions
        from mist.sessions.subscription_callout import SubscriptionCallout
    secret = await _secret(config.auth_url_secret_file, "--auth-url")
    backend = Backend(config.auth_url_subscribe, hub.turns, hub.tracing)
    questions = Questions(backend, secret, hub.now)
    flush = hub.flush_scheduler.flush
    return SubscriptionCallout(questions, hub.registry.derive, flush, steady_seconds)


async def _secret(path: Path | None, what: str) -> bytes | None:
    if path is None:
        return None
    return await trio.to_thread.run_sync(read_secret_file, path, what)


def _in_use(hub: Hub, record: IssuedRecord) -> bool:
    """Whether any session has this very record."""
    return any(session.record is record for session in hub.sessions.of_token(record.id))


def _replace(hub: Hub, old: IssuedRecord, new: IssuedRecord | None) -> None:
    """Give sessions another record, or end them, where it is None or another user's."""
    record = None if new is None or new.id != old.id else new
    sessions = hub.sessions.of_token(old.id)
    hub.token_changes.give(old.id, sessions, lambda session: session.record is old, lambda: record)
