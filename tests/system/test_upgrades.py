"""Data of former versions: today's server starts with it, and has all of it.

Those data directories were made by the servers of then, and left behind by a `kill -9`; see
`former_data`. Data of a later version is refused in one line, and stays as it is.
"""

import re
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
import trio

from mist.attributes import Attributes
from mist.auth.sqlite import REGISTRY
from mist.client import sync
from mist.history.opening import open_history
from mist.history.record import Problem
from mist.history.sqlite.database import LOG
from tests.processes import mist, serving
from tests.system.former_data import (
    ATTRIBUTES,
    COUNT,
    FORMER,
    ROOM,
    TOKEN,
    message,
)

# Of the time in which no server ran, 30 days count at most.
OPTIONS = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0", "--keep-age", "90d")


def unpacked(name: str, folder: Path) -> Path:
    data = folder / "data"
    with tarfile.open(FORMER / f"{name}.tar.xz") as archive:
        archive.extractall(data, filter="data")
    for path in data.iterdir():
        path.chmod(0o600)
    return data


def versions(data: Path) -> tuple[int, int]:
    """Of the schemas of the history and of the tokens."""
    found = []
    for name in ("history.db", "tokens.db"):
        with closing(sqlite3.connect(data / name)) as connection:
            found.append(connection.execute("PRAGMA user_version").fetchone()[0])
    return found[0], found[1]


@pytest.mark.parametrize("name", sorted(path.name[:-7] for path in FORMER.glob("*.tar.xz")))
def test_a_server_has_all_that_a_former_one_left(tmp_path: Path, name: str) -> None:
    data = unpacked(name, tmp_path)
    history, *_ = re.findall(r"\d+", name)
    assert versions(data)[0] == int(history)
    kept = COUNT + len(ROOM) + 1
    with serving(data, *OPTIONS) as server:
        tcp = server.urls[0]
        with (
            sync.connect(tcp) as client,
            client.subscribe(["order"], since=0, timeout=60) as messages,
        ):
            for number in range(COUNT):
                tags, text = message(number)
                found = next(messages)
                assert (found.id, sorted(found.tags), found.text) == (
                    number + 1,
                    tags.split(","),
                    text,
                )
        with (
            sync.connect(tcp) as client,
            client.subscribe(["/room"], since=0, timeout=60) as messages,
        ):
            assert [next(messages).text for _ in ROOM] == ROOM
        with sync.connect(tcp) as client:
            assert client.store(["order", "eu"], "new") == kept + 1
            assert client.tags(TOKEN) == {"order:*", "room"}
            assert client.attributes(TOKEN) == Attributes.parse(ATTRIBUTES)
        assert server.stop() == 0
    assert versions(data) == (LOG.version, REGISTRY.version)
    assert trio.run(verified, data / "history.db") == (kept + 1, [])


async def verified(path: Path) -> tuple[int, list[Problem]]:
    """How many messages there are, and what is damaged."""
    async with await open_history(f"sqlite:///{path}", read_only=True) as history:
        return (await history.statistics()).messages, await history.verify()


@pytest.mark.parametrize(
    ("file", "what"), [("history.db", "history"), ("tokens.db", "token registry")]
)
def test_data_of_a_later_version_is_refused_and_left_as_it_is(
    tmp_path: Path, file: str, what: str
) -> None:
    with serving(tmp_path) as server:
        assert server.stop() == 0
    path = tmp_path / file
    with closing(sqlite3.connect(path)) as connection:
        (known,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {known + 1}")
    before = path.read_bytes()
    done = mist("serve", "--data", str(tmp_path), "--listen", "tcp://127.0.0.1:0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"mist serve: {what} {path}: schema version {known + 1}, but this mist knows {known}\n"
    )
    assert path.read_bytes() == before
