"""What only `sqlite:///…` has: files."""

import contextlib
import os
import signal
import sqlite3
import stat
import sys
import tempfile
from pathlib import Path

import attrs
import pytest
import trio

from mist.attributes import NO_ATTRIBUTES, Attributes
from mist.auth import Enroll
from mist.auth.local import LocalRegistry
from mist.auth.opening import open_registry, open_store
from mist.commands import AddTags, Register, RemoveTags, SetAttributes, Unregister
from mist.errors import RegistryUnavailable, StartupError, TokenExists
from mist.terms import Terms

A = frozenset("a")
B = frozenset("b")
ODD = Attributes("c;d", "ü&=%\u2028", frozenset(["';", "b c"]), {"site": "x", "a.b": "+"})
TERMS = Terms(4_000_000_000.5, "nightly 'export'")
TOKEN = "a-t0ken-that-nobody-may-find"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens.db"


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


@pytest.fixture
def key_path(path):
    return path.with_name("tokens.db.key")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


async def fill(url, **tokens):
    async with await open_registry(url) as registry:
        return await registry.execute([Register(name, tags) for name, tags in tokens.items()])


async def refusal(url):
    with pytest.raises(StartupError) as caught:
        await open_registry(url)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def run_sql(path, *statements):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# what lasts


async def test_tokens_ids_and_tags_last(url):
    async with await open_registry(url) as registry:
        made = await registry.execute(
            [
                *(Register("t", A), Register("u", frozenset()), Register("v", B)),
                *(Register("gone", A), AddTags("t", B), RemoveTags("v", B), Unregister("gone")),
            ]
        )
    async with await open_registry(url) as registry:
        assert registry.lookup("t") == made[4]
        assert registry.lookup("u") == made[1]
        assert registry.lookup("v") == made[5]
        assert registry.lookup("gone") is None
        assert registry.statistics().tokens == 3


async def test_nothing_is_left_beside_database_and_key(url, path, key_path):
    await fill(url, t=A)
    assert sorted(path.parent.iterdir()) == [path, key_path]


async def test_relative_path_is_relative_to_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    await fill("sqlite:///some/folder/x.db", t=A)
    monkeypatch.chdir("/")
    async with await open_registry(f"sqlite:///{tmp_path}/some/folder/x.db") as registry:
        assert registry.tags("t") == A


async def test_path_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [":memory:", "file:x?mode=memory", "a%20b"]:
        await fill(f"sqlite:///{name}", t=A)
        assert (tmp_path / name).stat().st_size > 0


async def test_second_server_is_refused_while_the_first_runs(url):
    async with await open_registry(url):
        assert "in use by another process" in await refusal(url)
    await fill(url, t=A)


async def test_attributes_last(url):
    async with await open_registry(url) as registry:
        await registry.execute([Enroll("t", A, ODD), Register("u", A)])
        made = await registry.execute([SetAttributes("u", Attributes(user="7")), AddTags("t", B)])
    async with await open_registry(url) as registry:
        assert registry.lookup("u") == made[0]
        assert registry.lookup("u").attributes == Attributes(user="7")
        assert registry.lookup("t").attributes == ODD
        await registry.execute([SetAttributes("t", NO_ATTRIBUTES, frozenset(ODD.as_json()))])
    async with await open_registry(url) as registry:
        assert registry.lookup("t").attributes == NO_ATTRIBUTES
        assert registry.tags("t") == A | B


# the versions before

VERSION_3 = ["DROP TABLE token_key", "PRAGMA user_version = 3"]
VERSION_1 = [
    "DROP TABLE token_key",
    """
    CREATE TABLE old (
        digest BLOB NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
        id TEXT NOT NULL UNIQUE,
        tags TEXT NOT NULL, -- sorted, joined by commas
        created REAL NOT NULL -- Unix seconds
    ) STRICT
    """,
    "INSERT INTO old SELECT digest, id, tags, created FROM token",
    "DROP TABLE token",
    "ALTER TABLE old RENAME TO token",
    "PRAGMA user_version = 1",
]
VERSION_2 = [
    "DROP TABLE token_key",
    "ALTER TABLE token DROP COLUMN expires",
    "ALTER TABLE token DROP COLUMN name",
    "PRAGMA user_version = 2",
]


