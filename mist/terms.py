"""Terms of a token: when it expires, and what it is called.

    expires=1798761600&name=nightly%20export

Neither grants anything. They are set when a token is registered and later, apart from its
attributes, by which messages are delivered. The text is that of the line protocol; like that of
attributes it is percent-encoded, and a field without a value takes back what was set.
"""

import math
import re
from typing import Final

import attrs

from mist.errors import InvalidExpiry, InvalidName
from mist.fields import read, write

__all__ = ["LAST_EXPIRY", "MAX_NAME", "UNCHANGED", "Terms", "check_expiry", "check_token_name"]

MAX_NAME: Final = 128  # characters
LAST_EXPIRY: Final = 253_402_300_799  # Unix seconds: the end of the year 9999

_SECONDS: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")


@attrs.frozen
class Terms:
    """A change of the terms, or those of a new token.

    Attributes:
        expires: Unix seconds; infinite for never; None leaves it as it is.
        name: empty for none; None leaves it as it is.

    Raises:
        InvalidExpiry, InvalidName: see there.
    """

    expires: float | None = None
    name: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.expires is not None and self.expires != math.inf:
            check_expiry(self.expires)
        if self.name:
            check_token_name(self.name)

    @property
    def text(self) -> str:
        """What `parse` reads. Empty where nothing is changed."""
        fields = []
        if self.expires is not None:
            fields.append("expires=" if self.expires == math.inf else f"expires={self.expires:.6f}")
        if self.name is not None:
            fields.append(write({"name": [self.name]}) if self.name else "name=")
        return "&".join(fields)

    @classmethod
    def parse(cls, text: str) -> "Terms":
        """What a text says; at least one of both.

        Raises:
            InvalidAudience: it can't be taken apart.
            InvalidExpiry, InvalidName: see there.
        """
        expires, name = None, None
        if "expires=" in (fields := text.split("&")):
            fields.remove("expires=")
            expires = math.inf
        if "name=" in fields:
            fields.remove("name=")
            name = ""
        for field, values in (read("&".join(fields)) if fields else {}).items():
            [value, *more] = values
            if field == "expires" and expires is None:
                if more or not _SECONDS.fullmatch(value):
                    raise InvalidExpiry(f"{InvalidExpiry.message}: it is Unix seconds")
                expires = float(value)
            elif field == "name" and name is None and not more:
                name = value
            else:
                raise InvalidName(f"{InvalidName.message}: a token has expires and name, once each")
        return cls(expires, name)


UNCHANGED: Final = Terms()


def check_expiry(expires: float) -> float:
    """The time at which a token may expire, as it is.

    Raises:
        InvalidExpiry: it is no time between 1970 and the year 9999.
    """
    if not 0 < expires <= LAST_EXPIRY:  # which no NaN is, either
        raise InvalidExpiry(f"{InvalidExpiry.message}: not between 1970 and the year 9999")
    return expires


def check_token_name(name: str) -> str:
    """The name of a token, as it is.

    Raises:
        InvalidName: it is empty or too long, or has something that can't be printed on a line, or
            a space at either end.
    """
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
        raise InvalidName(
            f"{InvalidName.message}: a name is 1 to {MAX_NAME} printable characters, none of them "
            "a space at either end"
        )
    return name
