"""What those who manage tokens are shown of one: everything but its text."""

import msgspec

__all__ = ["TokenInfo", "TokenPage"]


class TokenInfo(msgspec.Struct, frozen=True):
    """A registered token. One that grants nothing has no tags.

    Attributes:
        id: names it in logs, metrics and the history, and to commands that change or revoke it.
        tags: what it grants, sorted.
        created: Unix seconds.
        attributes: of its holder: `user`, `groups`, any others.
        expires: Unix seconds; None for never. It may have passed, until the token is removed.
        name: empty for none.
    """

    id: str
    tags: list[str]
    created: float
    attributes: dict[str, str | list[str]]
    expires: float | None = None
    name: str = ""


class TokenPage(msgspec.Struct, frozen=True):
    """Some of the tokens, by ascending ids.

    Attributes:
        tokens: of this page.
        count: of all tokens.
        next: after which the next page begins; None on the last.
    """

    tokens: list[TokenInfo]
    count: int
    next: str | None
