"""The keys of all issuers: fetched when the server starts, cached, and fetched again.

A token whose `kid` is not known makes all sets be fetched again, once for all who wait, and never
more often than every 30 s: issuers change their keys without notice, and anybody can make up a
`kid`. Beside that they are fetched every ten minutes, so that a key that an issuer has withdrawn is
forgotten. A set that can't be fetched, takes too long or is too large changes nothing: its last
keys go on. One line of the log says so, and one that it is there again.

Each set has its own task and its own times. One that has never been there is retried with a backoff
of 1 to 10 s. Refused: one schedule for all sets, by which an issuer that never answers has the
others asked at its pace, and their keys waited for as long as it is.
"""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from mist.auth.jwt.keys import ALGORITHMS, MAX_JWKS, Key, parse_jwks
from mist.auth.web import Web, WebError
from mist.change import Change
from mist.errors import StartupError

__all__ = ["REFRESH_INTERVAL", "KeySet", "Source"]

log = logging.getLogger("mist.auth.jwt")

REFRESH_INTERVAL: Final = 30.0  # seconds between two times that a set is fetched
_AGE: Final = 600.0  # seconds after which it is fetched in any case
_TIMEOUT: Final = 5.0  # seconds for a set
_BACKOFF: Final = (1.0, 2.0, 5.0, 10.0)  # seconds, until a set was there for the first time
_TRIES: Final = 4  # keys that a token without a `kid` is tried with


class Source:
    """One JWKS.

    Args:
        location: a URL, or a file.
        web: for URLs.

    Attributes:
        keys: the last good ones; none before the first.
        fetching: whether it is being fetched.
        wanted: notified to have it fetched now, by `KeySet.run`.
    """

    def __init__(self, location: str | Path, web: Web) -> None:
        self.location = location
        self.keys: list[Key] = []
        self.fetching = False
        self.wanted = Change()
        self._web = web
        self._began = -math.inf  # the last time that it was fetched; trio's seconds
        self._failing = False
        self._text = b""

    @property
    def name(self) -> str:
        """For logs: without a query, which might hold a key of an API, and without a password."""
        if isinstance(self.location, Path):
            return str(self.location)
        scheme, _, rest = self.location.partition("?")[0].partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"

    @property
    def refreshable(self) -> bool:
        """Whether it is long enough ago that it was fetched to do so for an unknown `kid`.

        Never true of a set in backoff, which is fetched more often than that: forged tokens have it
        fetched no sooner.
        """
        return trio.current_time() - self._began >= REFRESH_INTERVAL

    async def open(self) -> None:
        """Read a file, which has to be there when the server starts. A URL may come later.

        Raises:
            StartupError: one line that says why not.
        """
        if isinstance(self.location, Path) and await self.fetch() is None:
            raise StartupError(f"JWKS {self.name} can't be used; the log says why")

    async def fetch(self) -> bool | None:
        """Fetch it. Whether its keys are others than before; None where that failed."""
        self._began = trio.current_time()
        self.fetching = True
        try:
            return await self._fetch()
        finally:
            self.fetching = False

    async def _fetch(self) -> bool | None:
        try:
            text = await self._read()
            if text == self._text:
                changed = False
            else:
                self.keys, self._text, changed = parse_jwks(text), text, True
        except (WebError, OSError, ValueError) as error:
            if not self._failing:
                log.warning(
                    "JWKS %s can't be used, its last keys go on: %s",
                    self.name,
                    error.strerror if isinstance(error, OSError) else error,
                    extra={"keys": len(self.keys)},
                )
            self._failing = True
            return None
        if self._failing:
            log.info("JWKS %s can be used again", self.name, extra={"keys": len(self.keys)})
        self._failing = False
        return changed

    async def _read(self) -> bytes:
        if isinstance(self.location, Path):
            path = self.location
            with trio.move_on_after(_TIMEOUT):
                return await trio.to_thread.run_sync(_read_file, path, abandon_on_cancel=True)
            raise WebError("timeout", f"can't be read in {_TIMEOUT:g} s")
        status, text = await self._web.get(self.location, seconds=_TIMEOUT, most=MAX_JWKS)
        if status != 200:
            raise WebError("status", f"status {status}")
        return text


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_JWKS + 1)


class KeySet:
    """See the module.

    Args:
        sources: all sets.
        secrets: keys that are not fetched.

    Attributes:
        generation: another number whenever there are other keys.
        fetches: of sets, by outcome: `changed`, `unchanged`, `failed`.
    """

    def __init__(self, sources: Sequence[Source], secrets: Sequence[Key] = ()) -> None:
        self.generation = 0
        self.fetches: Counter[str] = Counter()
        self._sources = sources
        self._secrets = tuple(secrets)
        self._fetched = Change()  # of any set, whatever came of it

    @property
    def complete(self) -> bool:
        """Whether each set was there once."""
        return all(source.keys for source in self._sources)

    def find(self, kid: str, algorithm: str) -> list[Key]:
        """The keys that a token may be verified with; few, mostly one.

        Args:
            kid: as the token says; empty where it says none. A secret has no name.
        """
        found = [key for key in self._secrets if algorithm in key.algorithms]
        for source in self._sources:
            found += [
                key
                for key in source.keys
                if algorithm in key.algorithms and (not kid or key.kid == kid)
            ]
        return found[:_TRIES]

    async def look_for(self, kid: str, algorithm: str) -> None:
        """Have the sets fetched if no key is known for a token, those for which it is not too soon.

        Returns as soon as there is a key, or no set is being fetched that might have it; after a
        bounded time in any case. Many calls share one fetch, which goes on where they are
        cancelled: a peer that comes and goes can't have more of them made. `run` has to be running.
        """
        if algorithm not in ALGORITHMS:
            return
        with trio.move_on_after(2 * _TIMEOUT):
            while not self.find(kid, algorithm) and self._refresh():
                await self._fetched.wait()

    def _refresh(self) -> bool:
        """Have the sets fetched that may be. Whether any is, or will be at once."""
        due = [source for source in self._sources if source.refreshable and not source.fetching]
        for source in due:
            source.wanted.notify()
        return bool(due) or any(source.fetching for source in self._sources)

    def renew(self) -> None:
        """Have all sets fetched now, by `run`; however short ago they were."""
        for source in self._sources:
            source.wanted.notify()

    async def fetch(self) -> None:
        """Fetch all sets once, at the same time."""
        async with trio.open_nursery() as nursery:
            for source in self._sources:
                nursery.start_soon(self._fetch, source)

    async def _fetch(self, source: Source) -> None:
        try:
            changed = await source.fetch()
        except Exception:  # whatever a foreign server brings about, this one goes on
            log.exception("a JWKS could not be fetched", extra={"jwks": source.name})
            changed = None
        finally:
            self._fetched.notify()
        self.fetches["failed" if changed is None else "changed" if changed else "unchanged"] += 1
        self.generation += bool(changed)

    async def run(self) -> None:
        """Fetch each set now, and again and again, until cancelled."""
        async with trio.open_nursery() as nursery:
            for source in self._sources:
                nursery.start_soon(self._keep, source)
            await trio.sleep_forever()

    async def _keep(self, source: Source) -> None:
        failures = 0
        while True:
            await self._fetch(source)
            if source.keys:
                delay = _AGE
            else:
                delay = _BACKOFF[min(failures, len(_BACKOFF) - 1)]
                failures += 1
            with trio.move_on_after(delay):
                await source.wanted.wait()