@pytest.mark.parametrize("statements", [VERSION_1, VERSION_2, VERSION_3])
async def test_registry_of_an_earlier_version_opens_and_keeps_its_tokens(url, path, statements):
    made = await fill(url, t=A, u=frozenset(), v=A | B)
    run_sql(path, *statements)
    async with await open_registry(url) as registry:
        assert [registry.lookup(token) for token in "tuv"] == made
        changed = await registry.execute([SetAttributes("t", ODD), Enroll("w", B, ODD, TERMS)])
    async with await open_registry(url) as registry:
        assert [registry.lookup(token) for token in "tuvw"] == [changed[0], *made[1:], changed[1]]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)
        assert connection.execute("PRAGMA quick_check").fetchone() == ("ok",)


async def test_registry_of_version_1_without_its_key_is_still_refused(url, path, key_path):
    await fill(url, t=A)
    run_sql(path, *VERSION_1)
    key = key_path.read_bytes()
    key_path.unlink()
    assert "tokens.db.key is missing" in await refusal(url)
    key_path.write_bytes(key)
    key_path.chmod(0o600)
    async with await open_registry(url) as registry:
        assert registry.tags("t") == A


async def test_what_only_says_that_it_is_version_1_is_refused_and_left_alone(url, path):
    await fill(url, t=A)
    run_sql(path, "PRAGMA user_version = 1")
    assert "duplicate column" in await refusal(url)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM token").fetchone() == (1,)


# secrecy


async def test_files_are_for_their_owner_alone(url, path):
    before = os.umask(0)
    try:
        async with await open_registry(url) as registry:
            await registry.execute([Register("t", A)])
            modes = {file.name: mode(file) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["tokens.db", "tokens.db-wal", "tokens.db.key"], 0o600)


async def test_token_is_in_none_of_the_files(url, path):
    def found(text):
        forms = [text.encode(), text.encode().hex().encode(), text[::-1].encode()]
        contents = [file.read_bytes() for file in path.parent.iterdir()]
        return any(form in content for form in forms for content in contents)

    async with await open_registry(url) as registry:
        await registry.execute([Register(TOKEN, frozenset(["a-tag-to-be-found"]))])
        assert found("a-tag-to-be-found")
        assert not found(TOKEN)
        await registry.execute([AddTags(TOKEN, A), Unregister(TOKEN)])
        assert not found(TOKEN)
    assert not found(TOKEN)


async def test_open_modes_are_warned_of(url, path, key_path, caplog):
    await fill(url, t=A)
    assert caplog.messages == []
    path.chmod(0o640)
    key_path.chmod(0o604)
    async with await open_registry(url) as registry:
        assert registry.tags("t") == A
    assert [str(path) in caplog.messages[0], str(key_path) in caplog.messages[1]] == [True, True]
    assert [mode(path), mode(key_path)] == [0o640, 0o604]


# the key


async def test_key_is_kept(url, key_path):
    await fill(url)
    key = key_path.read_bytes()
    assert len(key) == 32
    await fill(url)
    assert key_path.read_bytes() == key


async def test_each_registry_has_its_own_key(tmp_path):
    for name in ["x", "y"]:
        await fill(f"sqlite:///{tmp_path}/{name}")
    assert (tmp_path / "x.key").read_bytes() != (tmp_path / "y.key").read_bytes()


async def test_missing_key_is_refused_where_there_are_tokens(url, key_path):
    await fill(url, t=A)
    moved = key_path.rename(key_path.with_suffix(".moved"))
    assert "tokens.db.key is missing" in await refusal(url)
    assert not key_path.exists()
    moved.rename(key_path)
    async with await open_registry(url) as registry:
        assert registry.tags("t") == A


async def test_missing_key_is_made_anew_where_there_are_no_tokens(url, key_path):
    await fill(url)
    key_path.unlink()
    await fill(url, t=A)
    assert mode(key_path) == 0o600


async def test_another_key_is_refused_where_there_are_tokens(url, path, key_path):
    await fill(url, t=A)
    key = key_path.read_bytes()
    for other in (b"k" * 32, key[::-1]):
        key_path.write_bytes(other)
        before = path.read_bytes()
        assert f"{path}: tokens.db.key is another key" in await refusal(url)
        assert (path.read_bytes(), key_path.read_bytes()) == (before, other)
    key_path.write_bytes(key)
    async with await open_registry(url) as registry:
        assert registry.tags("t") == A


