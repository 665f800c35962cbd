"""The HTTP client of the driver and of tasks, with retries, over `http.client`.

A connection is kept open as long as its `Client` is in use, and is never pickled: readers and
writers hold an `Address` and open a client where they run.

Every request here is idempotent: a read, a stage that replaces itself, a commit that is done
once. So a failed request is retried with exponential backoff, from a tenth of a second to five,
until `retry_timeout` seconds after its first attempt: long enough for a server to restart. It is
retried where the connection failed or broke, and where the server is starting, draining or
overloaded (429, 502, 503, 504). Any other response is final.
"""

import http.client
import json
import random
import ssl
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode

import attrs

from mist.pipeline.source.address import Address
from mist.pipeline.source.errors import ServerRefused, ServerUnavailable

__all__ = [
    "COMMIT_RETRY_TIMEOUT",
    "COMMIT_TIMEOUT",
    "FIRST_TIMEOUT",
    "RETRY_TIMEOUT",
    "TIMEOUT",
    "Answer",
    "Client",
    "check_server",
]

RETRY_TIMEOUT: Final = 60.0  # seconds for which a request is retried
FIRST_TIMEOUT: Final = 5.0  # the same for the first contact, where the address may be mistyped
TIMEOUT: Final = 20.0  # seconds without a byte before a connection counts as broken
# A commit returns when all of it is in the log, which takes the server some 25 s for a million
# messages with distinct tag lists. A retry in the meantime waits for the first attempt.
COMMIT_RETRY_TIMEOUT: Final = 900.0  # seconds
COMMIT_TIMEOUT: Final = 300.0  # seconds
MIN_BACKOFF: Final = 0.1  # seconds before the first retry
MAX_BACKOFF: Final = 5.0  # seconds between two retries

_BUSY: Final = frozenset({429, 502, 503, 504})
_MAX_DETAIL: Final = 500  # characters of a server's detail shown in an error
_MAX_ERROR: Final = 65_536  # bytes of a body parsed for it


@attrs.frozen
class Answer:
    """A response of the server.

    Attributes:
        headers: by lower-case name.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = attrs.field(repr=False)

    def json(self) -> Any:
        """The body, parsed as JSON."""
        return json.loads(self.body)


class Client:
    """One connection to a server, opened on demand; for one thread at a time.

    Args:
        address: of the server.
        retry_timeout: seconds, see above. Above `timeout`, or a hanging request is not retried.
        timeout: seconds without a byte before a connection counts as broken.
        clock, sleep: for tests.
    """

    def __init__(
        self,
        address: Address,
        *,
        retry_timeout: float = RETRY_TIMEOUT,
        timeout: float = TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address = address
        self._retry_timeout = retry_timeout
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The next request opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | memoryview | None = None,
        content_type: str | None = None,
    ) -> Answer:
        """Send a request, with retries, and return its response.

        Args:
            path: begins with `/v1/`.
            query: values of None are left out.
            body: sent again with each retry.

        Raises:
            ServerUnavailable: no response within `retry_timeout`.
            ServerRefused: a response that is no success.
        """
        target = self._address.prefix + path
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        if asked:
            target += "?" + urlencode(asked)
        headers: dict[str, str | bytes] = {**self._address.headers}
        if content_type is not None:
            headers["Content-Type"] = content_type
        until = self._clock() + self._retry_timeout
        backoff = MIN_BACKOFF
        while True:
            answer, reason = self._attempt(method, target, body, headers)
            if answer is not None and answer.status not in _BUSY:
                return self._checked(answer)
            # Jitter: the tasks of a stage must not all retry at the same moment.
            wait = max(backoff * random.uniform(0.5, 1.0), _retry_after(answer))  # noqa: S311
            if self._clock() + wait > until:
                raise ServerUnavailable(
                    f"{self._address.name} gave no answer for {self._retry_timeout:.0f} s: {reason}"
                )
            self._sleep(wait)
            backoff = min(2 * backoff, MAX_BACKOFF)

    def _attempt(
        self,
        method: str,
        target: str,
        body: bytes | memoryview | None,
        headers: Mapping[str, str | bytes],
    ) -> tuple[Answer | None, str]:
        # The response or None, and a text for the failure in case this was the last attempt.
        try:
            if self._connection is None:
                self._connection = self._open()
            self._connection.request(method, target, body, headers)
            response = self._connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, found, response.read())
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise ServerRefused(
                f"{self._address.name}: its certificate is not trusted: {error.verify_message}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            # A kept connection that the server has closed in the meantime also fails like this.
            self.close()
            return None, _reason(error)
        return answer, f"{answer.status} {_problem(answer)[1]}".rstrip()

    def _open(self) -> http.client.HTTPConnection:
        host, port = self._address.host, self._address.port
        if self._address.secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout)

    def _checked(self, answer: Answer) -> Answer:
        if answer.status < 300:
            return answer
        code, detail = _problem(answer)
        said = f"{code or 'an error'}: {detail}" if detail else code or "an error"
        raise ServerRefused(
            f"{self._address.name} answered {answer.status} {said}", answer.status, code
        )


def check_server(address: Address) -> None:
    """Check that a server is reachable and authorizes us, before Spark is started.

    Raises:
        ServerUnavailable, ServerRefused: from the server.
    """
    with Client(address, retry_timeout=FIRST_TIMEOUT) as client:
        client.request("GET", "/v1/log/position")


def _problem(answer: Answer) -> tuple[str, str]:
    # (code, detail) of a problem document (RFC 9457); other bodies are ignored.
    try:
        found = json.loads(answer.body[:_MAX_ERROR]) if answer.status >= 400 else {}
        return str(found.get("code", "")), str(found.get("detail", ""))[:_MAX_DETAIL]
    except (ValueError, AttributeError):
        return "", ""


def _retry_after(answer: Answer | None) -> float:
    given = "" if answer is None else answer.headers.get("retry-after", "")
    return min(float(given), MAX_BACKOFF) if given.isdecimal() else 0.0


def _reason(error: Exception) -> str:
    # The system's text of an OSError, else the type. Never any data that was sent.
    return getattr(error, "strerror", None) or type(error).__name__
