"""Requests over HTTP, for commands that ask a server what no other protocol tells."""

import http.client
import json
import ssl
from typing import Any, Final
from urllib.parse import quote, urlsplit

import attrs

from mist.cli.exits import REFUSED, UNREACHABLE, USAGE, fail

__all__ = ["HTTP_DEFAULT", "HttpError", "Site", "get_json"]

HTTP_DEFAULT: Final = "http://127.0.0.1:8080"

_TIMEOUT: Final = 10.0  # seconds without a byte
_GOOD: Final = (200, 201, 202)
_NO_BODY: Final = 204
_MAX_BODY: Final = 16 << 20  # bytes
_IN_PATHS: Final = "/%:@!$&'()*+,;=~"  # not quoted, beside letters, digits, `_`, `.` and `-`


class HttpError(Exception):
    """A request that was not answered as asked; the text is one line, without any secret.

    Attributes:
        code: the exit code of a command that ends with it.
        status: what the server answered with; 0 where it did not.
        detail: what it said of that; empty where it said nothing.
    """

    def __init__(self, text: str, code: int, status: int = 0, detail: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.status = status
        self.detail = detail


@attrs.frozen
class Site:
    """A server's HTTP listener; each request has a connection of its own.

    Attributes:
        name: host and port, for errors: no error repeats the URL, which may hold a password.
        prefix: what stands before each path.
        token: for requests where there is no secret.
    """

    host: str
    port: int | None
    tls: bool
    prefix: str
    name: str
    secret: str | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, secret: str | None = None, token: str | None = None) -> "Site":
        """The listener that a URL names.

        Raises:
            HttpError: it names none.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
            prefix = quote(parts.path.rstrip("/"), safe=_IN_PATHS)
            # As it is looked up and named in a header.
            (host or "").encode("idna")
        except ValueError:
            raise _not_one() from None
        if not host or parts.scheme not in ("http", "https"):
            raise _not_one()
        if parts.username is not None or parts.query or parts.fragment:
            raise HttpError("--server: host, port and path only", USAGE)
        name = f"[{host}]" if ":" in host else host
        name = f"{name}:{port}" if port else name
        return cls(host, port, parts.scheme == "https", prefix, name, secret, token)

    def get(self, path: str) -> Any:
        """The answer to a GET request, parsed.

        Raises:
            HttpError: there is none, or it is a refusal.
        """
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer to a request, parsed; None where it has no body.

        Args:
            body: to be sent as JSON; None for none.

        Raises:
            HttpError: as for `get`.
        """
        encoded = None if body is None else json.dumps(body).encode()
        return self._parse(*self._request(method, path, encoded))

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        headers: dict[str, str | bytes] = {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            if self.secret is not None:
                headers["Authorization"] = b"Bearer " + self.secret.encode()
            elif self.token is not None:
                headers["X-Auth-Token"] = self.token.encode()
            connection.request(method, self.prefix + path, body, headers=headers)
            response = connection.getresponse()
            return response.status, response.read(_MAX_BODY)
        except ssl.SSLCertVerificationError as error:
            text = f"{self.name}: its certificate is not trusted: {error.verify_message}"
            raise HttpError(text, UNREACHABLE) from None
        except ssl.SSLError as error:  # whose own text names a line of Python's source
            from mist.client.transport import reason  # with anyio, which most commands do without

            text = f"{self.name}: {reason(error)}; is it an https listener?"
            raise HttpError(text, UNREACHABLE) from None
        except http.client.HTTPException:  # also where it ends the connection instead
            text = f"no HTTP answer came; is {self.name} an http listener of mist?"
            raise HttpError(text, UNREACHABLE) from None
        except OSError as error:
            why = error.strerror or type(error).__name__
            if isinstance(error, TimeoutError):
                why = f"no answer in {_TIMEOUT:g} s"
            raise HttpError(f"can't reach {self.name}: {why}", UNREACHABLE) from None
        except ValueError:  # whose text would have the secret
            what = "token" if self.secret is None else "secret"
            raise HttpError(f"the {what} holds what no header can carry", USAGE) from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if not self.tls:
            return http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(self.host, self.port, timeout=_TIMEOUT, context=context)

    def _parse(self, status: int, body: bytes) -> Any:
        detail = ""
        try:
            if status == _NO_BODY:
                return None
            found = json.loads(body)
            if status in _GOOD:
                return found
            detail = str(found["detail"])
            text = f"{self.name} answers {status}: {detail}"
        except (ValueError, KeyError, TypeError):
            text = f"{self.name} answers {status}, and is no mist server"
        raise HttpError(text, REFUSED, status, detail)


def _not_one() -> HttpError:
    return HttpError(f"--server: not an HTTP listener; try {HTTP_DEFAULT}", USAGE)


def get_json(url: str, path: str, secret: str | None) -> Any:
    """The answer to one request. Ends the command where there is none."""
    try:
        return Site.of(url, secret).get(path)
    except HttpError as error:
        fail(str(error), error.code)
