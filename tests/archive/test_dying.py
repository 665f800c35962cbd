"""Crash safety of sealing: a crash between any two of its steps; see `dying`."""

import os
import re
import subprocess
import sys
from pathlib import Path


def test_a_crash_between_any_two_steps_loses_nothing_and_lists_nothing_twice(
    tmp_path: Path,
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.archive.dying", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        # It forks, so no library may have threads before.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (result.returncode, result.stdout[-8:]) == (0, "the end\n"), (
        result.stdout + result.stderr
    )
    deaths = [
        re.fullmatch(r"\d+ (before|after) (\w+): (.*)", line).groups()  # type: ignore[union-attr]
        for line in result.stdout.splitlines()[:-1]
    ]
    # Every kind of step was deadly, on both sides, and each state was met on the way.
    for step in ("mkdir", "fsync", "rename", "__init__", "write_table", "close"):
        assert {moment for moment, name, _ in deaths if name == step} == {"before", "after"}
    left = [state for _, _, state in deaths]
    assert [state for n, state in enumerate(left) if state != left[n - 1]] == [
        "nothing yet",
        "0 listed, 0 not",
        "0 listed, 1 not",
        "1 listed, 0 not",
        "1 listed, 1 not",
        "2 listed, 0 not",
        "2 listed, 1 not",
        "3 listed, 0 not",
    ]
