"""The registry, over every member of the family."""

import hmac
import logging
import time

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mist.attributes import NO_ATTRIBUTES, Attributes, parse_change
from mist.auth import Amend, Enroll, Remove
from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore
from mist.auth.opening import open_registry
from mist.commands import (
    AddTags,
    Register,
    RemoveTags,
    Revoke,
    SetAttributes,
    SetTerms,
    Unregister,
)
from mist.errors import (
    InvalidAudience,
    InvalidToken,
    RegistryUnavailable,
    StartupError,
    TokenExists,
    TokenNotFound,
    TooManyTags,
)
from mist.fields import MAX_IDS
from mist.terms import Terms
from tests.auth.stores import Around, Failing, Hanging, Recording

AB = frozenset("ab")
A = frozenset("a")
B = frozenset("b")
NONE = frozenset()


async def one(registry, change):
    [outcome] = await registry.execute([change])
    return outcome


def announced(registry):
    """What a registry announces."""
    seen = []
    registry.watch(lambda old, new: seen.append((old, new)))
    return seen


# by id


async def test_a_token_can_be_changed_by_its_id_and_is_no_credential_by_it(registry, seen):
    record = await one(registry, Register("t", A))
    assert registry.lookup(record.id) is None
    assert (await one(registry, AddTags(record.id, B))).tags == AB
    assert (await one(registry, RemoveTags(record.id, A))).tags == B
    changed = await one(registry, SetAttributes(record.id, Attributes(user="1")))
    assert changed.attributes.user == "1" == registry.attributes(record.id).user
    assert (await one(registry, SetTerms(record.id, Terms(name="n")))).name == "n"
    assert registry.tags(record.id) == B
    await one(registry, Unregister(record.id))  # which takes texts alone
    assert registry.statistics().tokens == 1
    assert await one(registry, Revoke(record.id)) is None
    assert registry.statistics().tokens == 0
    assert seen[-1][1] is None
    assert isinstance(await one(registry, Revoke(record.id)), TokenNotFound)
    assert isinstance(await one(registry, AddTags(record.id, A)), TokenNotFound)


async def test_an_id_of_a_batch_is_that_of_the_token_as_it_is_by_then(registry):
    old = await one(registry, Register("t", A))
    outcomes = await registry.execute(
        [Unregister("t"), Register("t", A), AddTags(old.id, B), Revoke(old.id), Revoke("t")]
    )
    assert isinstance(outcomes[2], TokenNotFound)
    assert isinstance(outcomes[3], TokenNotFound)
    assert outcomes[4] is None
    assert registry.statistics().tokens == 0


async def test_a_text_comes_before_an_id(registry):
    record = await one(registry, Register("t", A))
    await one(registry, Register(record.id, B))
    await one(registry, Revoke(record.id))
    assert registry.lookup("t") == record
    await one(registry, Revoke(record.id))
    assert registry.statistics().tokens == 0


# lookup


async def test_registered_token_is_found_with_its_tags(registry):
    record = await one(registry, Register("t0ken", AB))
    assert registry.lookup("t0ken") is record
    assert record.tags == AB == registry.tags("t0ken")
    assert record.grant.covers("a")


async def test_unknown_token_is_not_found(registry):
    await one(registry, Register("t0ken", AB))
    for token in ["t0ke", "t0kenn", "T0ken", "tøken"]:
        assert registry.lookup(token) is None
        for question in (registry.tags, registry.attributes):
            with pytest.raises(TokenNotFound):
                question(token)


@pytest.mark.parametrize("token", ["", "a b", "a\n", "\x00", "x" * 256, "ü" * 128, "\ud800"])
async def test_what_cannot_be_a_token_is_never_found(registry, token):
    assert registry.lookup(token) is None
    with pytest.raises(TokenNotFound):
        registry.tags(token)
    for change in [Register(token, A), AddTags(token, A), RemoveTags(token, A), Unregister(token)]:
        assert isinstance(await one(registry, change), InvalidToken)
    assert registry.statistics().tokens == 0


