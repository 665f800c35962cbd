"""Whole responses, which go to the connection in one call.

starlette's responses are two ASGI messages, each of which passes the guard and is told apart by
its connection. That costs as much as publishing a message does.
"""

from collections.abc import Iterable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["WholeResponse", "write"]


class WholeResponse(Response):
    """A response that is all there when it begins.

    Args:
        body: all of it.
        status: of HTTP.
        headers: names in lower case, without the body's length, which the connection adds.
    """

    def __init__(self, body: bytes, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.body = body
        self.status_code = status
        self.raw_headers = list(headers)
        self.background = None


async def write(response: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Write a response: in one call where that can be done.

    Not where something has wrapped `send` to see what passes, as starlette's middleware does.
    """
    connection = scope.get("extensions", {}).get("mist.connection")
    if connection is None or type(response) is not WholeResponse:
        await response(scope, receive, send)
    else:
        await connection.respond(response.status_code, response.raw_headers, response.body)
