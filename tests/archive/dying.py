"""A process that seals, killed before and after every step of it; and what is left, each time.

    python -m tests.archive.dying FOLDER

Step by step: a child seals and is killed at its nth step; another looks at what it left and
seals on. Ends when a child comes to its end alive, and prints for each death the step, and what
was listed and what lay about unlisted. Fails at the first thing that is not as it should be.

All work is done in children, which are forked from a process that has no thread.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pandas
import pyarrow.parquet as pq
import trio

from mist.archive import Archive, lineage, rows
from mist.archive.opening import open_sealer
from mist.archive.sealer import SealPolicy
from mist.archive.segments import read_segment
from mist.history import Durability, History, Policy, Publication
from mist.history.opening import open_history
from mist.history.sqlite import open_sqlite
from mist.wire import record

NOON = 1_795_262_400.0  # 2026-11-21 12:00 UTC
DAY = 86_400.0
# Whatever changes something outside of the process.
STEPS = [
    (os, "mkdir"),
    (os, "fsync"),
    (os, "rename"),
    (os, "link"),
    (os, "unlink"),
    (pq.ParquetWriter, "__init__"),
    (pq.ParquetWriter, "write_table"),
    (pq.ParquetWriter, "close"),
]


# Loaded once, and not by each child: what is otherwise imported when it is needed.
LOADED = [open_sqlite, pandas, rows, lineage]


def some(first: int, count: int, time: float) -> Publication:
    lines = [(b"a", record(b"a", b"%d" % (first + n)), 1) for n in range(count)]
    return Publication.of_runs(lines, time, "tcp")


@attrs.define
class Killer:
    """Kills this process at a step.

    Attributes:
        deadly: number of the step, from 1.
        taken: steps so far.
    """

    deadly: int
    report: Path
    taken: int = 0

    def watch(self) -> None:
        for owner, name in STEPS:
            setattr(owner, name, self._stepping(getattr(owner, name), name))

    def _stepping(self, real: Callable[..., object], name: str) -> Callable[..., object]:
        def stepping(*arguments: object, **options: object) -> object:
            self._step(f"before {name}")
            result = real(*arguments, **options)
            self._step(f"after {name}")
            return result

        return stepping

    def _step(self, name: str) -> None:
        self.taken += 1
        if self.taken == self.deadly:
            self.report.write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)


async def log_in(folder: Path) -> History:
    url = f"sqlite:///{folder / 'history.db'}"
    return await open_history(url, durability=Durability.PROCESS)


async def seal(folder: Path, killer: Killer) -> None:
    """Three segments: two for two days, and one later; then the log is trimmed."""
    async with await log_in(folder) as history:
        await history.append([some(1, 4, NOON), some(5, 3, NOON + DAY)])
        killer.watch()
        archive = Archive.create(folder / "archive")
        sealer = await open_sealer(archive, history, SealPolicy())
        await sealer.seal_now()
        await history.append([some(8, 2, NOON + DAY)])
        await sealer.seal_now()
        await trim(history, sealer.sealed)
        archive.messages.change(lambda manifest: manifest)
        archive.messages.sweep(grace=-1.0)
        await sealer.aclose()


async def trim(history: History, sealed: int) -> None:
    while (await history.trim(Policy(None, None, 0, sealed=sealed), NOON + 9 * DAY)).more:
        pass


def listed(archive: Archive) -> list[tuple[int, bytes]]:
    return [
        (row["id"], row["data"])
        for segment in archive.messages.current().segments
        for row in read_segment(archive.messages, segment, ["id", "data"]).to_pylist()
    ]


def files(archive: Archive) -> set[str]:
    found = archive.folder.glob("date=*/*")
    return {str(path.relative_to(archive.folder)) for path in found if path.is_file()}


async def look(folder: Path) -> None:
    archive = Archive(folder / "archive")
    if archive.messages.exists:
        manifest = archive.messages.current()
        before = listed(archive)
        assert before == [(n, b"%d" % n) for n in range(1, manifest.sealed + 1)], before
        unlisted = files(archive) - {each.file for each in manifest.segments}
        print(f"{len(manifest.segments)} listed, {len(unlisted)} not", flush=True)
    else:
        print("nothing yet", flush=True)
    async with await log_in(folder) as history:
        newest = (await history.position()).newest
        archive = Archive.create(folder / "archive")
        sealer = await open_sealer(archive, history)
        await trim(history, sealer.sealed)  # what is not in the archive has to be in the log
        assert await sealer.seal_now() == newest
        await sealer.aclose()
    manifest = archive.messages.current()
    assert listed(archive) == [(n, b"%d" % n) for n in range(1, newest + 1)]
    assert manifest.lost == ()
    archive.messages.sweep(grace=-1.0)
    assert files(archive) == {each.file for each in manifest.segments}
    assert listed(archive)[-1][0] == newest


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a child. Returns its exit code, negative where it was killed."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:  # and never back into the caller's
            if code:
                sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path) -> int:
    report = folder / "report"
    for number in range(1, 1_000):
        place = folder / str(number)
        place.mkdir()
        killer = Killer(number, report)
        code = in_child(lambda: trio.run(seal, place, killer))  # noqa: B023  # is called here
        if code == 0:
            print("the end", flush=True)
            return 0
        if code != -signal.SIGKILL:
            return 1
        print(f"{number} {report.read_text()}: ", end="", flush=True)
        if in_child(lambda: trio.run(look, place)) != 0:  # noqa: B023
            return 1
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
