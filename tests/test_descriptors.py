"""A server's table of file descriptors is as large from the start as it will have to be."""

import resource
import subprocess
import sys

import pytest

PROGRAM = """
import os, resource, sys
from mist import descriptors
connections, limit = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
before = len(os.listdir("/proc/self/fd"))
descriptors.reserve(connections)
assert len(os.listdir("/proc/self/fd")) == before
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("FDSize")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux's /proc")
@pytest.mark.parametrize(
    ("connections", "limit", "size"),
    [(2_000, 4_000, 2_100), (10, 4_000, 64), (2_000_000_000, 1_000, 1_000)],
    ids=["as many as asked", "few", "no more than there may be"],
)
def test_the_table_has_room_for_all_connections(connections: int, limit: int, size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= limit
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(connections), str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert size <= int(done.stdout) < max(2 * size, 512)
