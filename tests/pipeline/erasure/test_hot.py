"""Erasing in the log of a server: in steps, however long it takes, and what a failure leaves."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trio
from click.testing import CliRunner, Result

from mist.bench.process import cpu_seconds
from mist.cli import main
from mist.cli.pipeline.runner import Run
from mist.history import Durability, Publication
from mist.history.erasure import Erasure
from mist.history.opening import open_history
from mist.pipeline.erasure.hot import erase_by_server
from mist.pipeline.errors import JobFailed
from mist.pipeline.source.address import Address
from mist.pipeline.source.errors import ServerRefused
from mist.wire import record
from tests.pipeline.archives import Told, make_archive
from tests.pipeline.source.fake import Fake, Handler, faking, rows
from tests.processes import serving

ERASURE = Erasure(tags=frozenset({"user:1"}))


class Steps:
    """Erases a message in each step of 100 ids, and seals as many: a fault of a `Fake`."""

    def __init__(self, fails_at: int | None = None, *, archive: bool = True) -> None:
        self.erased: list[int] = []
        self.sealed = 0
        self.fails_at = fails_at
        self.archive = archive

    def __call__(self, handler: Handler) -> bool:
        parts = urlsplit(handler.path)
        query = {name: int(values[0]) for name, values in parse_qs(parts.query).items()}
        if parts.path == "/v1/log/erase":
            self.erase(handler, query["after"], query["seconds"])
        elif parts.path == "/v1/log/seal":
            self.seal(handler, query["seconds"])
        else:
            return False
        return True

    def erase(self, handler: Handler, after: int, seconds: int) -> None:
        assert json.loads(handler.body) == {"tags": ["user:1"]}
        assert seconds > 0
        if after == self.fails_at:
            handler.answer(500, {"code": "broken", "detail": "it broke"})
            return
        self.erased.append(after + 1)
        further = after + 100 if after < 900 else None
        answer = {"erased": 1, "first": after + 1, "last": after + 1, "after": further}
        handler.answer(200, answer)

    def seal(self, handler: Handler, seconds: int) -> None:
        assert seconds > 0
        if not self.archive:
            handler.answer(409, {"code": "archive_off", "detail": "no archive"})
            return
        self.sealed += 400
        handler.answer(200, {"sealed": min(self.sealed, 1000)})


@pytest.fixture
def fake() -> Iterator[Fake]:
    with faking() as fake:
        fake.log = rows(1, 1000)
        yield fake


def test_steps_are_added_up_and_each_is_reported(fake: Fake) -> None:
    steps = Steps()
    fake.faults.append(steps)
    reports: list[dict[str, Any]] = []
    lines: list[str] = []
    address = Address.parse(fake.url, None, None)
    told = erase_by_server(address, ERASURE, report=reports.append, progress=lines.append)
    assert told == {"where": address.name, "messages": 10, "first": 1, "last": 901}
    assert [each["messages"] for each in reports] == list(range(11))
    assert reports[-1] == told
    assert lines[0] == "log: 100 of 1,000 scanned, 1 erased"
    assert lines[-2:] == ["sealing: 400 of 1,000", "sealing: 800 of 1,000"]
    assert steps.sealed == 1200


def test_a_server_without_an_archive_has_nothing_to_seal(fake: Fake) -> None:
    fake.faults.append(Steps(archive=False))
    assert erase_by_server(Address.parse(fake.url, None, None), ERASURE)["messages"] == 10


def test_after_a_failure_it_is_known_what_was_erased(fake: Fake) -> None:
    fake.faults.append(Steps(fails_at=300))
    reports: list[dict[str, Any]] = []
    with pytest.raises(ServerRefused, match="500"):
        erase_by_server(Address.parse(fake.url, None, None), ERASURE, report=reports.append)
    assert (reports[-1]["messages"], reports[-1]["first"], reports[-1]["last"]) == (3, 1, 201)


def erase(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    monkeypatch.chdir(folder)
    make_archive(folder / "archive", [Told("user:1")])
    arguments = ["pipeline", "erase", "--tag", "user:1", "--archive", "archive", *options]
    return CliRunner().invoke(main, arguments, prog_name="mist")


def test_a_failure_leaves_a_receipt_of_what_is_gone(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: None
) -> None:
    fake.faults.append(Steps(fails_at=300))
    done = erase(tmp_path, monkeypatch, "--url", fake.url, "--receipt", "gone.json")
    assert done.exit_code == 1
    receipt = json.loads((tmp_path / "gone.json").read_text())
    assert receipt["complete"] is False
    assert receipt["ended"] is None
    assert "500 broken: it broke" in receipt["failure"]
    assert receipt["hot_log"]["messages"] == 3
    assert receipt["archive"]["tables"] == []
    said = done.stderr.splitlines()
    assert said[-2] == (
        "not complete: 3 messages of the log and 0 rows of files are erased; "
        "run it again for the rest"
    )
    assert said[-1].startswith("mist pipeline erase: ")
    assert "500 broken" in said[-1]


def test_a_failure_of_spark_leaves_one_too(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: None
) -> None:
    def fail(_: Run) -> None:
        raise JobFailed("Spark doesn't start")

    fake.faults.append(Steps())
    monkeypatch.setattr(Run, "spark", fail)
    done = erase(tmp_path, monkeypatch, "--url", fake.url)
    assert done.exit_code == 1
    receipt = json.loads(done.stdout)
    assert receipt["complete"] is False
    assert receipt["hot_log"]["messages"] == 10


def test_input_that_is_wrong_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: None
) -> None:
    done = erase(tmp_path, monkeypatch, "--url", "nonsense", "--receipt", "gone.json")
    assert done.exit_code == 2
    assert not (tmp_path / "gone.json").exists()


# A log of 1 GiB


async def _fill(url: str, size: int) -> int:
    """Messages of about a kilobyte, each tagged with one of a thousand users."""
    chance = random.Random(1)
    letters = bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=1 << 20))
    lists = [f"order,user:{n}".encode() for n in range(1000)]
    stored = count = 0
    async with await open_history(url, durability=Durability.PROCESS) as log:
        while stored < size:
            runs = []
            for _ in range(500):
                place = chance.randrange(len(letters) - 2000)
                data = letters[place : place + chance.randint(200, 1800)]
                tags = chance.choice(lists)
                runs.append((tags, record(tags, data), 1))
                stored += len(data)
            await log.append([Publication.of_runs(runs, time.time(), "p")])
            count += 500
            while await log.compact():
                pass
    return count


@pytest.mark.slow
def test_a_log_of_a_gibibyte_is_erased_however_long_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = trio.run(_fill, f"sqlite:///{tmp_path}/history.db", 1 << 30)
    options = ("--keep-age=365d", "--keep-bytes=8GiB", "--listen", "http://127.0.0.1:0")
    with serving(tmp_path, *options) as process:
        (url,) = process.urls
        address = Address.parse(url, None, None)
        for tag, least in (("nobody", 0), ("user:1", count // 2000), ("order", count * 9 // 10)):
            lines: list[str] = []
            began, before = time.monotonic(), cpu_seconds(process.popen.pid)
            erasure = Erasure(tags=frozenset({tag}))
            told = erase_by_server(address, erasure, progress=lines.append)
            took, after = time.monotonic() - began, cpu_seconds(process.popen.pid)
            assert least <= told["messages"] <= count
            assert before is not None
            assert after is not None
            with capsys.disabled():
                print(
                    f"\n{tag}: {told['messages']:,} of {count:,} messages erased in {took:.1f} s, "
                    f"{after - before:.1f} CPU s of the server, {len(lines)} lines of progress"
                )
