"""Modules of the dashboard on their own."""

import json

import pytest

from tests.chromium import Page

WIRE = (
    ": comment\n\nevent: ready\ndata: {}\n\nid: e:1\ndata: one\ndata:two\n\n"
    "event: gap\r\ndata: \u00e4\u2028\r\rdata\n\nid: e:2\nevent: no data\n\ndata: last\n\nid: never"
)


EVENTS = [
    {"event": "ready", "data": "{}", "id": ""},
    {"event": "message", "data": "one\ntwo", "id": "e:1"},
    {"event": "gap", "data": "\u00e4\u2028", "id": "e:1"},
    {"event": "message", "data": "", "id": "e:1"},
    {"event": "message", "data": "last", "id": "e:2"},
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_events_are_read_however_they_are_cut(live: Page, size: int) -> None:
    found = await live.evaluate(
        "import('/static/dashboard/events.js').then(({EventReader}) => {"
        f"const text = {json.dumps(WIRE)}; const reader = new EventReader(); const found = [];"
        f"for (let at = 0; at < text.length; at += {size})"
        f"  found.push(...reader.feed(text.slice(at, at + {size})));"
        "return found; })"
    )
    assert found == EVENTS


NUMBERS = [
    ("compact(0)", "0"),
    ("compact(0.04)", "0.0"),
    ("compact(9.94)", "9.9"),
    ("compact(9.96)", "10"),
    ("compact(999)", "999"),
    ("compact(999.6)", "1.00k"),
    ("compact(12345)", "12.3k"),
    ("compact(999960)", "1.00M"),
    ("compact(4e12)", "4.00T"),
    ("compact(NaN)", "\N{EN DASH}"),
    ("compact(undefined)", "\N{EN DASH}"),
    ("count(1234567)", "1,234,567"),
    ("count(null)", "\N{EN DASH}"),
    ("brief(99999)", "99,999"),
    ("brief(100000)", "100k"),
    ("bytes(0)", "0 B"),
    ("bytes(1500)", "1.50 kB"),
    ("bytes(null)", "\N{EN DASH}"),
    ("milliseconds(0.01)", "0"),
    ("milliseconds(1.23)", "1.2"),
    ("milliseconds(1234)", "1,234"),
    ("duration(0.4)", "0 s"),
    ("duration(59)", "59 s"),
    ("duration(3600)", "1 h"),
    ("duration(90061)", "1 d 1 h"),
    ("several(1, 'message')", "1 message"),
    ("several(2000, 'message')", "2,000 messages"),
]


async def test_numbers_are_written_for_people(live: Page) -> None:
    await live.evaluate("import('/static/dashboard/format.js').then((it) => { formats = it; })")
    found = [(call, await live.evaluate(f"formats.{call}")) for call, _ in NUMBERS]
    assert found == NUMBERS