@pytest.mark.parametrize(
    "token", ["x", "x" * 255, "ü", "a,b", "{a}", "';DROP/**/TABLE/**/token;--"]
)
async def test_odd_tokens_are_tokens(registry, token):
    await one(registry, Register(token, A))
    assert registry.tags(token) == A


async def test_digest_depends_on_the_key():
    first, second = LocalRegistry(MemoryStore()), LocalRegistry(MemoryStore())
    assert (await one(first, Register("t", A))).digest != (
        await one(second, Register("t", A))
    ).digest


@pytest.mark.parametrize("length", [0, 1, 32, 63, 64, 65, 200])
async def test_digest_is_the_hmac_of_the_token(length):
    store = MemoryStore()
    store.key = bytes(range(length))
    record = await one(LocalRegistry(store), Register("tökén", A))
    assert record.digest == hmac.digest(store.key, "tökén".encode(), "sha256")


async def test_record_is_named_by_a_random_id(registry):
    first, second = await registry.execute([Register("t", A), Register("u", A)])
    assert first.id != second.id
    assert len(bytes.fromhex(first.id)) == 8
    assert first.id not in first.digest.hex()


async def test_record_knows_when_it_was_made(registry):
    before = time.time()
    record = await one(registry, Register("t", A))
    assert before <= record.created <= time.time()


async def test_repr_of_a_record_hides_the_digest(registry):
    record = await one(registry, Register("t", A))
    assert repr(record.digest) not in repr(record)
    assert record.digest.hex() not in repr(record)


# changes


async def test_register_of_a_known_token_is_refused_and_changes_nothing(registry, seen):
    before = await one(registry, Register("t", A))
    assert isinstance(await one(registry, Register("t", B)), TokenExists)
    assert registry.lookup("t") is before
    assert seen == []


async def test_register_takes_a_token_without_tags(registry):
    record = await one(registry, Register("t", NONE))
    assert registry.lookup("t") is record
    assert registry.tags("t") == NONE


async def test_registering_is_not_announced(registry, seen):
    await one(registry, Register("t", A))
    assert seen == []


async def test_unregistered_token_is_gone(registry, seen):
    old = await one(registry, Register("t", A))
    assert await one(registry, Unregister("t")) is None
    assert registry.lookup("t") is None
    assert registry.statistics().tokens == 0
    assert seen == [(old, None)]


async def test_unregistering_an_unknown_token_is_no_error(registry, seen):
    assert await one(registry, Unregister("t")) is None
    assert seen == []


async def test_registering_again_makes_a_new_id(registry, seen):
    old = await one(registry, Register("t", A))
    _, new = await registry.execute([Unregister("t"), Register("t", A)])
    assert new.id != old.id
    assert new.digest == old.digest
    assert registry.lookup("t") is new
    assert seen == [(old, None)]


async def test_added_tags_are_announced(registry, seen):
    old = await one(registry, Register("t", A))
    new = await one(registry, AddTags("t", B))
    assert new == attrs.evolve(old, tags=AB)
    assert registry.lookup("t") is new
    assert new.grant.covers("b")
    assert seen == [(old, new)]


async def test_removed_tags_are_announced(registry, seen):
    old = await one(registry, Register("t", AB))
    new = await one(registry, RemoveTags("t", frozenset("bx")))
    assert new == attrs.evolve(old, tags=A)
    assert not new.grant.covers("b")
    assert seen == [(old, new)]


async def test_token_whose_last_tag_was_removed_is_still_known(registry, seen):
    old = await one(registry, Register("t", A))
    new = await one(registry, RemoveTags("t", A))
    assert registry.tags("t") == NONE
    assert seen == [(old, new)]
    assert isinstance(await one(registry, Register("t", A)), TokenExists)


