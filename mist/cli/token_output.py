"""How `mist token` prints tokens: lines for people, objects for programs."""

import time

from mist.attributes import Attributes
from mist.token_info import TokenInfo

__all__ = ["HEADINGS", "printable", "row", "rows"]

HEADINGS = f"{'ID':16}  {'CREATED':17}  {'EXPIRES':17}  {'USER':12}  {'NAME':20}  TAGS"


def row(token: TokenInfo, now: float) -> str:
    """One line of a list.

    Args:
        now: Unix seconds.
    """
    user = token.attributes.get("user", "")
    tags = printable(",".join(token.tags)) or "none"
    expires = "never" if token.expires is None else moment(token.expires)
    if token.expires is not None and token.expires <= now:
        expires = "expired"
    columns = (
        f"{token.id:16}",
        f"{moment(token.created):17}",
        f"{expires:17}",
        f"{printable(str(user)):12}",
        f"{printable(token.name):20}",
        tags,
    )
    return "  ".join(columns)


def rows(token: TokenInfo) -> list[str]:
    """All of one token, a line for each thing that is known."""
    found = {
        "id": token.id,
        "name": token.name,
        "tags": ",".join(token.tags) or "none",
        "attributes": Attributes.of_json(token.attributes).text if token.attributes else "",
        "created": moment(token.created),
        "expires": "never" if token.expires is None else moment(token.expires),
    }
    return [f"{name:11} {printable(text)}" for name, text in found.items() if text]


def moment(seconds: float) -> str:
    """A time as `--expires` takes it, to the minute."""
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(seconds))


def printable(text: str) -> str:
    """What someone else chose, without what could control the reader's terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
