"""The commands of `mist pipeline`, in the session that all these tests share; as processes of
their own a few are in `tests/cli/test_pipeline.py`."""

import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner, Result

from mist.archive import Archive
from mist.archive.segments import read_segment
from mist.cli import main
from mist.pipeline.errors import BadInput
from mist.pipeline.source.address import Address
from mist.pipeline.source.client import Client
from tests.pipeline.archives import Told, add_accounts, make_archive
from tests.processes import serving

MESSAGES = 60
TOLD = [Told("order,eu" if n % 3 else "news", b"%d" % n) for n in range(MESSAGES)]

Mist = Callable[..., Result]


@pytest.fixture
def mist(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mist:
    """Runs `mist pipeline …` in an empty folder, and gives what came of it."""

    @contextmanager
    def shared(*args: Any, **options: Any) -> Iterator[Any]:
        yield spark

    return runner(shared, tmp_path, monkeypatch)


@pytest.fixture
def early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mist:
    """The same for commands that end before Spark is started."""

    def session(*args: Any, **options: Any) -> Any:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("mist.pipeline.source.client.FIRST_TIMEOUT", 0.1)
    return runner(session, tmp_path, monkeypatch)


def runner(session: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Mist:
    monkeypatch.setattr("mist.pipeline.session.session", session)
    monkeypatch.chdir(folder)
    for name in [each for each in os.environ if each.startswith("MIST_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["pipeline", *arguments], prog_name="mist")

    return run


@pytest.fixture(scope="module")
def url(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a secret; nothing else is published there."""
    folder = tmp_path_factory.mktemp("server")
    listen = ("--listen", "http://127.0.0.1:0")
    with serving(folder, "--secret", "s3cret", listen=listen) as process:
        yield process.urls[0]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return make_archive(tmp_path / "archive", TOLD, segment=10)


def summary(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)  # and nothing else
    return found


def refused(result: Result, code: int, says: str) -> None:
    assert result.exit_code == code, result.output
    assert says in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def position(url: str) -> int:
    with Client(Address.parse(url, "s3cret", None)) as client:
        return int(client.request("GET", "/v1/log/position").json()["newest"])


def log_behind(url: str, after: int) -> list[dict[str, Any]]:
    import pyarrow as pa

    with Client(Address.parse(url, "s3cret", None)) as client:
        answer = client.request("GET", "/v1/log", {"after": after})
    rows: list[dict[str, Any]] = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    return rows


# usage accounting


@pytest.mark.parametrize(
    "command", [("report", "billing"), ("report", "drops"), ("audit", "tokens")]
)
def test_it_is_said_up_to_when_accounts_are_complete(
    mist: Mist, archive: Archive, command: tuple[str, ...], tmp_path: Path
) -> None:
    given = (*command, "--archive", "archive")
    assert summary(mist(*given, "--json"))["accounted_up_to"] == "nothing yet"
    add_accounts(
        archive,
        "deliveries",
        [{"minute": 59, "token": "t", "subscription": "a", "sent": 1, "dropped": 0, "bytes": 9}],
    )
    assert "accounted up to: 2026-11-21T01:00+00:00\n" in mist(*given).stdout
    done = summary(mist(*given, "--html", "page.html", "--json"))
    assert done["accounted_up_to"] == "2026-11-21T01:00+00:00"
    page = (tmp_path / "page.html").read_text()
    assert re.search(r"accounted up to</\w+><\w+[^>]*>2026-11-21T01:00", page)


def test_an_export_tells_the_session_how_many_rows_pass_through_java(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    def session(*args: Any, rows: int = 0, **options: Any) -> Any:
        told.append(rows)
        raise BadInput("enough")

    run = runner(session, tmp_path, monkeypatch)
    refused(run("export", "--archive", "archive", "--out", "rows"), 2, "enough")
    refused(run("export", "--archive", "archive", "--out", "rows", "--from", "41"), 2, "enough")
    refused(run("report", "volume", "--archive", "archive"), 2, "enough")
    assert told == [MESSAGES, 20, 0]


# wrong input, which is told before Spark is started


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            ("report", "tags", "--html", "no/page.html"),
            "--html no/page.html: there is no directory",
        ),
        (("report", "billing", "--html", "no/page.html"), "--html no/page.html: there is no dir"),
        (
            ("audit", "tokens", "--html", "no/page.html"),
            "--html no/page.html: there is no directory",
        ),
        (
            ("erase", "--tag", "news", "--no-log", "--receipt", "no/r"),
            "--receipt no/r: there is no",
        ),
        (("erase", "--tag", "a b", "--no-log"), "Invalid tag 'a b': a tag has no spaces"),
        (("report", "tags", "--subscribe", "x; a b"), "subscribe: Invalid tag 'a b': a tag has no"),
        (
            ("match", "--subscriptions", "asked"),
            "asked, line 2: Invalid tag 'a b': a tag has no sp",
        ),
        (("report", "coverage", "--subscriptions", "asked"), "asked, line 2: Invalid tag 'a b': a"),
    ],
)
def test_it_names_its_cause_and_changes_nothing(
    early: Mist, archive: Archive, tmp_path: Path, command: tuple[str, ...], says: str
) -> None:
    (tmp_path / "asked").write_text("good,b\na b,c\n")
    before = archive.messages.current()
    refused(early(*command, "--archive", "archive"), 2, says)
    assert archive.messages.current() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "asked"]


def test_a_receipt_that_can_not_be_written_is_shown(
    mist: Mist, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("mist.cli.pipeline.maintenance.write_file", full)
    result = mist("erase", "--archive", "archive", "--tag", "news", "--no-log", "--receipt", "r")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "mist pipeline erase: r: No space left on device"
    assert json.loads(result.stdout)["complete"] is True
    assert archive.messages.current().rows == MESSAGES - MESSAGES // 3


# replay

REPLAY = ("replay", "--archive", "archive", "--json", "--to-secret", "s3cret")


def test_replay_publishes_a_selection_in_its_order(mist: Mist, archive: Archive, url: str) -> None:
    before = position(url)
    done = summary(mist(*REPLAY, "--to", url, "--subscribe", "order", "--from", "11"))
    published = log_behind(url, before)
    assert [row["data"] for row in published] == [b"%d" % n for n in range(10, MESSAGES) if n % 3]
    assert all(row["tags"] == ["eu", "order"] for row in published)
    assert done["messages"] == len(published)


@pytest.mark.parametrize("rate", [(), ("--rate", "100000")])
def test_replay_under_a_name_is_done_once(
    mist: Mist, archive: Archive, url: str, rate: tuple[str, ...], tmp_path: Path
) -> None:
    before = position(url)
    for _ in range(2):
        done = summary(mist(*REPLAY, "--to", url, "--txn", f"once{len(rate)}", *rate))
        assert done["txn"] == f"once{len(rate)}"
    assert [row["data"] for row in log_behind(url, before)] == [each.data for each in TOLD]


def test_replay_tells_a_person_how_many(mist: Mist, archive: Archive, url: str) -> None:
    result = mist(*REPLAY[:3], "--to-secret", "s3cret", "--to", url)
    assert result.exit_code == 0
    assert "messages: 60\n" in result.stdout
    assert "publishing to 127.0.0.1:" in result.stderr
    assert "s3cret" not in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--to", "nonsense"), 2, "url: not one of a server"),
        (("--to", "http://x:1", "--to-token", "t"), 2, "secret and token: give one"),
        (("--to", "URL", "--txn", "a b"), 2, "txn: 1 to 128 of"),
        (("--to", "URL", "--txn", ""), 2, "txn: give a name"),
        (("--to", "URL", "--txn", "x" * 127, "--rate", "10"), 2, "txn: 1 to 128 of"),
        (("--to", "URL", "--rate", "0"), 2, "0.0 is not in the range"),
        (("--to", "URL", "--rate", "fast"), 2, "'fast' is not a valid float"),
        (("--to", "URL", "--subscribe", "nobody"), 2, "nothing was published"),
        (("--to", "URL", "--from", "9", "--until", "5"), 2, "nothing lies from 9 until 5"),
        (("--to", "URL", "--to-secret", "wrong"), 1, "answered 401"),
    ],
)
def test_replay_of_what_can_not_be_publishes_nothing(
    mist: Mist, archive: Archive, url: str, arguments: tuple[str, ...], code: int, says: str
) -> None:
    before = position(url)
    refused(mist(*REPLAY, *(url if each == "URL" else each for each in arguments)), code, says)
    assert position(url) == before


NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "command",
    [
        ("replay", "--archive", "archive", "--to", NOBODY),
        ("report", "volume", "--url", NOBODY),
        ("report", "tags", "--url", NOBODY, "--out", "rows"),
        ("export", "--url", NOBODY, "--out", "rows"),
        ("stream", "--url", NOBODY, "--to", "lake"),
    ],
)
def test_a_server_that_is_not_there_is_told_before_spark_is_started(
    early: Mist, archive: Archive, tmp_path: Path, command: tuple[str, ...]
) -> None:
    refused(early(*command), 3, "127.0.0.1:1 gave no answer for 0 s: Connection refused")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize(
    "command",
    [
        ("report", "volume", "--url", "URL", "--secret", "wrong"),
        ("export", "--url", "URL", "--secret", "wrong", "--out", "rows"),
        ("stream", "--url", "URL", "--secret", "wrong", "--to", "lake"),
    ],
)
def test_a_wrong_secret_is_told_before_spark_is_started(
    early: Mist, url: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    refused(early(*(url if each == "URL" else each for each in command)), 1, "answered 401")
    assert not list(tmp_path.iterdir())


# stream

STREAM = ("stream", "--secret", "s3cret", "--to", "lake", "--json", "--once")


def test_stream_once_writes_what_is_there_and_goes_on_later(
    mist: Mist, archive: Archive, url: str, tmp_path: Path
) -> None:
    summary(mist(*REPLAY, "--to", url))
    begin = ("--from", str(position(url) - MESSAGES + 1))
    done = summary(mist(*STREAM, "--url", url, *begin))
    assert done["messages"] == MESSAGES
    assert summary(mist(*STREAM, "--url", url, *begin))["messages"] == 0
    summary(mist(*REPLAY, "--to", url, "--subscribe", "news"))
    more = summary(mist(*STREAM, "--url", url))
    assert more["messages"] == MESSAGES // 3
    published = log_behind(url, position(url) - MESSAGES - MESSAGES // 3)
    names = list(published[0])
    lake = ds.dataset(tmp_path / "lake", partitioning="hive").to_table(names).sort_by("id")
    assert lake.to_pylist() == published


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "give --server"),
        (("--url", "URL", "--until", "5"), 2, "a stream has no end"),
        (("--url", "URL", "--every", "-1"), 2, "-1.0 is not in the range"),
        (("--url", "URL", "--most", "0"), 2, "0 is not in the range"),
        (("--url", "URL", "--from", "yesterday"), 2, "not a time: 'yesterday'"),
        (("--url", "URL", "--to", "full"), 2, "full"),
        (("--url", "URL", "--token", "t", "--secret", "s3cret"), 2, "subscribe: is required"),
    ],
)
def test_stream_of_what_can_not_be_writes_nothing(
    mist: Mist, url: str, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    refused(mist(*STREAM, *(url if each == "URL" else each for each in arguments)), code, says)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "notes.txt"]


# compact


def test_compact_makes_few_of_many(mist: Mist, archive: Archive) -> None:
    before = [read_segment(archive.messages, each) for each in archive.messages.current().segments]
    done = summary(mist("compact", "--archive", "archive", "--json"))
    assert (done["segments_before"], done["segments_after"]) == (6, 1)
    (segment,) = archive.messages.current().segments
    after = read_segment(archive.messages, segment).to_pylist()
    assert after == [row for each in before for row in each.to_pylist()]
    result = mist("compact", "--archive", "archive")
    assert result.exit_code == 0
    assert "segments after: 1\n" in result.stdout


def test_compact_of_a_stretch_leaves_the_rest(mist: Mist, archive: Archive) -> None:
    summary(mist("compact", "--archive", "archive", "--json", "--from", "11", "--until", "41"))
    assert [each.rows for each in archive.messages.current().segments] == [10, 30, 10, 10]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--archive", "nowhere"), "no archive at nowhere"),
        (("--archive", "archive", "--rows", "0"), "0 is not in the range"),
        (("--archive", "archive", "--from", "soon"), "not a time: 'soon'"),
        (("--archive", "archive", "--from", "5", "--until", "5"), "nothing lies from 5 until 5"),
    ],
)
def test_compact_of_what_can_not_be_changes_nothing(
    mist: Mist, archive: Archive, arguments: tuple[str, ...], says: str
) -> None:
    before = archive.messages.current()
    refused(mist("compact", *arguments), 2, says)
    assert archive.messages.current() == before


# others


def test_nothing_selected_is_an_error_and_leaves_nothing(
    mist: Mist, archive: Archive, tmp_path: Path
) -> None:
    report = ("report", "tags", "--archive", "archive", "--subscribe", "nobody", "--out", "rows")
    refused(mist(*report), 2, "no message is selected")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


def test_what_a_token_published_is_erased_by_its_id(mist: Mist, tmp_path: Path) -> None:
    token = "0123456789abcdef"
    told = [Told("a", b"theirs", publisher=token), Told("a", b"ours"), Told("b", publisher=token)]
    archive = make_archive(tmp_path / "archive", told).messages
    erase = ("erase", "--archive", "archive", "--token", token, "--no-log", "--receipt", "r.json")
    result = mist(*erase)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "r.json").read_text())
    (segment,) = archive.current().segments
    assert read_segment(archive, segment, ["data"]).to_pylist() == [{"data": b"ours"}]
    assert len(list(tmp_path.glob("archive/date=*/*.parquet"))) == 1
