"""Bills, drops and the audit of tokens: what the server counted, added up."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist.archive import Archive
from mist.auth import Grant
from mist.pipeline.errors import BadInput
from mist.pipeline.jobs import billing, drops, tokens
from mist.pipeline.side_tables import accounted_up_to, time_range
from tests.pipeline.archives import Told, add_accounts, make_archive

DELIVERIES = [
    {"minute": 0, "token": "t1", "subscription": "a", "sent": 10, "dropped": 0, "bytes": 100},
    {"minute": 1, "token": "t1", "subscription": "a,b", "sent": 5, "dropped": 5, "bytes": 50},
    {"minute": 1, "token": "t2", "subscription": "a", "sent": 1, "dropped": 0, "bytes": 7},
    {"minute": 1500, "token": "t1", "subscription": "a", "sent": 2, "dropped": 1, "bytes": 20},
    {"minute": 1501, "token": "", "subscription": "x", "sent": 3, "dropped": 0, "bytes": 30},
]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    archive = make_archive(tmp_path, [Told("a")])
    add_accounts(archive, "deliveries", DELIVERIES)
    return archive


def rows(table: Any) -> list[tuple[Any, ...]]:
    return [tuple(str(v) if k == "day" else v for k, v in row.items()) for row in table.to_pylist()]


def test_a_bill_adds_up_by_token_and_day(spark: Any, archive: Archive) -> None:
    result = billing.run(spark, archive)
    assert rows(result.table) == [
        ("t1", "2026-11-21", 2, 15, 5, 150),
        ("t2", "2026-11-21", 1, 1, 0, 7),
        ("", "2026-11-22", 1, 3, 0, 30),
        ("t1", "2026-11-22", 1, 2, 1, 20),
    ]
    assert result.summary == {"tokens": 3, "days": 2, "sent": 21, "dropped": 6, "bytes": 207}


def test_a_bill_for_a_time_takes_its_minutes_only(spark: Any, archive: Archive) -> None:
    when = time_range("2026-11-21T00:01:00Z", "2026-11-22T01:01:00Z")
    assert rows(billing.run(spark, archive, when=when).table) == [
        ("t1", "2026-11-21", 1, 5, 5, 50),
        ("t2", "2026-11-21", 1, 1, 0, 7),
        ("t1", "2026-11-22", 1, 2, 1, 20),
    ]


def test_drops_are_told_where_there_are_any(spark: Any, archive: Archive) -> None:
    result = drops.run(spark, archive)
    assert rows(result.table) == [
        ("t1", "2026-11-21", 15, 5, 1),
        ("t1", "2026-11-22", 2, 1, 1),
    ]
    assert rows(result.subscriptions) == [("t1", "a,b", 5, 5), ("t1", "a", 12, 1)]
    assert (result.sent, result.dropped) == (21, 6)


def test_an_archive_without_accounts_gives_nothing(spark: Any, tmp_path: Path) -> None:
    archive = make_archive(tmp_path, [Told("a")])
    assert billing.run(spark, archive).table.num_rows == 0
    assert billing.run(spark, archive).summary["sent"] == 0
    assert drops.run(spark, archive).summary["dropped"] == 0
    assert tokens.run(spark, archive).summary["grants"] == 0


def test_what_is_complete_up_to_when_is_known(archive: Archive, tmp_path: Path) -> None:
    assert accounted_up_to(make_archive(tmp_path / "new", [Told("a")])) is None
    # Its last minute has an account: an older server told no more.
    assert accounted_up_to(archive) == datetime(2026, 11, 22, 1, 2, tzinfo=UTC)
    table = archive.table("deliveries")
    later = int(datetime(2026, 11, 22, 1, 30, tzinfo=UTC).timestamp()) // 60
    table.change(lambda manifest: msgspec.structs.replace(manifest, sealed=later))
    assert accounted_up_to(archive) == datetime(2026, 11, 22, 1, 30, tzinfo=UTC)
    # A node that shares the archive is behind another.
    table.change(lambda manifest: msgspec.structs.replace(manifest, sealed=later - 60))
    assert accounted_up_to(archive) == datetime(2026, 11, 22, 0, 30, tzinfo=UTC)


def test_accounts_have_no_ids() -> None:
    with pytest.raises(BadInput, match="as times"):
        time_range("5", None)


def test_an_audit_takes_the_newest_grants_and_the_subscriptions_of_its_time(
    spark: Any, archive: Archive
) -> None:
    add_accounts(
        archive,
        "tokens",
        [
            {"minute": 0, "token": "t1", "tags": ["old"]},
            {"minute": 9, "token": "t1", "tags": ["a", "b:*", "never", ">a"]},
            {"minute": 9, "token": "idle", "tags": ["x"]},
        ],
    )
    add_accounts(
        archive,
        "subscriptions",
        [
            {"minute": 1, "token": "t1", "subscription": "a,urgent", "opened": 2, "closed": 1},
            {"minute": 5, "token": "t1", "subscription": "b:7", "opened": 1, "closed": 0},
            {"minute": 6, "token": "t1", "subscription": "old", "opened": 1, "closed": 0},
            {"minute": 6, "token": "", "subscription": "x", "opened": 1, "closed": 0},
            {"minute": 2000, "token": "idle", "subscription": "x", "opened": 1, "closed": 0},
        ],
    )
    result = tokens.run(spark, archive, when=time_range(None, "2026-11-22"))
    assert result.unused == [
        tokens.Unused("idle", "x", True),
        tokens.Unused("t1", "never", False),
    ]
    assert result.edges == [
        tokens.Edge("t1", "a,urgent", ["a"], ["urgent"], 2),
        tokens.Edge("t1", "old", [], ["old"], 1),
    ]
    assert result.summary == {
        "tokens": 2,
        "grants": 4,
        "subscriptions": 3,
        "unused_grants": 2,
        "idle_tokens": 1,
        "near_the_edge": 1,
        "beyond_the_edge": 1,
    }


def test_an_audit_leaves_out_tokens_that_were_removed(spark: Any, archive: Archive) -> None:
    rows = [
        {"minute": 0, "token": "gone", "tags": ["a"]},
        {"minute": 0, "token": "there", "tags": ["a"]},
        {"minute": 3, "token": "gone", "tags": []},
    ]
    add_accounts(archive, "tokens", rows)
    held = [
        {"minute": 1, "token": token, "subscription": "a", "opened": 1, "closed": 1}
        for token in ("gone", "there")
    ]
    add_accounts(archive, "subscriptions", held)
    result = tokens.run(spark, archive)
    assert (result.tokens, result.unused, result.edges) == (1, [], [])


def test_an_audit_takes_the_last_grants_of_a_minute_that_was_sealed_several_times(
    spark: Any, archive: Archive
) -> None:
    for n in range(12):
        row = {"minute": 7, "token": "t", "tags": [f"a{n}"]}
        add_accounts(archive, "tokens", [row, {**row, "tags": [f"b{n}"]}])
    result = tokens.run(spark, archive)
    assert [each.grant for each in result.unused] == ["b11"]


def test_addresses_are_judged_as_they_are_asked_for() -> None:
    grants = {"t": ["/r", "=/s", ".a.>", "/never"], "u": ["/r/*"]}
    asked = ["/r/1", "=/r", ".a.*", "=/s", "/s,/r", ".>"]
    told = [("t", each, 1) for each in asked] + [("u", "/r", 1), ("u", "/r/2", 1)]
    result = tokens.audit(grants, told)
    assert [(each.token, each.grant) for each in result.unused] == [("t", "/never")]
    assert result.edges == [
        tokens.Edge("t", "/s,/r", ["/r"], ["/s"], 1),
        tokens.Edge("t", ".>", [], [".>"], 1),
        tokens.Edge("u", "/r", [], ["/r"], 1),
    ]


TAGS = st.sampled_from(
    ["a", "b", "a:1", "a:2", "b:1", "c", "/r", "/r/1", "=/r", "=/r/1", "/", ".a.b", ".a.*", ".>"]
)
GRANTS = st.sampled_from(
    ["a", "b", "a:*", "a:1", "b:*", "*", ">a", "c", "/r", "/r/*", "=/r", ".a.>", ".a.*", ">/r"]
)


@given(
    st.dictionaries(st.sampled_from("tuv"), st.sets(GRANTS)),
    st.lists(st.tuples(st.sampled_from("tuvw"), st.sets(TAGS, min_size=1), st.integers(1, 9))),
)
def test_an_audit_agrees_with_the_server_s_own_rule(
    grants: dict[str, set[str]], held: list[tuple[str, set[str], int]]
) -> None:
    told = [(token, ",".join(sorted(tags)), opened) for token, tags, opened in held]
    result = tokens.audit({token: sorted(tags) for token, tags in grants.items()}, told)
    edges = {(edge.token, edge.subscription): edge for edge in result.edges}
    for token, tags, _ in held:
        edge = edges.get((token, ",".join(sorted(tags))))
        if token not in grants:
            assert edge is None
            continue
        grant = Grant(frozenset(grants[token]))
        assert (edge is None) == grant.permits(frozenset(tags), strict=True)
        if edge is not None:
            assert bool(edge.inside) == grant.permits(frozenset(tags))
    # A grant is unused exactly where nothing changes for anyone without it being looked at.
    unused = {(each.token, each.grant) for each in result.unused}
    for token, tags in grants.items():
        for tag in tags:
            used = any(
                Grant(frozenset((tag,))).permits(frozenset(s)) for t, s, _ in held if t == token
            )
            assert ((token, tag) in unused) == (not used and not tag.startswith(">"))
