"""Argument validation: what a program passes in is checked before anything is sent."""

import ssl
from collections.abc import Iterable
from datetime import datetime

from mist.client.address import Address
from mist.client.errors import BadArgument
from mist.errors import DataTooLong, EmptyTag, InvalidTag, InvalidToken, TooManyTags
from mist.message import (
    MAX_CREDENTIAL,
    MAX_TOKEN,
    PUBLISH,
    TagSet,
    TagUse,
    check_token,
    explain_invalid_tag,
    parse_tags,
)

__all__ = [
    "check_credentials",
    "check_numbers",
    "check_ssl_context",
    "credential_text",
    "not_one_string",
    "payload",
    "tag_set",
    "token_text",
    "unix_seconds",
]


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
        credential_text(token)
    elif "?" not in address.resource:
        raise BadArgument("ws:// needs a token")


def check_numbers(*, zero: bool, **numbers: float) -> None:
    """Check options that are more than zero, or with `zero` not less.

    Raises:
        BadArgument: one is not.
        TypeError: one is no number.
    """
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError(f"{name} must be a number, not {type(number).__name__}")
        if not (number > 0 or (zero and number == 0)):
            raise BadArgument(f"{name} must {'not be less' if zero else 'be more'} than 0")


def check_ssl_context(context: ssl.SSLContext | None, address: Address) -> None:
    """Check that a client of this server can use this context.

    Raises:
        BadArgument: it is one for servers, or there would be no TLS.
        TypeError: it is none.
    """
    if context is None:
        return
    if not hasattr(context, "wrap_bio"):  # there are others that replace that of `ssl`
        raise TypeError(f"ssl_context must be an ssl.SSLContext, not {type(context).__name__}")
    if getattr(context, "protocol", None) == ssl.PROTOCOL_TLS_SERVER:
        raise BadArgument("ssl_context is one for servers (PROTOCOL_TLS_SERVER)")
    if not address.tls:
        raise BadArgument("an ssl_context is for tcps:// and wss://; this URL has no TLS")


def not_one_string(tags: Iterable[str]) -> Iterable[str]:
    """The tags unchanged. A single string would be read as a set of letters.

    Raises:
        TypeError: they are a single string.
    """
    if isinstance(tags, str):
        raise TypeError("tags are a list or a set of strings, not one string")
    return tags


def tag_set(tags: Iterable[str], limit: int, use: TagUse = PUBLISH) -> TagSet:
    """Check and parse at most `limit` tags.

    Raises:
        EmptyTag, InvalidTag, TooManyTags: as `mist.message.parse_tags`, but with the tag and the
            rule that it breaks.
        TypeError: they are no strings, or a single one.
    """
    given = list(not_one_string(tags))
    for each in given:
        if not isinstance(each, str):
            raise TypeError(f"tags must be strings, not {type(each).__name__}")
    try:
        return parse_tags(given, limit, use)
    except InvalidTag:
        raise InvalidTag(explain_invalid_tag(given, use)) from None
    except EmptyTag:
        none = "at least one tag is needed" if not given else "a tag has at least one character"
        raise EmptyTag(f"{EmptyTag.message}: {none}") from None
    except TooManyTags as error:
        error.args = (f"{error}: {len(set(given)):,}, and at most {limit} are allowed",)
        raise


def token_text(token: str) -> str:
    """A token, unchanged.

    Raises:
        InvalidToken: it can't be one. The text says why, and never holds it.
        TypeError: it is no string.
    """
    if not isinstance(token, str):
        raise TypeError(f"a token must be a string, not {type(token).__name__}")
    try:
        return check_token(token)
    except InvalidToken:
        rule = f"1 to {MAX_TOKEN} bytes of UTF-8 without spaces and control characters"
        raise InvalidToken(f"{InvalidToken.message}: a token is {rule}") from None


def unix_seconds(time: float | datetime) -> float:
    """A moment as Unix seconds.

    Raises:
        BadArgument: a `datetime` without a time zone: it would be another moment elsewhere.
        TypeError: neither a number nor a `datetime`.
    """
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise BadArgument("expires needs a time zone: datetime(…, tzinfo=UTC)")
        return time.timestamp()
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise TypeError(f"expires must be a datetime or a number, not {type(time).__name__}")
    return float(time)


def credential_text(token: str) -> str:
    """A token to log in with, unchanged: one that is registered, or one that was issued elsewhere.

    Raises:
        InvalidToken: it can't be one. The text says why, and never holds it.
        TypeError: it is no string.
    """
    if not (isinstance(token, str) and MAX_TOKEN < len(token) <= MAX_CREDENTIAL):
        return token_text(token)
    if not token.isascii() or not token.isprintable() or " " in token:
        rule = "one that is longer than a registered token is ASCII without spaces"
        raise InvalidToken(f"{InvalidToken.message}: {rule}")
    return token


def payload(data: bytes | str, limit: int) -> bytes:
    """A message's data as bytes; text becomes UTF-8.

    Raises:
        BadArgument: text that has no UTF-8 form.
        DataTooLong: more than `limit` bytes.
        TypeError: neither bytes nor text.
    """
    if not isinstance(data, str | bytes | bytearray | memoryview):
        raise TypeError(f"data must be str or bytes, not {type(data).__name__}")
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError:
            raise BadArgument("data holds a lone surrogate, which UTF-8 can't carry") from None
    else:
        data = bytes(data)
    if len(data) > limit:
        text = f"{DataTooLong.message}: {len(data):,} bytes, and at most {limit:,} are allowed"
        raise DataTooLong(text)
    return data
