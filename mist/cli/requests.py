"""One-shot commands over HTTP: a request each, for a server that is reached by no other way.

Where `mist.client` has a connection, this asks anew each time; what has no request is refused in
one line.
"""

import base64
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import attrs
import trio

from mist.audience import Audience
from mist.cli.exits import REFUSED, USAGE
from mist.cli.http import HttpError, Site
from mist.cli.token_requests import TokenRequests
from mist.client.arguments import payload, tag_set
from mist.message import MAX_DATA, MAX_MESSAGE_TAGS

__all__ = ["Requests", "websocket_url"]


@attrs.frozen
class Connected:
    """Connections: now, and since the server's start."""

    connected: int
    lifetime: int


class Requests(TokenRequests):
    """What `mist.client.Client` has of the same names, by requests. An async context manager.

    Raises:
        HttpError: from every method.
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def refuse(*_: object, **__: object) -> None:
            await trio.lowlevel.checkpoint()
            raise HttpError("not over HTTP: give the tcp:// URL of the server", USAGE)

        return refuse

    async def ping(self) -> None:
        """Ask whether the server is there."""
        await self.ask("GET", "/healthz")

    async def publish(
        self, tags: Iterable[str], data: bytes | str, *, to: Audience | None = None
    ) -> None:
        """Publish one message, and wait until the server has handled it."""
        await self._publish(tags, data, to)

    async def flush(self) -> None:
        """Nothing is left to be sent."""
        await trio.lowlevel.checkpoint()

    async def store(self, tags: Iterable[str], data: bytes | str) -> int:
        """Publish one message. Its id in the history, once it is durable."""
        answer = await self._publish(tags, data, None)
        if "id" not in answer:
            raise HttpError("published, and not stored: the server has no history", REFUSED)
        number: int = answer["id"]
        return number

    async def list_all(self) -> set[str]:
        """Every tag that anyone is subscribed to."""
        found: set[str] = set()
        after = ""
        while True:
            page = await self.ask("GET", f"/v1/tags?limit=1000{after}")
            found |= {each["tag"] for each in page["tags"]}
            if page["next"] is None:
                return found
            after = f"&after={quote(page['next'], safe='')}"

    async def who(self) -> Connected:
        """Connections of all nodes."""
        nodes = (await self.ask("GET", "/v1/nodes"))["nodes"]
        return Connected(
            sum(each["sessions"] for each in nodes), sum(each["lifetime"] for each in nodes)
        )

    async def _publish(
        self, tags: Iterable[str], data: bytes | str, to: Audience | None
    ) -> dict[str, Any]:
        raw = payload(data, MAX_DATA)
        body: dict[str, Any] = {"tags": sorted(tag_set(tags, MAX_MESSAGE_TAGS))}
        try:
            body["data"] = raw.decode()
        except UnicodeDecodeError:
            body["data64"] = base64.b64encode(raw).decode()
        if to is not None:
            body["to"] = _as_json(to)
        answer: dict[str, Any] = await self.ask("POST", "/v1/messages", body)
        return answer


def _as_json(to: Audience) -> dict[str, Any]:
    lists = {
        "clients": to.clients,
        "users": to.users,
        "groups": to.groups,
        "except": to.excepted,
    }
    return {**{name: sorted(ids) for name, ids in lists.items() if ids}, **dict(to.others)}


def websocket_url(site: Site) -> str:
    """The URL of WebSockets at an HTTP listener.

    An `http` listener takes them at any path; a proxy passes on those below the prefix.
    """
    host = f"[{site.host}]" if ":" in site.host else site.host
    port = site.port or (443 if site.tls else 80)
    path = f"{site.prefix}/subscribe/websocket" if site.prefix else ""
    return f"{'wss' if site.tls else 'ws'}://{host}:{port}{path}"
