"""Credentials: everything that a peer may present as a token, from any issuer.

    registered tokens     the registry has them
    JWTs                  a signature says that they are good; `mist.auth.jwt`
    any other text        another server is asked; `mist.auth.callout`

A login takes two steps: `prepare`, which may wait, and then `find`, which doesn't, and whose answer
is acted on without an await. `find` alone answers as long as the session or request goes on.

What has the form of a JWT is one, where JWTs are accepted; for any other text the registry comes
first. Where neither is configured there is just the registry, and nothing else is looked at.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import trio

from mist.auth.record import Record
from mist.auth.registry import Registry

__all__ = ["Authority", "Credentials", "Login"]


class Login(NamedTuple):
    """Where a credential is presented, and what for.

    Attributes:
        endpoint: the kind of listener: `ws`, `http`, `tcp`.
        address: the client's, as a trusted proxy tells it; else the peer's.
        origin: of the page, None where there is none.
        client: the client id that it chose, None where it chose none.
        tags: what it asks for together with the credential: all tags of its subscriptions, as a
            canonical tag list; empty where it says nothing of them. One text, since many are
            remembered: a list of short tags takes some twenty times as much memory.
    """

    endpoint: str = ""
    address: str = ""
    origin: str | None = None
    client: str | None = None
    tags: str = ""


class Authority(Protocol):
    """Tells which credentials of one kind are good.

    Attributes:
        counts: by kind and outcome, since the start: credentials that peers presented, and what
            was fetched or asked for them.
    """

    @property
    def counts(self) -> Mapping[str, Mapping[str, int]]: ...

    def takes(self, text: str) -> bool:
        """Whether a text has the form of such a credential."""

    async def prepare(self, text: str, login: Login) -> None:
        """Do what `find` needs that takes time. Counts the outcome.

        Raises:
            RegistryUnavailable: it can't be told now whether it is good.
        """

    def find(self, text: str, login: Login) -> Record | None:
        """What it grants; None where it isn't good.

        Raises:
            RegistryUnavailable: it can't be told now.
        """

    def explain(self, text: str, login: Login) -> str:
        """Why it isn't good, for the client. Nothing of the text."""

    def renew(self) -> None:
        """Have what it goes by fetched again, soon."""

    def limit_tags(self, max_tags: int) -> None:
        """Change how many tags a credential may grant. Those in use that grant more stay good."""

    async def run(self) -> None:
        """Keep up, until cancelled."""


class Credentials:
    """See the module.

    Args:
        registry: of registered tokens.
        jwt: for what has the form of a JWT.
        callout: for what the registry doesn't know.
    """

    def __init__(
        self,
        registry: Registry,
        jwt: Authority | None = None,
        callout: Authority | None = None,
    ) -> None:
        self._registry = registry
        self._jwt = jwt
        self._callout = callout

    @property
    def issued(self) -> bool:
        """Whether any credential is accepted that the registry doesn't have."""
        return self._jwt is not None or self._callout is not None

    @property
    def looks_at_logins(self) -> bool:
        """Whether it may matter where a credential is presented, and what for."""
        return self._callout is not None

    @property
    def authorities(self) -> Iterable[Authority]:
        """Those beside the registry."""
        return [each for each in (self._jwt, self._callout) if each is not None]

    def renew(self) -> None:
        """Have keys fetched again, soon."""
        for each in self.authorities:
            each.renew()

    def limit_tags(self, max_tags: int) -> None:
        """Change how many tags a credential may grant, of whichever kind."""
        self._registry.limit_tags(max_tags)
        for each in self.authorities:
            each.limit_tags(max_tags)

    async def prepare(self, text: str, login: Login) -> None:
        """Call it before the `find` for a login.

        Raises:
            RegistryUnavailable: it can't be told now whether it is good.
        """
        if self._jwt is not None and self._jwt.takes(text):
            await self._registry.refresh("")
            await self._jwt.prepare(text, login)
            return
        await self._registry.refresh(text)
        if self._callout is not None and self._registry.lookup(text) is None:
            await self._callout.prepare(text, login)

    def find(self, text: str, login: Login) -> Record | None:
        """What a credential grants; None where it isn't good. See `Registry.lookup`.

        Raises:
            RegistryUnavailable: it can't be told now.
        """
        if self._jwt is not None and self._jwt.takes(text):
            return self._jwt.find(text, login)
        record = self._registry.lookup(text)
        if record is None and self._callout is not None:
            return self._callout.find(text, login)
        return record

    def accepts(self, text: str) -> bool:
        """Whether a text that is presented as a bearer is a credential of a client, rather than
        the secret."""
        return self._jwt is not None and self._jwt.takes(text)

    def explain(self, text: str, login: Login) -> str:
        """Why a credential isn't good, for the client. Nothing of the text."""
        if self._jwt is not None and self._jwt.takes(text):
            return self._jwt.explain(text, login)
        if self._callout is not None:
            return self._callout.explain(text, login)
        return "no such token"

    async def run(self) -> None:
        """Keep up with all authorities, until cancelled."""
        async with trio.open_nursery() as nursery:
            for each in self.authorities:
                nursery.start_soon(each.run)
            await trio.sleep_forever()
