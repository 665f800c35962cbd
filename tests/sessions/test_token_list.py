"""The list of tokens: all of them, once, in pages that are bounded."""

import pytest

from mist.attributes import Attributes
from mist.auth import Enroll
from mist.auth.opening import open_registry
from mist.commands import Register
from mist.errors import TokenNotFound
from mist.sessions.token_list import token_of, token_page
from mist.terms import Terms
from mist.token_info import TokenInfo

A = frozenset("a")


async def test_pages_have_each_token_once() -> None:
    async with await open_registry("memory://") as registry:
        await registry.execute([Register(f"t{number}", A) for number in range(250)])
        after: str | None = ""
        found: list[str] = []
        sizes = []
        while after is not None:
            page = token_page(registry, after)
            assert page.count == 250
            sizes.append(len(page.tokens))
            found += [each.id for each in page.tokens]
            after = page.next
        assert sizes == [100, 100, 50]
        assert len(set(found)) == 250
        assert found == sorted(found)


async def test_a_page_is_bounded_in_size_and_has_one_token_at_least() -> None:
    tags = frozenset(f"{number:0200}" for number in range(1_000))
    async with await open_registry("memory://") as registry:
        await registry.execute([Register(f"t{number}", tags) for number in range(3)])
        await registry.execute([Register(f"u{number}", A) for number in range(3)])
        after: str | None = ""
        found: list[TokenInfo] = []
        while after is not None:
            page = token_page(registry, after)
            assert sum(len(each.tags) == 1_000 for each in page.tokens) <= 1
            found += page.tokens
            after = page.next
        assert len({each.id for each in found}) == 6


async def test_an_empty_registry_has_one_empty_page() -> None:
    async with await open_registry("memory://") as registry:
        page = token_page(registry, "")
        assert (page.tokens, page.count, page.next) == ([], 0, None)


async def test_a_text_comes_before_an_id() -> None:
    async with await open_registry("memory://") as registry:
        terms = Terms(4e9, "n")
        [record] = await registry.execute([Enroll("t", A, Attributes(user="7"), terms)])
        assert token_of(registry, "t") == token_of(registry, record.id)  # type: ignore[union-attr]
        shown = token_of(registry, "t")
        assert (shown.attributes, shown.expires, shown.name) == ({"user": "7"}, 4e9, "n")
        # A token whose text is the id of another: the text is what was asked for.
        [other] = await registry.execute([Register(record.id, frozenset("b"))])  # type: ignore[union-attr]
        assert token_of(registry, record.id).id == other.id  # type: ignore[union-attr]
        with pytest.raises(TokenNotFound):
            token_of(registry, "0" * 16)
        assert registry.lookup(other.id) is None  # type: ignore[union-attr]  # an id is no credential