async def test_tags_of_an_unknown_token_cannot_be_changed(registry):
    for change in [AddTags("t", A), RemoveTags("t", A)]:
        assert isinstance(await one(registry, change), TokenNotFound)
    assert registry.lookup("t") is None


async def test_limit_of_tags_counts_all_that_a_token_has(url):
    async with await open_registry(url, max_tags=2) as registry:
        assert (await one(registry, Register("t", frozenset("abc")))).limit == 2
        assert registry.lookup("t") is None
        await one(registry, Register("t", AB))
        assert isinstance(await one(registry, AddTags("t", frozenset("bc"))), TooManyTags)
        assert registry.tags("t") == AB
        assert (await one(registry, AddTags("t", AB))).tags == AB


async def test_limit_is_1000_tags(registry):
    await one(registry, Register("t", frozenset(map(str, range(1000)))))
    assert (await one(registry, AddTags("t", A))).limit == 1000
    assert len(registry.tags("t")) == 1000


async def test_token_over_a_lowered_limit_can_lose_tags_but_not_gain():
    store = MemoryStore()
    await one(LocalRegistry(store), Register("t", frozenset("abcd")))
    registry = LocalRegistry(store, store.load(), max_tags=2)
    assert isinstance(await one(registry, AddTags("t", frozenset("e"))), TooManyTags)
    assert (await one(registry, AddTags("t", A))).tags == frozenset("abcd")
    assert (await one(registry, RemoveTags("t", A))).tags == frozenset("bcd")


async def test_changes_of_one_call_build_on_each_other(local):
    seen = announced(local)
    outcomes = await local.execute(
        [
            AddTags("t", A),
            Register("t", A),
            Register("t", B),
            AddTags("t", B),
            RemoveTags("t", A),
            Unregister("t"),
            RemoveTags("t", A),
            Register("t", AB),
        ]
    )
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert kinds == [
        *("TokenNotFound", "Record", "TokenExists", "Record", "Record", "NoneType"),
        *("TokenNotFound", "Record"),
    ]
    assert local.lookup("t") is outcomes[-1]
    assert seen == [
        (outcomes[1], outcomes[3]),
        (outcomes[3], outcomes[4]),
        (outcomes[4], None),
    ]


async def test_tag_taken_and_given_back_in_one_call_is_announced_as_taken(local):
    seen = announced(local)
    old = await one(local, Register("t", AB))
    taken, given = await local.execute([RemoveTags("t", A), AddTags("t", A)])
    assert seen == [(old, taken), (taken, given)]


async def test_watchers_find_the_registry_changed(local):
    found = []
    local.watch(lambda old, new: found.append((new, local.lookup("t"))))
    await local.execute([Register("t", A), AddTags("t", B), Unregister("t")])
    assert [new for new, _ in found] == [known for _, known in found]
    assert len(found) == 2


async def test_failing_watcher_is_logged_and_stops_nothing(registry, caplog):
    def fail(old, new):
        raise ZeroDivisionError

    seen = []
    registry.watch(fail)
    registry.watch(lambda old, new: seen.append(new))
    record = await one(registry, Register("s3cret-t0ken", A))
    with caplog.at_level(logging.ERROR, "mist.auth"):
        await registry.execute([Unregister("s3cret-t0ken"), Register("s3cret-t0ken", A)])
    assert seen == [None]
    assert registry.lookup("s3cret-t0ken") is not None
    [logged] = caplog.records
    assert logged.token == record.id
    assert "s3cret-t0ken" not in caplog.text


async def test_statistics_count_what_took_effect(local):
    await local.execute([Register("t", A), Register("t", A), AddTags("t", B)])
    await local.execute([Register("u", A), Unregister("t"), Unregister("t")])
    assert attrs.astuple(local.statistics()) == (1, 4, 0)


# by id


async def test_record_is_found_by_its_id_as_long_as_it_is_there(registry):
    record = await one(registry, Register("t", A))
    assert registry.find(record.id) is record
    assert registry.find("") is registry.find("t") is registry.find(record.digest.hex()) is None
    grown = await one(registry, AddTags("t", B))
    assert registry.find(record.id) is grown
    await one(registry, Unregister("t"))
    assert registry.find(record.id) is None


