"""The HTTP client of the driver and of tasks, with retries, over `http.client`.

A connection is kept for as long as its `Client` is used and never travels: readers and writers
hold an `Address`, and open a client where they run.

Everything asked for here may be asked again without harm: a read, a stage that replaces itself,
a commit that is done once. So a request that failed is repeated, after a while that doubles
from a tenth of a second to five, until `retry_timeout` seconds have passed since it was first
tried: long enough for a server to restart. It is repeated where there was no connection, or it
broke, and where the server says that it is starting, draining or has too much to do (429, 502, 503,
504). What is an answer is not repeated.
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
]

RETRY_TIMEOUT: Final = 60.0  # seconds for which a request is repeated
FIRST_TIMEOUT: Final = 5.0  # the same where nobody has seen the server yet: a typing error
TIMEOUT: Final = 20.0  # seconds without a byte before a connection counts as broken
# A commit answers when all of it is in the log, which takes the server some 25 s for a million
# messages with tag lists of their own. Asked again meanwhile it waits for the first.
COMMIT_RETRY_TIMEOUT: Final = 900.0  # seconds
COMMIT_TIMEOUT: Final = 300.0  # seconds
SHORTEST: Final = 0.1  # seconds to the first repeat
LONGEST: Final = 5.0  # seconds between two repeats

_BUSY: Final = frozenset({429, 502, 503, 504})
_MAX_DETAIL: Final = 500  # characters of a server's own words in an error
_MAX_ERROR: Final = 65_536  # bytes of a body looked at for them


@attrs.frozen
class Answer:
    """What the server said.

    Attributes:
        headers: by lower-case names.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = attrs.field(repr=False)

    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


class Client:
    """One connection to a server, opened when it is needed; for one thread at a time.

    Args:
        address: where.
        retry_timeout: seconds, see above. More than `timeout`, or what hangs is asked for once.
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
        """Close the connection; it would be opened again by a request."""
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
        """Ask, until there is an answer.

        Args:
            path: beginning with `/v1/`.
            query: values of None are left out.
            body: sent again with each repeat.

        Raises:
            ServerUnavailable: none, for as long as it is patient.
            ServerRefused: an answer of 400 and above.
        """
        target = self._address.prefix + path
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        if asked:
            target += "?" + urlencode(asked)
        headers: dict[str, str | bytes] = {**self._address.headers}
        if content_type is not None:
            headers["Content-Type"] = content_type
        until = self._clock() + self._retry_timeout
        pause = SHORTEST
        while True:
            answer, reason = self._try(method, target, body, headers)
            if answer is not None and answer.status not in _BUSY:
                return self._judged(answer)
            # Not all tasks of a stage at the same moment.
            wait = max(pause * random.uniform(0.5, 1.0), _asked_to_wait(answer))  # noqa: S311
            if self._clock() + wait > until:
                raise ServerUnavailable(
                    f"{self._address.name} gave no answer for {self._retry_timeout:.0f} s: {reason}"
                )
            self._sleep(wait)
            pause = min(2 * pause, LONGEST)

    def _try(
        self,
        method: str,
        target: str,
        body: bytes | memoryview | None,
        headers: Mapping[str, str | bytes],
    ) -> tuple[Answer | None, str]:
        # The answer, or None, and what to call the failure if this was the last try.
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
            # A kept connection that the server has closed meanwhile looks like this, too.
            self.close()
            return None, _words(error)
        return answer, f"{answer.status} {_problem(answer)[1]}".rstrip()

    def _open(self) -> http.client.HTTPConnection:
        host, port = self._address.host, self._address.port
        if self._address.secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout)

    def _judged(self, answer: Answer) -> Answer:
        if answer.status < 300:
            return answer
        code, detail = _problem(answer)
        said = f"{code or 'an error'}: {detail}" if detail else code or "an error"
        raise ServerRefused(
            f"{self._address.name} answered {answer.status} {said}", answer.status, code
        )


def _problem(answer: Answer) -> tuple[str, str]:
    # (code, detail) of a problem document; what else a server or a proxy says is left out.
    try:
        found = json.loads(answer.body[:_MAX_ERROR]) if answer.status >= 400 else {}
        return str(found.get("code", "")), str(found.get("detail", ""))[:_MAX_DETAIL]
    except (ValueError, AttributeError):
        return "", ""


def _asked_to_wait(answer: Answer | None) -> float:
    given = "" if answer is None else answer.headers.get("retry-after", "")
    return min(float(given), LONGEST) if given.isdecimal() else 0.0


def _words(error: Exception) -> str:
    # Of an OSError what the system calls it; of others their kind. Never what was sent.
    return getattr(error, "strerror", None) or type(error).__name__
