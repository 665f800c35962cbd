"""A server's threads share one arena of the memory allocator."""

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