async def test_records_are_found_by_id_after_a_restart(url):
    async with await open_registry(url) as registry:
        records = await registry.execute([Register(f"t{n}", A) for n in range(5)])
        if url == "memory://":
            return
    async with await open_registry(url) as registry:
        assert [registry.find(each.id) for each in records] == records
        assert registry.page(9) == sorted(records, key=lambda each: each.id)


async def test_pages_hold_every_record_once_in_the_order_of_ids(registry):
    assert registry.page(3) == []
    records = await registry.execute([Register(f"t{n}", A) for n in range(7)])
    wanted = sorted(each.id for each in records)
    seen, after = [], ""
    while page := registry.page(3, after):
        assert len(page) <= 3
        seen += [each.id for each in page]
        after = page[-1].id
    assert seen == wanted


async def test_page_goes_on_behind_a_record_that_is_gone(registry):
    records = await registry.execute([Register(f"t{n}", A) for n in range(6)])
    tokens = {each.id: f"t{n}" for n, each in enumerate(records)}
    first = registry.page(3)
    await one(registry, Unregister(tokens[first[-1].id]))
    assert [each.id for each in registry.page(9, first[-1].id)] == sorted(tokens)[3:]


async def test_tags_change_by_id_in_one_step(registry, seen):
    old = await one(registry, Register("t", A))
    new = await one(registry, Amend(old.id, add=frozenset("bc"), remove=frozenset("ac")))
    assert new.tags == B == registry.tags("t")
    assert new.id == old.id
    assert seen == [(old, new)]


async def test_token_is_removed_by_id(registry, seen):
    record = await one(registry, Register("t", A))
    assert await one(registry, Remove(record.id)) is None
    assert registry.lookup("t") is None
    assert seen == [(record, None)]
    assert isinstance(await one(registry, Remove(record.id)), TokenNotFound)
    assert isinstance(await one(registry, Amend(record.id, A, NONE)), TokenNotFound)


async def test_id_of_a_token_that_was_registered_anew_means_nothing(registry):
    old = await one(registry, Register("t", A))
    outcomes = await registry.execute(
        [Unregister("t"), Remove(old.id), Register("t", B), Amend(old.id, A, NONE), Remove(old.id)]
    )
    assert [type(outcomes[n]) for n in (1, 3, 4)] == [TokenNotFound] * 3
    assert registry.tags("t") == B


async def test_limit_on_tags_holds_by_id_too():
    registry = LocalRegistry(MemoryStore(), max_tags=2)
    record = await one(registry, Register("t", A))
    outcome = await one(registry, Amend(record.id, frozenset("bc"), NONE))
    assert isinstance(outcome, TooManyTags)
    outcome = await one(registry, Amend(record.id, frozenset("bc"), A))
    assert outcome.tags == frozenset("bc")


# attributes


async def test_token_is_enrolled_with_tags_and_attributes_at_once(registry, seen):
    record = await one(registry, Enroll("t", A, Attributes(user="1")))
    assert registry.lookup("t") is record
    assert (record.tags, record.attributes) == (A, Attributes(user="1"))
    assert registry.attributes("t") is record.attributes
    assert isinstance(await one(registry, Enroll("t", B, NO_ATTRIBUTES)), TokenExists)
    assert registry.lookup("t") is record
    assert seen == []


async def test_registered_token_has_no_attributes(registry):
    record = await one(registry, Register("t", A))
    assert record.attributes == NO_ATTRIBUTES


