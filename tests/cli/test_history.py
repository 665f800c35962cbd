"""`mist history …` on a log that this process fills."""

import json
import subprocess
import sys

import click.testing
import pytest
import trio

from mist.cli.history import history
from mist.history.opening import open_history
from tests.history.messages import one, publication, run, some
from tests.processes import environment


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/history.db"


@pytest.fixture
def filled(url):
    async def fill():
        async with await open_history(url) as log:
            await log.append([some("a,b", 3, time=1_700_000_000.0, publisher="p")])
            await log.append([one("c", b"\xff\x1b[31m", time=1_700_000_001.0)])
            meta = {"reply": b"x"}
            await log.append(
                [one("a", "the newest", time=1_700_000_002.0, audience="u=1", meta=meta)]
            )

    trio.run(fill)
    return url


def call(*arguments, **environment):
    return click.testing.CliRunner().invoke(history, arguments, env=environment)


def lines(result):
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_show_prints_a_json_line_for_each_match(filled):
    found = lines(call("show", "a,b", "c", "--history", filled))
    assert [each["id"] for each in found] == [1, 2, 3, 4]
    assert found[0] == {
        "id": 1,
        "time": 1_700_000_000.0,
        "tags": ["a", "b"],
        "data": "0",
        "publisher": "p",
    }
    assert found[3]["data64"] == "/xtbMzFt"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [1, 2, 3, 4, 5]),
        (["--since", "3"], [4, 5]),
        (["--since=-2"], [4, 5]),
        (["a", "--since=-2"], [3, 5]),
        (["--limit", "2"], [1, 2]),
        (["--since", "99"], []),
        (["nothing"], []),
    ],
)
def test_show_begins_and_ends_where_it_is_told(filled, options, expected):
    assert [each["id"] for each in lines(call("show", "--history", filled, *options))] == expected


def test_tail_shows_the_last(filled):
    found = lines(call("tail", "-n", "2", "--history", filled))
    assert [each["id"] for each in found] == [4, 5]
    assert found[1]["audience"] == "u=1"
    assert found[1]["meta"] == {"reply": {"data": "x"}}
    assert lines(call("tail", "-n", "0", "--history", filled)) == []


def test_tail_follows_what_comes(filled):
    program = "from mist.cli.history import history; history()"
    command = [sys.executable, "-c", program, "tail", "b", "-n1", "--follow", "--history", filled]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as tail:
        try:
            assert json.loads(tail.stdout.readline())["id"] == 3

            async def append():
                async with await open_history(filled) as log:
                    await log.append([one("a"), one("b,c", "news")])

            trio.run(append)
            line = json.loads(tail.stdout.readline())
            assert (line["id"], line["data"]) == (7, "news")
        finally:
            tail.kill()


def test_stats_as_json_and_as_text(filled):
    (found,) = lines(call("stats", "--json", "--history", filled))
    assert (found["first"], found["newest"], found["messages"], found["blocks"]) == (1, 5, 5, 3)
    assert found["durability"] == "power"
    assert found["oldest_time"] == "2023-11-14T22:13:20+00:00"
    text = call("stats", "--history", filled).output
    assert found["epoch"] in text
    assert "survives a power cut" in text


def test_stats_of_an_empty_log(url):
    async def make():
        await (await open_history(url)).close()

    trio.run(make)
    assert "-" in call("stats", "--history", url).output


def test_trim_removes_what_nothing_keeps(filled):
    result = call("trim", "--keep-count", "1", "--keep", "b=1", "--history", filled)
    assert result.output == "3 messages removed\n"
    assert [each["id"] for each in lines(call("show", "--history", filled))] == [3, 5]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--keep", "b=1"],
        ["--keep-age", "7"],
        ["--keep-age", "week"],
        ["--keep-bytes", "many"],
        ["--keep-count", "-1"],
        ["--keep-count", "1", "--keep", "b"],
        ["--keep-count", "1", "--keep", "=1"],
        ["--keep-count", "1", "--keep", "b=1,2"],
    ],
)
def test_trim_with_a_limit_that_is_none_is_refused(filled, options):
    result = call("trim", "--history", filled, *options)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert len(lines(call("show", "--history", filled))) == 5


def test_new_epoch_is_another(filled):
    (before,) = lines(call("stats", "--json", "--history", filled))
    result = call("new-epoch", "--history", filled)
    assert result.exit_code == 0
    (after,) = lines(call("stats", "--json", "--history", filled))
    assert result.output.strip() == after["epoch"] != before["epoch"]


def test_reading_goes_on_beside_a_server_and_changing_does_not(filled):
    results = {}

    async def serve():
        async with await open_history(filled) as log:
            await log.append([publication(run("live", "x"))])
            for words in (["show", "live"], ["verify"], ["new-epoch"], ["trim", "--keep-count=0"]):
                arguments = [*words, "--history", filled]
                results[words[0]] = await trio.to_thread.run_sync(lambda a=arguments: call(*a))

    trio.run(serve)
    assert [each["id"] for each in lines(results["show"])] == [6]
    assert results["verify"].output == "6 messages, no damage\n"
    for word in ("new-epoch", "trim"):
        assert results[word].exit_code == 2
        assert "in use by another process" in results[word].output


def test_verify_names_what_is_damaged(filled, tmp_path):
    path = tmp_path / "history.db"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"the newest", b"the n3west"))
    result = call("verify", "--history", filled)
    assert result.exit_code == 1
    assert result.output.startswith("5-5: ")


def test_what_changes_or_checks_a_log_says_so_in_json(filled, tmp_path):
    assert lines(call("verify", "--json", "--history", filled)) == [{"messages": 5, "problems": []}]
    trimmed = call("trim", "--keep-count", "1", "--keep", "b=1", "--json", "--history", filled)
    assert lines(trimmed) == [{"removed": 3}]
    (made,) = lines(call("new-epoch", "--json", "--history", filled))
    (found,) = lines(call("stats", "--json", "--history", filled))
    assert made == {"epoch": found["epoch"]}
    path = tmp_path / "history.db"
    path.write_bytes(path.read_bytes().replace(b"the newest", b"the n3west"))
    result = call("verify", "--json", "--history", filled)
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert found["messages"] is None
    assert [each["first"] for each in found["problems"]] == [5]


@pytest.mark.parametrize(
    "options", [["--history", "memory://"], ["--history", "x"], ["--data", "/nowhere/at/all"]]
)
def test_log_that_is_not_there_is_one_line(options):
    result = call("stats", *options)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_folder_comes_from_the_environment(filled, tmp_path):
    assert len(lines(call("show", MIST_DATA=str(tmp_path)))) == 5
    assert len(lines(call("show", MIST_HISTORY=filled))) == 5