async def test_another_key_is_taken_where_there_are_no_tokens(url, key_path):
    await fill(url)
    key_path.write_bytes(b"k" * 32)
    await fill(url, t=A)
    async with await open_registry(url) as registry:
        assert registry.tags("t") == A
    key_path.write_bytes(b"o" * 32)
    assert "another key" in await refusal(url)


@pytest.mark.parametrize("statements", [VERSION_1, VERSION_2, VERSION_3])
async def test_registry_of_an_earlier_version_remembers_its_key_from_then_on(
    url, path, key_path, statements
):
    await fill(url, t=A)
    run_sql(path, *statements)
    await fill(url)
    key_path.write_bytes(b"k" * 32)
    assert "another key" in await refusal(url)


async def test_key_is_in_none_of_the_other_files(url, path, key_path):
    async with await open_registry(url) as registry:
        await registry.execute([Register("t", A)])
        key = key_path.read_bytes()
        others = [file for file in path.parent.iterdir() if file != key_path]
        assert [key in file.read_bytes() for file in others] == [False] * len(others)


@pytest.mark.parametrize("length", [0, 31, 33, 100_000])
async def test_key_of_another_length_is_refused_and_left_alone(url, key_path, length):
    key_path.write_bytes(b"k" * length)
    key_path.chmod(0o600)
    assert "not a key file of 32 bytes" in await refusal(url)
    assert key_path.stat().st_size == length


async def test_what_a_crash_left_of_a_key_is_in_nobodys_way(url, key_path):
    key_path.with_name("tokens.db.key.new").write_bytes(b"half")
    await fill(url, t=A)
    assert len(key_path.read_bytes()) == 32


async def test_key_that_cannot_be_read_is_refused(url, key_path):
    key_path.mkdir()
    assert f"{key_path}: Is a directory" in await refusal(url)


# what is not a registry


async def test_file_that_is_no_database_is_refused_and_left_alone(url, path, key_path):
    path.write_text("a letter of some length, and no database at all\n" * 100)
    before = path.read_bytes()
    assert "not a database" in await refusal(url)
    assert path.read_bytes() == before
    assert not key_path.exists()


async def test_damaged_database_is_refused(url, path):
    await fill(url, **{f"t{n}": frozenset([f"tag-{n}-{'x' * 200}"]) for n in range(200)})
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * 8192)
    assert "damaged" in await refusal(url)


async def test_damage_that_reading_the_tokens_would_not_meet_is_found(url, path):
    await fill(url, t=A)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        [(size,)] = connection.execute("PRAGMA page_size")
        [(page,)] = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_token_2'"
        )
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    assert "damaged" in await refusal(url)


async def test_cut_database_is_refused(url, path):
    await fill(url, **{f"t{n}": frozenset([f"tag-{n}-{'x' * 200}"]) for n in range(200)})
    os.truncate(path, path.stat().st_size // 2)
    assert "damaged" in await refusal(url)


async def test_another_programs_database_is_refused_and_left_alone(url, path, key_path):
    for statements in [
        ["CREATE TABLE token (x)"],
        ["PRAGMA application_id = 77"],
        ["PRAGMA user_version = 1"],
        ["PRAGMA user_version = 1", "CREATE TABLE cookies (x)"],
    ]:
        run_sql(path, *statements)
        before = path.read_bytes()
        assert "a database of another program" in await refusal(url)
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]
        path.unlink()


@pytest.mark.parametrize("version", [0, 5, 77])
async def test_another_schema_version_is_refused(url, path, version):
    await fill(url, t=A)
    run_sql(path, f"PRAGMA user_version = {version}")
    assert f"schema version {version}, but this mist knows 4" in await refusal(url)


@pytest.mark.parametrize("text", ["user=", "user", "users=1", "plan=a;b", "\x01", "a=%00"])
async def test_attributes_that_mean_nothing_are_refused(url, path, text):
    await fill(url, t=A)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE token SET attributes = ?", [text])
    assert str(path) in await refusal(url)


