"""Storing and replaying from the command line, against a real server."""

import json
from pathlib import Path

import pytest

from tests.processes import Process, mist, serving


@pytest.fixture(scope="module")
def serve_options() -> tuple[str, ...]:
    return ("--history", "memory://", "--latest", "k:*")


def run(process: Process, *arguments: str) -> tuple[int, str, str]:
    done = mist(*arguments, MIST_HOST=process.urls[0])
    return done.returncode, done.stdout, done.stderr


def replay(process: Process, tags: str, since: str, count: int) -> list[object]:
    code, out, err = run(process, "subscribe", tags, "--since", since, "--count", str(count))
    assert (code, err) == (0, "")
    return [json.loads(line)["data"] for line in out.splitlines()]


def test_what_is_stored_is_replayed_from_any_place(process: Process) -> None:
    ids = []
    for n in range(3):
        code, out, _ = run(process, "publish", "old,x", str(n), "--store")
        assert code == 0
        ids.append(int(out))
    assert ids == sorted(set(ids))
    assert replay(process, "old", "0", 3) == ["0", "1", "2"]
    assert replay(process, "old", str(ids[0]), 2) == ["1", "2"]
    assert replay(process, "old,x", "-1", 1) == ["2"]
    _, out, _ = run(process, "subscribe", "old", "--since", "-1", "--count", "1")
    assert json.loads(out) == {"id": ids[-1], "tags": ["old", "x"], "data": "2"}


def test_the_latest_values_are_replayed(process: Process) -> None:
    for tags, data in (("k:1", "1"), ("k:2", "2"), ("k:1", "3")):
        run(process, "publish", f"latest,{tags}", data, "--store")
    assert replay(process, "latest", "latest=k:*", 2) == ["2", "3"]
    code, _, err = run(process, "subscribe", "latest", "--since", "latest=other:*")
    assert code == 1
    assert "Latest values are off" in err


def test_a_gap_is_said(process: Process) -> None:
    run(process, "publish", "gap", "kept", "--store")
    code, out, err = run(process, "subscribe", "gap", "--since", "other:5", "--count", "1")
    assert (code, json.loads(out)["data"]) == (0, "kept")
    assert "missing" in err


def test_what_is_no_place_is_bad_usage(process: Process) -> None:
    for since in ("x", "a:b", "e:-1", "1.5", "latest=", "latest=a,b"):
        code, _, err = run(process, "subscribe", "a", "--since", since)
        assert code == 2
        assert err
        assert "Traceback" not in err
    assert run(process, "publish", "a", "--stdin", "--store")[0] == 2


def test_without_a_history_the_servers_word_and_code_1(tmp_path: Path) -> None:
    with serving(tmp_path, "--history", "none") as process:
        for arguments in (["publish", "a", "x", "--store"], ["subscribe", "a", "--since", "0"]):
            code, out, err = run(process, *arguments)
            assert (code, out) == (1, "")
            assert "History is off" in err
