"""Argument validation: what a program passes in is checked before anything is sent."""

from collections.abc import Iterable

from mist.client.address import Address
from mist.client.errors import BadArgument
from mist.errors import DataTooLong
from mist.message import PUBLISH, TagSet, TagUse, check_token, parse_tags

__all__ = ["check_credentials", "not_one_string", "payload", "tag_set"]


def check_credentials(secret: str | None, token: str | None, address: Address) -> None:
    """Check that this kind of connection takes these credentials.

    Raises:
        BadArgument, InvalidToken: it does not.
    """
    if address.protocol == "tcp":
        if token is not None:
            raise BadArgument("a token is for ws://; tcp:// takes a secret")
        # A secret is one field of a line.
        if secret is not None and (not secret.isprintable() or " " in secret or not secret):
            raise BadArgument("a secret is not empty and has no spaces or control characters")
        return
    if secret is not None:
        raise BadArgument("a secret is for tcp://; ws:// takes a token")
    if token is not None:
        check_token(token)
    elif "?" not in address.resource:
        raise BadArgument("ws:// needs a token")


def not_one_string(tags: Iterable[str]) -> Iterable[str]:
    """The tags unchanged. A single string would be read as a set of letters.

    Raises:
        TypeError: they are a single string.
    """
    if isinstance(tags, str):
        raise TypeError("tags are a list or a set of strings, not one string")
    return tags


def tag_set(tags: Iterable[str], limit: int, use: TagUse = PUBLISH) -> TagSet:
    """Check and parse at most `limit` tags. Raises as `mist.message.parse_tags`."""
    return parse_tags(not_one_string(tags), limit, use)


def payload(data: bytes | str, limit: int) -> bytes:
    """A message's data as bytes; text becomes UTF-8.

    Raises:
        BadArgument: text that has no UTF-8 form.
        DataTooLong: more than `limit` bytes.
    """
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError:
            raise BadArgument("data holds a lone surrogate, which UTF-8 can't carry") from None
    if len(data) > limit:
        raise DataTooLong
    return data