async def test_attributes_that_are_not_named_stay(registry):
    await one(registry, Enroll("t", A, Attributes.parse("user=1&groups=a;b&plan=pro&site=x")))
    for change, after in [
        ("plan=basic", "groups=a;b&plan=basic&site=x&user=1"),
        ("groups=c&client=q", "client=q&groups=c&plan=basic&site=x&user=1"),
        ("user=", "client=q&groups=c&plan=basic&site=x"),
        ("groups=&plan=&new=1", "client=q&new=1&site=x"),
        ("plan=", "client=q&new=1&site=x"),
        ("client=&new=&site=", ""),
    ]:
        record = await one(registry, SetAttributes("t", *parse_change(change)))
        assert record.attributes.text == after
        assert registry.lookup("t") == record
        assert record.tags == A


async def test_change_of_attributes_is_announced(registry, seen):
    old = await one(registry, Register("t", A))
    new = await one(registry, SetAttributes("t", Attributes(user="1")))
    await one(registry, SetAttributes("t", Attributes(user="1")))
    await one(registry, SetAttributes("t", NO_ATTRIBUTES, frozenset(["plan"])))
    assert seen == [(old, new)]
    assert new.id == old.id
    assert registry.statistics().changes == 2


async def test_change_of_tags_leaves_attributes(registry):
    await one(registry, Enroll("t", A, Attributes(user="1")))
    for change in [AddTags("t", B), RemoveTags("t", A)]:
        assert (await one(registry, change)).attributes == Attributes(user="1")


async def test_token_that_is_registered_anew_has_none_of_its_old_attributes(registry):
    await one(registry, Enroll("t", A, Attributes(user="1")))
    outcomes = await registry.execute([Unregister("t"), Register("t", A)])
    assert outcomes[1].attributes == NO_ATTRIBUTES


async def test_attributes_of_an_unknown_token_cannot_be_set(registry):
    change = SetAttributes("t", Attributes(user="1"))
    assert isinstance(await one(registry, change), TokenNotFound)
    assert isinstance(await one(registry, SetAttributes("a b", change.attributes)), InvalidToken)
    assert registry.statistics().tokens == 0


async def test_tags_and_attributes_change_by_id_in_one_step(registry, seen):
    old = await one(registry, Enroll("t", A, Attributes.parse("plan=pro&site=x")))
    change = Amend(old.id, B, A, Attributes(user="1"), frozenset(["plan"]))
    new = await one(registry, change)
    assert (new.tags, new.attributes.text) == (B, "site=x&user=1")
    assert seen == [(old, new)]
    assert isinstance(await one(registry, Amend("0" * 16, B)), TokenNotFound)


@pytest.mark.parametrize("by_id", [False, True])
async def test_attributes_that_become_too_many_are_refused_and_nothing_is_changed(
    registry, seen, by_id
):
    full = Attributes(groups=frozenset(map(str, range(MAX_IDS))))
    old = await one(registry, Enroll("t0ken", A, full))
    more = Attributes(others={"plan": "pro"})
    change = Amend(old.id, B, A, more) if by_id else SetAttributes("t0ken", more)
    outcome = await one(registry, change)
    assert isinstance(outcome, InvalidAudience)
    # Its frames would hold the token's text.
    assert outcome.__traceback__ is None
    assert outcome.__context__ is None
    assert registry.lookup("t0ken") is old
    assert seen == []


async def test_attributes_are_durable_before_anybody_hears_of_them():
    store = Recording()
    registry = LocalRegistry(store)
    await one(registry, Register("t", A))
    heard = []
    registry.watch(lambda old, new: heard.append((new, list(store.store.load()))))
    new = await one(registry, SetAttributes("t", Attributes(user="1")))
    assert heard == [(new, [new])]


async def test_attributes_that_cannot_be_stored_are_not_set():
    store = Failing(MemoryStore())
    registry = LocalRegistry(store)
    old = await one(registry, Register("t", A))
    store.full = True
    with pytest.raises(RegistryUnavailable):
        await one(registry, SetAttributes("t", Attributes(user="1")))
    assert registry.lookup("t") is old


