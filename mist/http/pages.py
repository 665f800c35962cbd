"""Static pages: the dashboard, the browser client, and their files, from the package.

All files are read when the routes are made, and only these are served: a path is a key in a dict
and never reaches the file system, so path traversal is impossible.

`mist.js` is served minified: `mist.min.js` is made of it, and says of which source. Where that is
another one by now, in a checkout that is being worked on, the source itself is served.

The dashboard needs no credential, since it contains no data; it requests that with the secret
(`/v1/stats`).
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mist.http.context import Context
from mist.http.encodings import Encoded
from mist.http.health import websocket_url
from mist.http.openapi import Answer, Operation, Operations
from mist.http.problems import Problem

__all__ = ["FOLDER", "OPERATIONS", "routes"]

FOLDER: Final = Path(__file__).parents[1] / "static"

# By file extension; other files are not served.
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",  # RFC 9239
    ".ts": "application/typescript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".map": "application/json",
}

# Revalidated on each request, which costs an answer without a body: an upgraded server must not
# be shown by an old page.
_HEADERS: Final = {
    "Cache-Control": "no-cache",
    # No window in common with pages of other origins, which could follow what this one does.
    "Cross-Origin-Opener-Policy": "same-origin",
}

# Files with paths outside /static.
_SOURCE: Final = "mist.js"
_SCRIPT: Final = "mist.min.js"
_PLACES: Final = {
    "index.html": "/",
    _SCRIPT: "/mist.js",
    f"{_SCRIPT}.map": f"/{_SCRIPT}.map",
    "mist.d.ts": "/mist.d.ts",
}


@attrs.frozen
class _File:
    """A file served at one path.

    Attributes:
        encoded: its content.
        kind: its media type.
        digest: of its content.
    """

    encoded: Encoded
    kind: str
    digest: str

    def response(self, request: Request, policy: str) -> Response:
        coding, content = self.encoded.choose(",".join(request.headers.getlist("accept-encoding")))
        etag = f'"{self.digest}-{coding}"' if coding else f'"{self.digest}"'
        headers = {**_HEADERS, "Content-Security-Policy": policy, "ETag": etag}
        if self.encoded.varies:
            headers["Vary"] = "Accept-Encoding, Origin"
        if _names(request.headers.getlist("if-none-match"), etag):
            return Response(status_code=304, headers=headers)
        if coding:
            headers["Content-Encoding"] = coding
        return Response(content, headers={**headers, "Content-Type": self.kind})


def routes(context: Context) -> Sequence[BaseRoute]:
    """`/`, `/mist.js`, `/mist.min.js.map`, `/mist.d.ts`, `/static/...`."""
    folder = FOLDER
    found = dict(_read(folder))
    source = _file((folder / _SOURCE).read_bytes(), _KINDS[".js"])
    found[_PLACES[_SCRIPT]] = _current(found.get(_PLACES[_SCRIPT]), source)

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


def _current(minified: _File | None, source: _File) -> _File:
    """What is made of this source, if it is; else the source."""
    if minified is None:
        return source
    digest = hashlib.sha256(source.encoded.content).hexdigest()
    banner = minified.encoded.content.partition(b"\n")[0]
    return minified if digest.encode() in banner else source


def _read(folder: Path, under: str = "") -> Iterator[tuple[str, _File]]:
    """Each file that is served, by its URL path."""
    for entry in folder.iterdir():
        name = under + entry.name
        if entry.is_dir():
            yield from _read(entry, f"{name}/")
            continue
        kind = _KINDS.get(name[name.rfind(".") :])
        if kind is not None and name != _SOURCE:
            yield _PLACES.get(name, f"/static/{name}"), _file(entry.read_bytes(), kind)


def _file(content: bytes, kind: str) -> _File:
    return _File(Encoded(content), kind, hashlib.sha256(content).hexdigest()[:32])


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
    "/mist.min.js.map": {
        "get": Operation(
            summary="Its source map",
            answers={200: Answer("A source map, with the source.", media_type="application/json")},
        )
    },
    "/mist.d.ts": {
        "get": Operation(
            summary="Its types",
            answers={200: Answer("Declarations.", media_type="application/typescript")},
        )
    },
}
