"""What our SQLite files have in common. That each kind refuses what it should is tested there."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mist.errors import StartupError
from mist.sqlite import DatabaseKind, FileIdentity, connect, create, is_damage, reason, transaction

KIND = DatabaseKind("diary", application_id=77, version=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "diary.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect(path, 0.1)) as connection:
        yield connection


def test_a_new_database_is_nobodys_until_it_is_founded(
    connection: sqlite3.Connection, path: Path
) -> None:
    assert KIND.is_new(connection, path)
    with KIND.initializing(connection):
        connection.execute("CREATE TABLE day (text)")
    assert not KIND.is_new(connection, path)


def test_what_fails_while_it_is_founded_leaves_it_new(
    connection: sqlite3.Connection, path: Path
) -> None:
    with pytest.raises(sqlite3.OperationalError), KIND.initializing(connection):
        connection.execute("CREATE TABLE day (text)")
        connection.execute("no statement")
    assert KIND.is_new(connection, path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (DatabaseKind("diary", 78, 3), "diary {}: a database of another program"),
        (DatabaseKind("diary", 77, 4), "diary {}: schema version 3, but this mist knows 4"),
    ],
)
def test_others_databases_are_refused(
    connection: sqlite3.Connection, path: Path, kind: DatabaseKind, message: str
) -> None:
    with KIND.initializing(connection):
        connection.execute("CREATE TABLE day (text)")
    with pytest.raises(StartupError, match=message.format(path)):
        kind.is_new(connection, path)


def test_a_database_in_memory_holds_no_write_ahead_log(path: Path) -> None:
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(StartupError, match="can't hold a write-ahead log"),
    ):
        KIND.enable_wal(connection, path)


@pytest.mark.parametrize("location", ["", "/", "diary.db", "/a\0b"])
def test_a_location_without_a_path_is_refused(location: str) -> None:
    with pytest.raises(StartupError, match="three slashes and a path"):
        KIND.locate(location)


def test_a_path_is_absolute_and_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert KIND.locate("/:memory:") == tmp_path / ":memory:"
    assert KIND.locate("//var/a%20b?c") == Path("/var/a%20b?c")


def test_what_is_there_keeps_its_mode_and_content(path: Path) -> None:
    path.write_text("dear diary")
    path.chmod(0o640)
    create(path)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("dear diary", 0o640)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with (
        pytest.raises(StartupError, match=f"diary {tmp_path}/fifo: not a regular file"),
        KIND.startup_errors(tmp_path / "fifo"),
    ):
        create(tmp_path / "fifo")


def test_a_transaction_is_whole_or_not_at_all(connection: sqlite3.Connection) -> None:
    with transaction(connection):
        connection.execute("CREATE TABLE day (text)")
    with pytest.raises(KeyError), transaction(connection):
        connection.execute("INSERT INTO day VALUES ('one')")
        raise KeyError
    assert connection.execute("SELECT count(*) FROM day").fetchall() == [(0,)]


def test_a_schema_that_is_no_text_is_damage(connection: sqlite3.Connection, path: Path) -> None:
    with KIND.initializing(connection):
        connection.execute("CREATE TABLE day (text)")
    connection.close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CR\xff\xfeTE TABLE"))
    with (
        closing(connect(path, 0.1)) as damaged,
        pytest.raises((sqlite3.Error, UnicodeDecodeError)) as caught,
    ):
        damaged.execute("SELECT count(*) FROM day")
    assert isinstance(caught.value, sqlite3.Error | UnicodeDecodeError)
    assert is_damage(caught.value)
    assert reason(caught.value) == "the database is damaged"


def test_a_reader_writes_nothing(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("CREATE TABLE day (text)")
    with (
        closing(connect(path, 0.1, read_only=True)) as reader,
        pytest.raises(sqlite3.OperationalError, match="readonly") as caught,
    ):
        reader.execute("INSERT INTO day VALUES ('one')")
    assert reason(caught.value) == "it may not be written"
    assert not is_damage(caught.value)


def test_a_file_that_was_moved_removed_or_replaced_is_missed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    create(folder / "diary.db")
    identity = FileIdentity.of(folder / "diary.db")
    identity.check()
    moved = folder.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError):
        identity.check()
    moved.rename(folder)
    identity.check()
    (folder / "other.db").touch()
    (folder / "other.db").rename(folder / "diary.db")
    with pytest.raises(FileNotFoundError, match="another file is in its place"):
        identity.check()
