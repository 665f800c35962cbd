"""Static pages: the dashboard, the browser client, and their files, from the package.

All files are read when the routes are made, and only these are served: a path is a key in a dict
and never reaches the file system, so path traversal is impossible.

The dashboard needs no credential, since it contains no data; it requests that with the secret
(`/v1/stats`).
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

import attrs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.http.context import Context
from mist.http.health import websocket_url
from mist.http.openapi import Answer, Operation, Operations
from mist.http.problems import Problem

__all__ = ["OPERATIONS", "routes"]

# By file extension; other files are not served.
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",  # RFC 9239
    ".ts": "application/typescript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Revalidated on each request, which costs an answer without a body: an upgraded server must not
# be shown by an old page.
_HEADERS: Final = {
    "Cache-Control": "no-cache",
    # No window in common with pages of other origins, which could follow what this one does.
    "Cross-Origin-Opener-Policy": "same-origin",
}

# Files with paths outside /static.
_PLACES: Final = {"index.html": "/", "mist.js": "/mist.js", "mist.d.ts": "/mist.d.ts"}


@attrs.frozen
class _File:
    """A file served at one path."""

    content: bytes
    kind: str
    etag: str

    def response(self, request: Request, policy: str) -> Response:
        headers = {**_HEADERS, "Content-Security-Policy": policy, "ETag": self.etag}
        if _names(request.headers.getlist("if-none-match"), self.etag):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers={**headers, "Content-Type": self.kind})


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/`, `/mist.js`, `/mist.d.ts`, `/static/...`."""
    found = dict(_read(files("mist") / "static"))

    async def page(request: Request) -> Response:
        file = found.get(request.scope["path"])
        if file is None:
            raise Problem(404, "not_found", "not found")
        return file.response(request, _policy(websocket_url(context, request)))

    return [
        *(Route(place, page) for place in _PLACES.values()),
        Route("/static/{path:path}", page),
    ]


def _policy(websocket: str) -> str:
    """A Content-Security-Policy: nothing inline, nothing from other origins, not in a frame.

    Args:
        websocket: the URL for WebSockets. It often has another port, and so another origin.
    """
    [origin] = re.findall("^wss?://[^/]+", websocket)
    # A source can't be an IPv6 address (CSP 3, host-source), so the port has to do.
    origin = re.sub(r"\[.*\]", "*", origin)
    return f"default-src 'self'; connect-src 'self' {origin}; frame-ancestors 'none'"


def _read(folder: Traversable, under: str = "") -> Iterator[tuple[str, _File]]:
    """Each file that is served, by its URL path."""
    for entry in folder.iterdir():
        name = under + entry.name
        if entry.is_dir():
            yield from _read(entry, f"{name}/")
            continue
        kind = _KINDS.get(name[name.rfind(".") :])
        if kind is not None:
            content = entry.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            yield _PLACES.get(name, f"/static/{name}"), _File(content, kind, etag)


def _names(conditions: Sequence[str], etag: str) -> bool:
    """Whether If-None-Match matches the ETag (RFC 9110, 13.1.2: compared weakly)."""
    given = [each.strip() for each in ",".join(conditions).split(",")]
    return "*" in given or etag in (each.removeprefix("W/") for each in given)


OPERATIONS: Final[Operations] = {
    "/": {
        "get": Operation(
            summary="The dashboard", answers={200: Answer("A page.", media_type="text/html")}
        )
    },
    "/mist.js": {
        "get": Operation(
            summary="The browser client",
            answers={200: Answer("An ES module.", media_type="text/javascript")},
        )
    },
    "/mist.d.ts": {
        "get": Operation(
            summary="Its types",
            answers={200: Answer("Declarations.", media_type="application/typescript")},
        )
    },
}
