"""Checks of what a server opens: its history, its tokens, the engine, the keys of JWTs.

Each is opened as a server would, but for files, which are only read: so the answer is a server's
own. What a running server has locked is in order.
"""

import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import trio

from mist.auth.sqlite import REGISTRY, check_key
from mist.cli.config.findings import Finding, bad, good, warn
from mist.config import Config
from mist.config.places import is_network
from mist.engine.opening import open_engine
from mist.engine.tokens import open_tokens
from mist.errors import MistError, StartupError
from mist.history import Durability
from mist.history.opening import open_history

__all__ = ["store_findings"]

_TIMEOUT: Final = 10.0  # seconds for each that is asked over a network
_SLOW: Final = 0.5  # seconds to open one; what is stored waits for it
_AHEAD: Final = 60.0  # seconds that the newest message may be ahead of the clock


async def store_findings(config: Config, *, running: bool) -> AsyncIterator[Finding]:
    """All of them, one by one.

    Args:
        running: whether a server has the data directory.
    """
    if config.engine is not None:
        yield await _engine(config, config.engine)
    async for finding in _history(config):
        yield finding
    yield await _tokens(config, running=running)
    if config.archive is not None:
        yield _archive()
    if config.accepts_jwts:
        async for finding in _keys(config):
            yield finding


async def _engine(config: Config, url: str) -> Finding:
    check, began = "engine", trio.current_time()
    try:
        with trio.fail_after(_TIMEOUT):
            durability = Durability(config.durability)
            async with await open_engine(
                url, durability=durability, replicas=config.engine_replicas
            ) as engine:
                standing = await engine.standing()
    except trio.TooSlowError:
        return bad(check, f"it has not answered in {_TIMEOUT:g} s")
    except MistError as error:
        return bad(check, str(error).removeprefix("engine: "))
    seconds = trio.current_time() - began
    text = f"reachable and fit, opened in {seconds * 1e3:.0f} ms; newest id {standing.newest}"
    return warn(check, f"{text}: slow") if seconds > _SLOW else good(check, text)


async def _history(config: Config) -> AsyncIterator[Finding]:
    check, url = "history", config.history_url
    if url is None or url.startswith("memory:"):
        yield good(check, "none is kept" if url is None else "kept in memory: lost at the end")
        return
    path = _file_of(url)
    if path is not None and not path.exists():
        yield good(check, f"{path} will be made")
        return
    try:
        async with await open_history(url, read_only=True) as log:
            found = await log.statistics()
    except MistError as error:
        yield bad(check, str(error).removeprefix("history: "))
        return
    yield good(check, f"{path}: {found.messages:,} messages, epoch {found.position.epoch}")
    if found.newest is not None and found.newest > time.time() + _AHEAD:
        ahead = found.newest - time.time()
        yield warn("clock", f"it is {ahead:.0f} s behind the newest message of the history")


async def _tokens(config: Config, *, running: bool) -> Finding:
    check, url = "tokens", config.tokens_url
    path = _file_of(url)
    if path is None and not is_network(url):
        return good(check, "kept in memory: lost at the end")
    if path is not None:
        if not path.exists():
            return good(check, f"{path} will be made")
        return await trio.to_thread.run_sync(_token_file, path, running)
    try:
        with trio.fail_after(_TIMEOUT):
            registry = await open_tokens(
                url,
                key_file=config.token_key_file,
                durability=Durability(config.durability),
                replicas=config.engine_replicas,
            )
            await registry.aclose()
    except trio.TooSlowError:
        return bad(check, f"their store has not answered in {_TIMEOUT:g} s")
    except StartupError as error:
        return bad(check, str(error).removeprefix("token registry: "))
    return good(check, "their store is reachable and fit")


def _token_file(path: Path, running: bool) -> Finding:
    check = "tokens"
    if running:
        return good(check, f"{path} is in use by a running server")
    try:
        with REGISTRY.startup_errors(path):
            connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1.0)
            try:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                (application,) = connection.execute("PRAGMA application_id").fetchone()
                (count,) = connection.execute("SELECT count(*) FROM token").fetchone()
                if application == REGISTRY.application_id and version <= REGISTRY.version:
                    check_key(connection, path)
            finally:
                connection.close()
    except StartupError as error:
        return bad(check, str(error).removeprefix("token registry "))
    if application != REGISTRY.application_id:
        return bad(check, f"{path}: a database of another program")
    if version > REGISTRY.version:
        return bad(check, f"{path}: of a newer mist")
    later = "" if version == REGISTRY.version else "; of an older mist, and will be upgraded"
    return good(check, f"{path}: {count:,} tokens{later}")


def _file_of(url: str) -> Path | None:
    scheme, _, location = url.partition("://")
    return Path(location.removeprefix("/")).absolute() if scheme == "sqlite" else None


def _archive() -> Finding:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return bad("archive", "pyarrow is missing; pip install 'mist-pubsub[archive]'")
    return good("archive", "pyarrow is installed")


async def _keys(config: Config) -> AsyncIterator[Finding]:
    check = "JWKS"
    try:
        from mist.auth.jwt.key_set import Source
        from mist.auth.web import Web
    except ImportError as error:
        yield bad(check, f"{error.name} is missing; pip install 'mist-pubsub[jwt]'")
        return
    async with Web(most=1) as web:
        for place in config.jwt_jwks:
            source = Source(place if "://" in place else Path(place), web)
            if await source.fetch() is None:
                # A server starts without one of a URL, and goes on asking.
                problem = warn if isinstance(source.location, str) else bad
                yield problem(check, f"{source.name} can't be used")
            else:
                yield good(check, f"{source.name}: {len(source.keys)} keys")