async def test_row_that_means_nothing_is_refused(url, path):
    await fill(url, t=A)
    run_sql(path, "UPDATE token SET tags = CAST(x'ff0aff' AS TEXT)")
    assert str(path) in await refusal(url)


async def test_place_that_cannot_hold_a_file_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert f"{file}/x.db: Not a directory" in await refusal(f"sqlite:///{file}/x.db")
    assert "Not a directory" in await refusal(f"sqlite:///{file}/deeper/x.db")
    assert f"{tmp_path}: Is a directory" in await refusal(f"sqlite:///{tmp_path}")
    assert "not a regular file" in await refusal("sqlite:////dev/null")


@contextlib.contextmanager
def not_root():
    """Nothing is read-only to root, so a test of permissions gives its rights up for a while."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


async def test_read_only_folder_is_refused():
    # Not below tmp_path, whose parents only root may enter.
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    try:
        with not_root():
            assert "Permission denied" in await refusal(f"sqlite:///{folder}/x.db")
    finally:
        folder.rmdir()


# trouble at work


async def test_full_disk_changes_nothing_and_heals(url):
    store = open_store(url)
    many = [Register(f"t{n}", frozenset([f"tag-{n}-{'x' * 200}"])) for n in range(500)]

    def limit(pages):
        store._connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()

    async with LocalRegistry(store) as registry:
        [before] = await registry.execute([Register("t", A)])
        limit(1)  # SQLite makes that as many as there are
        for _ in range(2):
            with pytest.raises(RegistryUnavailable):
                await registry.execute([*many, Unregister("t")])
        assert registry.lookup("t") is before
        assert registry.statistics().tokens == 1
        assert list(store.load()) == [before]
        limit(100_000)
        await registry.execute([*many, AddTags("t", B)])
        assert registry.statistics().tokens == 501
    async with await open_registry(url) as registry:
        assert registry.tags("t") == A | B
        assert registry.statistics().tokens == 501


async def test_transaction_is_whole_or_not_at_all(url):
    store = open_store(url)
    async with LocalRegistry(store) as registry:
        one, two = await registry.execute([Register("t", A), Register("u", A)])
        clash = [attrs.evolve(two, digest=digest) for digest in [b"x" * 32, b"y" * 32]]
        with pytest.raises(RegistryUnavailable):  # the same id twice
            store.write({two.digest: None} | {each.digest: each for each in clash})
        assert {each.id for each in store.load()} == {one.id, two.id}
        store.write({one.digest: None})
        assert list(store.load()) == [two]


CRASH = """
import os, signal, sys, trio
from mist.auth.opening import open_store
from mist.auth.local import LocalRegistry
from mist.auth.sqlite import SqliteStore
from mist.commands import AddTags, Register

class Crashing(SqliteStore):
    def _put(self, rows):
        super()._put(rows)
        if crash and sys.argv[2] == "before":
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, changes):
        super().write(changes)
        if crash:
            os.kill(os.getpid(), signal.SIGKILL)

crash = False
async def main():
    global crash
    registry = LocalRegistry(Crashing.open("/" + sys.argv[1]))
    await registry.execute([Register("t", frozenset("a"))])
    print(registry.lookup("t").id, flush=True)
    crash = True
    await registry.execute([AddTags("t", frozenset("b")), Register("u", frozenset("b"))])

trio.run(main)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_crash_leaves_all_of_a_change_or_nothing(url, path, moment):
    command = [sys.executable, "-c", CRASH, str(path), moment]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    async with await open_registry(url) as registry:
        assert registry.lookup("t").id == done.stdout.decode().strip()
        if moment == "before":
            assert registry.tags("t") == A
            assert registry.lookup("u") is None
        else:
            assert registry.tags("t") == A | B
            assert registry.tags("u") == B
        [outcome] = await registry.execute([Register("t", A)])
        assert isinstance(outcome, TokenExists)


async def test_change_of_a_file_that_has_gone_is_refused_until_it_is_back(url, path):
    async with await open_registry(url) as registry:
        await registry.execute([Register("t", A)])
        path.rename(path.with_name("moved"))
        with pytest.raises(RegistryUnavailable):
            await registry.execute([Register("u", A)])
        path.with_name("moved").rename(path)
        assert registry.lookup("u") is None
        await registry.execute([Register("u", A)])
        assert registry.tags("u") == A
