"""Which file system: the innermost mount, the latest on it."""

import sys
from pathlib import Path

import pytest

from mist.bench.history.disk import file_system

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /dev/shm rw,nosuid - tmpfs tmpfs rw
31 22 0:27 / /srv/logs rw - xfs /dev/vdb rw
32 22 0:28 / /srv/logs rw shared:9 master:1 - btrfs /dev/vdc rw
33 22 0:29 / /srv/two\\040words rw - zfs pool rw
"""


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/", "ext4"),
        ("/srv", "ext4"),
        ("/dev/shm", "tmpfs"),
        ("/dev/shm/deep/down", "tmpfs"),
        ("/dev/shmore", "ext4"),
        ("/srv/logs/a", "btrfs"),
        ("/srv/two words/a", "zfs"),
    ],
)
def test_the_innermost_mount_tells(tmp_path: Path, folder: str, expected: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_system(Path(folder), mounts) == expected


def test_where_there_is_no_table_nothing_is_told(tmp_path: Path) -> None:
    assert file_system(tmp_path, tmp_path / "nothing") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's table")
def test_this_machine_tells(tmp_path: Path) -> None:
    assert file_system(tmp_path)
