"""A server's address with its credential.

It is pickled with readers and writers and sent to tasks, so it holds plain values only. Plans,
logs and errors show `name`: host and port, never the credential or the rest of the URL.
"""

from typing import Final
from urllib.parse import urlsplit

import attrs

from mist.pipeline.source.errors import InvalidOption

__all__ = ["Address"]

_PORTS: Final = {"http": 80, "https": 443}


@attrs.frozen
class Address:
    """The address of a server and the credential to use.

    Attributes:
        secure: whether it is HTTPS.
        host: name or IP address, an IPv6 one without brackets.
        port: TCP port.
        prefix: put before every path, for a server behind a proxy; no trailing `/`.
        secret: credential of a service.
        token: credential of a client.
    """

    secure: bool
    host: str
    port: int
    prefix: str = ""
    secret: str | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, secret: str | None, token: str | None) -> "Address":
        """Parse the options.

        Raises:
            InvalidOption: not an HTTP URL, or one with a password, which belongs in `secret`;
                two credentials; a credential that is not valid in a header.
        """
        # No error repeats one of these values: it may be, or contain, a credential.
        try:
            parts = urlsplit(url.strip())
            host, port = parts.hostname, parts.port
        except ValueError:
            raise InvalidOption("url: not a URL; try http://127.0.0.1:8080") from None
        if parts.scheme not in _PORTS or not host:
            raise InvalidOption("url: not one of a server; try http://127.0.0.1:8080")
        if parts.username is not None or parts.query or parts.fragment:
            raise InvalidOption("url: host, port and path only; credentials go to secret or token")
        if secret is not None and token is not None:
            raise InvalidOption("secret and token: give one")
        for name, value in (("secret", secret), ("token", token)):
            if value is not None and not _fits_header(value):
                raise InvalidOption(f"{name}: holds what no header can carry")
        return cls(
            secure=parts.scheme == "https",
            host=host,
            port=port or _PORTS[parts.scheme],
            prefix=parts.path.rstrip("/"),
            secret=secret,
            token=token,
        )

    @property
    def is_client(self) -> bool:
        """Whether it has a token, and so is limited to the grants of the token."""
        return self.token is not None

    @property
    def name(self) -> str:
        """The name for errors and logs."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def headers(self) -> dict[str, bytes]:
        """The credential as a request header, in UTF-8."""
        if self.secret is not None:
            return {"Authorization": b"Bearer " + self.secret.encode()}
        if self.token is not None:
            return {"X-Auth-Token": self.token.encode()}
        return {}


def _fits_header(value: str) -> bool:
    # http.client would raise as well, but with the value in its message.
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return value.strip() == value and not any(c < " " or c == "\x7f" for c in value)
