"""The list of tokens, a page at a time, and what is shown of one token."""

from collections.abc import Sequence
from typing import Final

from mist.auth import Record
from mist.auth.registry import Registry
from mist.auth.strength import weakness
from mist.commands import Register, RegistryChange
from mist.errors import TokenNotFound
from mist.sessions.inspection import GONE, page_of
from mist.token_info import TokenInfo, TokenPage

__all__ = ["count_weak", "describe_token", "find_tokens", "token_of", "token_page"]

_MOST: Final = 100  # tokens of a page
_BYTES: Final = 65_536
_LOOKED_AT: Final = 100  # registrations of one read


def describe_token(record: Record) -> TokenInfo:
    """What is shown of a token."""
    return TokenInfo(
        record.id,
        sorted(record.tags),
        record.created,
        record.attributes.as_json(),
        record.expires,
        record.name,
    )


def token_page(
    registry: Registry, after: str, most: int = _MOST, most_bytes: int = _BYTES
) -> TokenPage:
    """A page of tokens, bounded in number and in size.

    Args:
        after: the id after which it begins; empty for the first page.
        most: tokens, at most.
        most_bytes: of their tags and attributes; it has one token at least.
    """
    found, size = registry.page(most + 1, after), 0
    page: list[TokenInfo] = []
    for record in found[:most]:
        size += sum(map(len, record.tags)) + len(record.attributes.text)
        if page and size > most_bytes:
            break
        page.append(describe_token(record))
    more = len(page) < len(found)
    return TokenPage(page, registry.statistics().tokens, page[-1].id if more else None)


async def find_tokens(
    registry: Registry, search: str, after: str, most: int = _MOST, most_bytes: int = _BYTES
) -> TokenPage:
    """As `token_page`, of the tokens that contain a text, whose number `count` then is.

    It is looked for in their names, ids and users, in whatever case. O(tokens), with checkpoints.
    """
    text = search.casefold()

    def key(record: Record) -> tuple[int, str]:
        user = record.attributes.user
        found = text in record.id or text in record.name.casefold() or text in user.casefold()
        return (0, record.id) if found else GONE

    found, more, count = await page_of([registry.records()], key, (0, after), most)
    page, size = list[TokenInfo](), 0
    for _, record in found:
        size += sum(map(len, record.tags)) + len(record.attributes.text)
        if page and size > most_bytes:
            more = True
            break
        page.append(describe_token(record))
    return TokenPage(page, count, page[-1].id if more else None)


def token_of(registry: Registry, which: str) -> TokenInfo:
    """What is shown of the token with this text, or this id.

    Raises:
        TokenNotFound: there is none.
        RegistryUnavailable: see `Registry.check_contact`.
    """
    record = registry.known(which)
    if record is None:
        raise TokenNotFound
    return describe_token(record)


def count_weak(changes: Sequence[RegistryChange]) -> int:
    """How many tokens of those registered are weak. Of many not all are looked at."""
    some = changes[:_LOOKED_AT]
    return sum(isinstance(each, Register) and weakness(each.token) is not None for each in some)
