"""Opening what tells which credentials are good, as a server is configured."""

from collections.abc import Callable
from pathlib import Path

import trio

from mist.auth.credentials import Authority, Credentials
from mist.auth.registry import Registry
from mist.config import Config
from mist.errors import StartupError

__all__ = ["open_credentials"]


async def open_credentials(
    config: Config, registry: Registry, clock: Callable[[], float]
) -> Credentials:
    """The credentials that a server accepts. `Credentials.run` has to be running for logins.

    Args:
        clock: Unix seconds, by which credentials expire.

    Raises:
        StartupError: one line that says why not: a file can't be read, an extra is missing.
    """
    jwt = await _open_jwt(config, registry, clock) if config.accepts_jwts else None
    return Credentials(registry, jwt)


async def _open_jwt(config: Config, registry: Registry, clock: Callable[[], float]) -> Authority:
    try:
        from mist.auth.jwt.claims import Expectations
        from mist.auth.jwt.key_set import KeySet, Source
        from mist.auth.jwt.keys import read_secret_key
        from mist.auth.jwt.verifier import Verifier
        from mist.auth.web import Web
    except ImportError as error:  # joserfc, httpx
        raise StartupError(
            f"JWTs: {error.name} is missing; pip install 'mist-pubsub[jwt]'"
        ) from error
    secret_file = config.jwt_secret_file
    secrets = []
    if secret_file is not None:
        secrets.append(await trio.to_thread.run_sync(read_secret_key, secret_file))
    web = Web(4, proxies=True)
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
    return Verifier(KeySet(sources, secrets), web, registry, expected, clock)
