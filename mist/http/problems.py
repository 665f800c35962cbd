"""Error responses as `application/problem+json` (RFC 9457).

`code` is stable and for programs; `detail` is for people. mist's own errors have codes already;
their HTTP status is in one table here.
"""

import logging
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mist.engine.errors import EngineUnavailable
from mist.errors import HistoryUnavailable, MistError
from mist.http.answers import WholeResponse

__all__ = ["Problem", "answer_of", "mistake", "problem_of"]

log = logging.getLogger("mist.http")

_TITLES: Final = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}

# The status of mist's own errors by code; 400 for all others.
_STATUS: Final = {
    "unauthorized": 401,
    "not_granted": 403,
    "not_allowed": 403,
    "token_not_found": 404,
    "token_exists": 409,
    "client_taken": 409,
    "history_off": 409,
    "presence_off": 409,
    "latest_off": 409,
    "data_too_long": 413,
    "too_many_requests": 429,
    "too_many_connections": 429,
    "too_many_subscriptions": 429,
    "too_many_watches": 429,
    "history_unavailable": 503,
    "history_damaged": 503,
    "registry_unavailable": 503,
    "engine_unavailable": 503,
    "session_ended": 503,
    "too_many_questions": 503,
}

# Of errors that starlette raises: unknown route, unknown method.
_CODES: Final = {404: "not_found", 405: "method_not_allowed"}


class Problem(Exception):
    """An error response. Raise it anywhere below a route.

    Args:
        status: of HTTP.
        code: stable, in snake_case.
        detail: for a person. No token and no secret; of what the peer sent only names that it
            chose.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """The answer."""
        body = {
            "type": "about:blank",
            "title": _TITLES[self.status],
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        headers = [
            (b"cache-control", b"no-store"),
            *(
                (name.lower().encode(), value.encode("latin-1"))
                for name, value in self.headers.items()
            ),
            (b"content-type", b"application/problem+json"),
        ]
        return WholeResponse(msgspec.json.encode(body), self.status, headers)


def problem_of(error: MistError) -> Problem:
    """The error response for one of mist's own errors."""
    status = _STATUS.get(error.code, 400)
    headers = {"Retry-After": "1"} if status == 503 else {}
    # What it says beyond its message is for the operator.
    private = isinstance(error, HistoryUnavailable | EngineUnavailable)
    detail = error.message if private else str(error)
    return Problem(status, error.code, detail, headers)


def mistake() -> Problem:
    """A mistake of ours. It is logged once, by what catches it; the peer gets nothing of it."""
    return Problem(500, "internal_error", "a mistake of the server's; it is logged")


def answer_of(error: "Problem | MistError | HTTPException") -> Response:
    """What answers an error."""
    if isinstance(error, Problem):
        return error.response()
    if isinstance(error, MistError):
        return problem_of(error).response()
    code = _CODES.get(error.status_code, "bad_request")
    status = error.status_code if error.status_code in _TITLES else 400
    return Problem(status, code, _TITLES[status].lower(), error.headers).response()
