"""Revocations of what was issued elsewhere, over every kind of registry."""

from pathlib import Path
from typing import Any

import pytest

from mist.auth import Record, Remove
from mist.auth.issued import IssuedRecord
from mist.auth.local import LocalRegistry
from mist.auth.opening import open_registry
from mist.auth.registry import Registry
from mist.auth.revocations import is_revoked, jti_mark, sub_mark
from mist.auth.shared_memory import SharedMemory, SharedMemoryStore
from mist.auth.shared_registry import SharedRegistry
from mist.commands import AddTags, Register, RemoveTags, RevokeIssued
from mist.errors import InvalidRevocation, InvalidToken

NOW = 1_800_000_000.0
LIFE = 30 * 86_400.0


def issued(registry: Registry, jti: str = "t1", sub: str = "7", at: float = NOW) -> IssuedRecord:
    return IssuedRecord(
        id="0123456789abcdef",
        digest=b"d" * 32,
        tags=frozenset({"a"}),
        created=at,
        issued=at,
        token_mark=jti_mark(registry, jti) if jti else b"",
        user_mark=sub_mark(registry, sub) if sub else b"",
    )


async def revoke(registry: Registry, kind: str, value: str) -> Record:
    [outcome] = await registry.execute([RevokeIssued(kind, value)])
    assert isinstance(outcome, Record)
    return outcome


async def test_a_token_is_revoked_by_its_name_whenever_it_was_issued(registry: Registry) -> None:
    registry.now = lambda: NOW
    assert not is_revoked(registry, issued(registry))
    record = await revoke(registry, "jti", "t1")
    assert (record.tags, record.created, record.expires) == (frozenset(), NOW, NOW + LIFE)
    assert record.name == "revoked: jti t1"
    for at in (NOW - 10, NOW, NOW + 10):
        assert is_revoked(registry, issued(registry, at=at))
    assert not is_revoked(registry, issued(registry, jti="t2"))
    assert not is_revoked(registry, issued(registry, jti="", sub=""))
    assert not is_revoked(registry, issued(registry, jti="t2", sub="t1"))


async def test_a_user_is_revoked_until_now(registry: Registry) -> None:
    registry.now = lambda: NOW + 0.5
    await revoke(registry, "sub", "7")
    assert is_revoked(registry, issued(registry, at=NOW - 10))
    assert is_revoked(registry, issued(registry, at=NOW))  # whole seconds: it may be either
    assert not is_revoked(registry, issued(registry, at=NOW + 1))
    assert not is_revoked(registry, issued(registry, sub="8"))
    assert not is_revoked(registry, issued(registry, jti="7", sub="8"))
    registry.now = lambda: NOW + 100
    await revoke(registry, "sub", "7")
    assert is_revoked(registry, issued(registry, at=NOW + 1))
    assert not is_revoked(registry, issued(registry, at=NOW + 101))


async def test_a_revocation_is_forgotten_when_nothing_that_it_revokes_is_good(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mist.auth.registry.KEPT_EXPIRED", 0.0)
    registry.now = lambda: NOW
    registry.keep_revocations(100)
    assert (await revoke(registry, "jti", "t1")).expires == NOW + 100
    registry.now = lambda: NOW + 60
    assert (await revoke(registry, "jti", "t1")).expires == NOW + 160
    registry.now = lambda: NOW + 159
    await registry.discard_expired()
    assert is_revoked(registry, issued(registry))
    registry.now = lambda: NOW + 160
    await registry.discard_expired()
    assert not is_revoked(registry, issued(registry))
    assert registry.statistics().tokens == 0


async def test_a_revocation_can_be_taken_back_where_tokens_are_listed(registry: Registry) -> None:
    record = await revoke(registry, "jti", "t1")
    assert [each.id for each in registry.page(10)] == [record.id]
    await registry.execute([Remove(record.id)])
    assert not is_revoked(registry, issued(registry))


async def test_no_token_can_stand_where_a_revocation_does(registry: Registry) -> None:
    [outcome] = await registry.execute([Register("\0jti\0t1", frozenset({"a"}))])
    assert isinstance(outcome, InvalidToken)
    await revoke(registry, "jti", "t1")
    assert registry.lookup("\0jti\0t1") is None
    await registry.execute([Register("jti", frozenset({"a"})), Register("t1", frozenset({"a"}))])
    assert is_revoked(registry, issued(registry))


async def test_watchers_hear_of_each_record_that_comes_to_grant_nothing(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def fail(record: Record) -> None:
        raise RuntimeError

    registry.watch_withheld(fail)
    registry.watch_withheld(lambda record: heard.append(record.name or record.id))
    a = frozenset({"a"})
    [record] = await registry.execute([Register("t", a)])
    assert isinstance(record, Record)
    await registry.execute([AddTags("t", frozenset({"b"}))])
    assert heard == []
    await registry.execute([RemoveTags("t", frozenset({"a", "b"})), RevokeIssued("sub", "7")])
    assert heard == [record.id, "revoked: sub 7"]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("x" * 255, "revoked: jti " + "x" * 115),
        ("a b ", "revoked: jti a b"),
        ("a\nb", "revoked: jti"),
        ("ä", "revoked: jti ä"),
    ],
)
async def test_a_revocation_has_a_name_for_lists(registry: Registry, value: str, name: str) -> None:
    assert (await revoke(registry, "jti", value)).name == name


@pytest.mark.parametrize(
    ("kind", "value"), [("", "a"), ("iss", "a"), ("jti", ""), ("sub", "x" * 256)]
)
def test_what_cannot_be_revoked(kind: str, value: str) -> None:
    with pytest.raises(InvalidRevocation):
        RevokeIssued(kind, value)


async def test_a_revocation_survives_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tokens.db'}"
    async with await open_registry(url) as registry:
        await revoke(registry, "jti", "t1")
    async with await open_registry(url) as registry:
        assert isinstance(registry, LocalRegistry)
        assert is_revoked(registry, issued(registry))


async def test_a_revocation_reaches_the_other_servers(nursery: Any) -> None:
    memory, key = SharedMemory(), b"k" * 32
    one, two = [await SharedRegistry.open(SharedMemoryStore(memory), key) for _ in range(2)]
    heard: list[str] = []
    two.watch_withheld(lambda record: heard.append(record.name))
    await revoke(one, "jti", "t1")
    await two.sync()
    assert is_revoked(two, issued(two))
    assert heard == ["revoked: jti t1"]
    for each in (one, two):
        await each.aclose()