async def test_token_and_attributes_are_in_no_log(caplog):
    caplog.set_level(logging.DEBUG)
    store = Failing(MemoryStore())
    registry = LocalRegistry(store)
    registry.watch(lambda old, new: 1 / 0)
    given = Attributes(user="s3cret-user")
    await one(registry, Enroll("t0ken", A, given))
    await one(registry, SetAttributes("t0ken", Attributes(groups=frozenset(["s3cret-group"]))))
    assert "a watcher of the token registry failed" in caplog.text
    store.full = True
    for change in [Enroll("t0ken-2", A, given), SetAttributes("t0ken", Attributes(user="s3cret"))]:
        with pytest.raises(RegistryUnavailable):
            await one(registry, change)
    assert "token changes could not be stored" in caplog.text
    assert "t0ken" not in caplog.text
    assert "s3cret" not in caplog.text


def test_token_is_in_no_repr_of_a_change():
    for change in [Enroll("t0ken", A, NO_ATTRIBUTES), SetAttributes("t0ken", NO_ATTRIBUTES)]:
        assert "t0ken" not in repr(change)


# storage


async def test_one_call_is_one_write_of_what_it_comes_to():
    store = Recording()
    registry = LocalRegistry(store)
    outcomes = await registry.execute(
        [Register("t", A), AddTags("t", B), Register("u", A), Register("v", A), Unregister("v")]
    )
    assert [set(written.values()) for written in store.written] == [{outcomes[1], outcomes[2]}]


async def test_what_changes_nothing_writes_and_announces_nothing():
    store = Recording()
    registry = LocalRegistry(store)
    seen = []
    await one(registry, Register("t", A))
    registry.watch(lambda *change: seen.append(change))
    del store.written[:]
    for change in [Register("t", B), AddTags("t", A), RemoveTags("t", B), Unregister("u")]:
        await one(registry, change)
    await registry.execute([])
    await registry.execute([Register("u", A), Unregister("u")])
    assert store.written == []
    assert [old.tags for old, _ in seen] == [A]  # of u, which came and went
    assert registry.statistics().tokens == 1


async def test_change_is_stored_before_it_is_known():
    registry = None
    known = []

    class Looking(Around):
        def write(self, changes):
            known.append(registry.lookup("t"))
            super().write(changes)

    registry = LocalRegistry(Looking(MemoryStore()))
    record = await one(registry, Register("t", A))
    await one(registry, Unregister("t"))
    assert known == [None, record]


async def test_failed_write_changes_nothing_and_heals(caplog):
    store = Failing(MemoryStore())
    registry = LocalRegistry(store)
    seen = []
    record = await one(registry, Register("s3cret", A))
    registry.watch(lambda *change: seen.append(change))
    store.full = True
    with pytest.raises(RegistryUnavailable) as caught:
        await registry.execute([Register("t", A), Unregister("s3cret"), AddTags("nobody", A)])
    assert registry.lookup("s3cret") is record
    assert registry.lookup("t") is None
    assert seen == []
    assert attrs.astuple(registry.statistics()) == (1, 1, 1)
    assert "s3cret" not in caplog.text + str(caught.value)
    assert [each.reason for each in caplog.records] == ["No space left on device"]

    # what writes nothing doesn't notice
    assert isinstance(await one(registry, Register("s3cret", A)), TokenExists)

    store.full = False
    await registry.execute([Register("t", A), Unregister("s3cret")])
    assert seen == [(record, None)]
    assert [each.tags for each in store.load()] == [A] == [registry.tags("t")]


async def test_error_that_nobody_foresaw_leaves_the_registry_usable():
    class Broken(Around):
        def write(self, changes):
            raise ZeroDivisionError

    registry = LocalRegistry(Broken(MemoryStore()))
    with pytest.raises(ZeroDivisionError):
        await one(registry, Register("t", A))
    assert registry.lookup("t") is None
    assert isinstance(await one(registry, AddTags("t", A)), TokenNotFound)


