"""A server's threads share one arena of the memory allocator, and what is freed stays at hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import environment

PROGRAM = """
import ctypes, sys, threading
from mist import allocator
if sys.argv[2] == "settled":
    allocator.settle()
together = threading.Barrier(4)
def work():
    together.wait()
    kept = [bytes(100_000) for _ in range(10)]
    together.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.parametrize(
    ("how", "variables", "one"),
    [
        ("settled", {}, True),
        ("as it is", {}, False),
        ("settled", {"MALLOC_ARENA_MAX": "3"}, False),
    ],
)
def test_threads_share_one_arena_unless_an_operator_says_otherwise(
    tmp_path: Path, how: str, variables: dict[str, str], one: bool
) -> None:
    path = tmp_path / "malloc.xml"
    command = [sys.executable, "-c", PROGRAM, str(path), how]
    subprocess.run(command, check=True, env=environment(**variables))
    arenas = path.read_text().count("<heap nr=")
    assert (arenas == 1) is one


FAULTS = """
import resource, sys
from mist import allocator
if sys.argv[1] == "settled":
    allocator.settle()
line = bytearray(1_000_000)
def copy():
    kept = [bytes(line) for _ in range(4)]
copy()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    copy()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize(
    ("how", "variables", "few"),
    [
        ("settled", {}, True),
        ("as it is", {}, False),
        ("settled", {"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
    ],
)
def test_memory_for_large_copies_is_not_given_back_each_time(
    how: str, variables: dict[str, str], few: bool
) -> None:
    command = [sys.executable, "-c", FAULTS, how]
    done = subprocess.run(
        command, check=True, env=environment(**variables), capture_output=True, text=True
    )
    assert (int(done.stdout) < 1_000) is few  # pages; 40 MB are 10,000


HOLES = """
import os, sys, trio, trio.testing
from mist import allocator
from mist.bench.process import resident_bytes
allocator.settle()
kept = [b"x" * int(sys.argv[1]) for _ in range(int(sys.argv[2]))]
del kept[:-1:2]
async def main():
    before = resident_bytes(os.getpid())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocator.keep_trimmed)
        await trio.sleep(250)
        assert resident_bytes(os.getpid()) > before - 1_000_000
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    print(before - resident_bytes(os.getpid()))
trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
"""


@pytest.mark.parametrize(
    ("size", "count", "given_back"),
    [(1_000_000, 20, True), (8_000, 2_000, True), (8_000, 40_000, False), (8_000, 50, False)],
    ids=["large", "small", "many", "few"],
)
def test_what_is_free_for_minutes_is_given_back_unless_that_takes_long(
    size: int, count: int, given_back: bool
) -> None:
    command = [sys.executable, "-c", HOLES, str(size), str(count)]
    done = subprocess.run(command, check=True, env=environment(), capture_output=True, text=True)
    free = size * count // 2
    assert (int(done.stdout) > free / 3) is given_back
