"""Tokens over HTTP: what `mist token` asks of `mist.client.Client`, by requests.

Arguments are checked as there, and what the server refuses is a `RemoteError` with the same words,
so that a command can't tell by which way it goes. A token that is named by its text is looked up
first; its text goes in a body, and never into a URL.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from mist.attributes import Attributes, change_of_json
from mist.cli.http import HttpError
from mist.cli.site_requests import SiteRequests
from mist.client.arguments import tag_set, token_text, unix_seconds
from mist.commands import RevokeIssued
from mist.errors import InvalidRevocation, RemoteError
from mist.message import GRANT, Limits, TagSet
from mist.terms import Terms
from mist.token_info import TokenInfo, TokenPage

__all__ = ["TokenRequests"]

_REFUSALS: Final = frozenset({400, 404, 409})
_MOST_TAGS: Final = Limits().token_tags


class TokenRequests(SiteRequests):
    """The methods of `mist.client.Client` that are about tokens; see there.

    Raises:
        RemoteError: from every method: the server has refused it.
        HttpError: likewise: there is no answer, or none may be had with this credential.
    """

    async def register(
        self,
        tags: Iterable[str],
        token: str,
        *,
        expires: float | datetime | None = None,
        name: str = "",
    ) -> None:
        """Make a token known."""
        terms = Terms(None if expires is None else unix_seconds(expires), name or None)
        body = {"tags": _grant(tags), "token": token_text(token), "expires": terms.expires}
        await self._tell("PUT", "/v1/tokens", {**body, "name": name})

    async def token(self, token: str) -> TokenInfo:
        """What is known of a token."""
        found = await self._tell("POST", "/v1/token-lookup", {"token": token_text(token)})
        return msgspec.convert(found, TokenInfo)

    async def tokens(self, after: str = "") -> TokenPage:
        """A page of all tokens."""
        more = f"?after={after}" if after else ""
        return msgspec.convert(await self._tell("GET", f"/v1/tokens{more}"), TokenPage)

    async def tags(self, token: str) -> TagSet:
        """The tags of a token."""
        return frozenset((await self.token(token)).tags)

    async def attributes(self, token: str) -> Attributes:
        """The attributes of a token."""
        return Attributes.of_json((await self.token(token)).attributes)

    async def revoke(self, token: str) -> None:
        """Forget a token, and end its sessions."""
        found = await self.token(token)
        await self._tell("DELETE", f"/v1/tokens/{found.id}")

    async def revoke_jwt(self, *, jti: str | None = None, sub: str | None = None) -> None:
        """Revoke what was issued elsewhere."""
        kind, value = ("jti", jti) if jti is not None else ("sub", sub or "")
        RevokeIssued(kind, value)
        if not value.isprintable():  # as over the line protocol, of which it would be no line
            raise InvalidRevocation
        await self._tell("POST", "/v1/revocations", {kind: value})

    async def set(self, tags: Iterable[str], token: str) -> None:
        """Add tags to a token."""
        await self._change(token, {"add": _grant(tags)})

    async def unset(self, tags: Iterable[str], token: str) -> None:
        """Remove tags from a token."""
        await self._change(token, {"remove": _grant(tags)})

    async def set_terms(
        self, token: str, *, expires: float | datetime | None = None, name: str | None = None
    ) -> None:
        """Change when a token expires, and its name."""
        terms = Terms(None if expires is None else unix_seconds(expires), name)
        body: dict[str, object] = {}
        if terms.expires is not None:
            body["expires"] = None if terms.expires == math.inf else terms.expires
        if name is not None:
            body["name"] = name
        await self._change(token, body)

    async def set_attributes(self, attributes: Mapping[str, object], token: str) -> None:
        """Set attributes of a token; None removes one."""
        change_of_json(attributes)
        await self._change(token, {"attributes": dict(attributes)})

    async def _change(self, token: str, body: Mapping[str, object]) -> None:
        found = await self.token(token)
        await self._tell("PATCH", f"/v1/tokens/{found.id}", body)

    async def _tell(self, method: str, path: str, body: object = None) -> Any:
        try:
            return await self.ask(method, path, body)
        except HttpError as error:
            if error.status not in _REFUSALS or not error.detail:
                raise
            raise RemoteError(error.detail) from None


def _grant(tags: Iterable[str]) -> list[str]:
    return sorted(tag_set(tags, _MOST_TAGS, GRANT))