async def test_calls_are_carried_out_one_at_a_time():
    store = Recording()
    registry = LocalRegistry(store)
    outcomes = []

    async def work(number):
        outcomes.append(
            await registry.execute(
                [Register("same", A), Register(f"own-{number}", A), AddTags("same", B)]
            )
        )

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(work, number)
    assert store.most_at_once == 1
    assert len([same for same, _, _ in outcomes if not isinstance(same, TokenExists)]) == 1
    assert registry.tags("same") == AB
    assert registry.statistics().tokens == 31
    assert {record.id for record in store.load()} == {
        registry.lookup(token).id for token in ["same", *(f"own-{n}" for n in range(30))]
    }


async def test_slow_write_holds_up_neither_lookups_nor_other_tasks():
    store = Hanging(MemoryStore())
    registry = LocalRegistry(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registry.execute, [Register("t", A)])
        await store.begun.wait()
        assert registry.lookup("t") is None
        store.go_on.set()
    assert registry.tags("t") == A


async def test_cancellation_while_writing_lets_the_change_take_effect(url):
    async with await open_registry(url) as inner:
        store = Hanging(inner._store)
        registry = LocalRegistry(store)
        outcomes = []
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def work():
                    outcomes.extend(await registry.execute([Register("t", A)]))

                nursery.start_soon(work)
                await store.begun.wait()
                scope.cancel()
                store.go_on.set()
        assert len(outcomes) == 1
        assert list(store.load()) == [registry.lookup("t")] == outcomes


async def test_cancellation_while_waiting_leaves_nothing(url):
    async with await open_registry(url) as inner:
        store = Hanging(inner._store)
        registry = LocalRegistry(store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(registry.execute, [Register("t", A)])
            await store.begun.wait()
            with trio.move_on_after(0) as scope:
                await registry.execute([Register("u", A)])
            assert scope.cancelled_caught
            store.go_on.set()
        assert registry.lookup("u") is None
        assert list(store.load()) == [registry.lookup("t")]


# beginning and end


async def test_closed_registry_answers_but_does_not_change(url):
    registry = await open_registry(url)
    record = await one(registry, Register("t", A))
    await registry.aclose()
    await registry.aclose()
    assert registry.lookup("t") is record
    with pytest.raises(RegistryUnavailable):
        await registry.execute([Unregister("t")])
    assert registry.lookup("t") is record


async def test_closing_waits_for_the_change_that_is_being_written():
    class Closing(Hanging):
        closed = False

        def write(self, changes):
            super().write(changes)
            assert not self.closed

        def close(self):
            self.closed = True

    store = Closing(MemoryStore())
    registry = LocalRegistry(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registry.execute, [Register("t", A)])
        await store.begun.wait()
        nursery.start_soon(registry.aclose)
        await wait_all_tasks_blocked()
        store.go_on.set()
    assert store.closed
    assert registry.tags("t") == A


async def test_closing_is_done_even_where_it_is_cancelled(url):
    registry = await open_registry(url)
    with trio.CancelScope() as scope:
        scope.cancel()
        await registry.aclose()
    with pytest.raises(RegistryUnavailable):
        await registry.execute([])


async def test_memory_registries_share_nothing():
    async with await open_registry("memory://") as first:
        await one(first, Register("t", A))
        async with await open_registry("memory://") as second:
            assert second.lookup("t") is None


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgres://user:s3cret@host/db", "'postgres'"),
        ("tokens.db", "not a URL"),
        ("", "not a URL"),
        ("memory://x", "nothing can follow"),
        ("sqlite://tokens.db", "three slashes"),
        ("sqlite:///", "three slashes"),
        ("sqlite:///a\0b", "three slashes"),
    ],
)
async def test_url_that_means_nothing_is_refused_in_one_line(url, reason):
    with pytest.raises(StartupError) as caught:
        await open_registry(url)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_scheme_may_be_written_large():
    async with await open_registry("MEMORY://") as registry:
        assert registry.statistics().tokens == 0
