"""The pages of the reports: their figures are those of the jobs, and no name is markup."""

from datetime import date
from typing import Any

import pytest

from mist.pipeline.html import render
from mist.pipeline.html.page import Page
from mist.pipeline.html.reports.about import About
from mist.pipeline.html.reports.accounts import billing_page, drops_page, tokens_page
from mist.pipeline.html.reports.matching import coverage_page, histogram, match_page
from mist.pipeline.html.reports.messages import cooccurrence_page, tags_page, volume_page
from tests.pipeline.test_html import BEGIN, EVIL, Reader

HOUR = 3600


def pages(name: str) -> dict[str, Page]:
    about = About([("archive", name)], BEGIN, name)
    hours = [{"hour": BEGIN + n * HOUR, "messages": n + 1, "bytes": 2048 * n} for n in range(3)]
    account = {"token": name, "day": date(2026, 11, 21), "sent": 9, "dropped": 1}
    return {
        "volume": volume_page(
            about,
            {"messages": 6, "bytes": 6144, "hours": hours},
            [(name, 4)],
            [(name, [(BEGIN, 4)]), ("b", [(BEGIN, 1)])],
        ),
        "tags": tags_page(
            about, {"messages": 6, "tags": 40, "tags_per_message": 1.5}, [(name, 4), ("b", 1)]
        ),
        "cooccurrence": cooccurrence_page(
            about,
            {"messages": 6, "tags": 2, "among": 2, "pairs": 1, "floor": 3},
            [{"tag": name, "other": "b", "messages": 2, "jaccard": 0.25, "lift": 1.5}],
        ),
        "match": match_page(
            about, {"subscriptions": 2, "matches": 5, "never_matched": 1}, [(name, 5), ("b", 0)]
        ),
        "coverage": coverage_page(
            about,
            {"subscriptions": 2, "never_matched": 1, "unheard_tags": 1, "messages": 6,
             "to_nobody": 2, "mean_fanout": 1.5, "largest_fanout": 3},
            [{"kind": "subscription", "name": name, "messages": 0},
             {"kind": "tag", "name": name, "messages": 2},
             {"kind": "fanout", "name": "0", "messages": 2},
             {"kind": "fanout", "name": "3", "messages": 4}],
        ),
        "billing": billing_page(
            about,
            {"sent": 9, "dropped": 1, "bytes": 100, "tokens": 1, "days": 1},
            [{**account, "bytes": 100, "subscriptions": 2}],
        ),
        "drops": drops_page(
            about,
            {"sent": 9, "dropped": 1, "tokens": 1, "subscriptions": 1},
            [{**account, "minutes": 1}],
            [{"token": name, "subscription": name, "sent": 9, "dropped": 1}],
        ),
        "tokens": tokens_page(
            about,
            {"tokens": 1, "grants": 2, "subscriptions": 1, "idle_tokens": 0, "near_the_edge": 1,
             "beyond_the_edge": 0},
            [(name, name, False)],
            [(name, name, [name], [name], 3)],
        ),
    }  # fmt: skip


@pytest.mark.parametrize("report", list(pages("x")))
def test_no_name_is_markup(report: str) -> None:
    evil = Reader(render(pages(EVIL)[report]))
    tame = Reader(render(pages("tame")[report]))
    assert evil.tags == tame.tags
    assert any(EVIL in text for text in evil.text)


@pytest.mark.parametrize(
    ("report", "shown"),
    [
        ("volume", ["6", "6 KiB", "2026-11-21 02:00:00 UTC"]),
        ("tags", ["40", "66.7 %", "And 38 more."]),
        ("cooccurrence", ["25", "25 %", "1.5", "none of these met more than 3 times."]),
        ("match", ["5", "50 %", "4 to 7"]),
        ("coverage", ["33.3 %", "2 of 6 messages", "2 to 3"]),
        ("billing", ["9", "100 B", "2026-11-21"]),
        ("drops", ["10 %"]),
        ("tokens", ["of 2", "of 1 subscriptions"]),
    ],
)
def test_a_page_shows_the_figures_of_its_job(report: str, shown: list[str]) -> None:
    reader = Reader(render(pages("tame")[report]))
    text = "\n".join(reader.text).replace("\N{NO-BREAK SPACE}", " ")
    for each in shown:
        assert each in text


def test_every_page_says_what_it_is_about_and_what_it_leaves_out() -> None:
    for page in pages("tame").values():
        text = "\n".join(Reader(render(page)).text)
        assert "What this page doesn't show" in text
        assert "2026-11-21 00:00:00 UTC" in text
        assert "archive" in text


def test_a_report_of_nothing_is_a_page_as_well() -> None:
    about = About([], BEGIN, "x")
    empty: list[Any] = [
        volume_page(about, {"messages": 0, "bytes": None, "hours": []}, [], []),
        tags_page(about, {"messages": 0, "tags": 0, "tags_per_message": 0.0}, []),
        match_page(about, {"subscriptions": 0, "matches": 0}, []),
        billing_page(about, {"sent": 0, "dropped": 0, "bytes": 0, "tokens": 0, "days": 0}, []),
        drops_page(about, {"sent": 0, "dropped": 0, "tokens": 0, "subscriptions": 0}, [], []),
    ]
    for page in empty:
        assert "<h1>" in render(page)


def test_a_histogram_puts_sizes_together_and_leaves_no_gap() -> None:
    assert histogram([(0, 5), (1, 2), (2, 1), (3, 1), (9, 4)]) == [
        ("0", 5),
        ("1", 2),
        ("2 to 3", 2),
        ("4 to 7", 0),
        ("8 to 15", 4),
    ]
    assert histogram([]) == []
