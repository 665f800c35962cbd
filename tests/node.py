"""Scripts in Node, with the clients that `tests/npm/package-lock.json` pins.

They are installed by `npm ci --prefix tests/npm`, which `.ci/run` does too.
"""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

FOLDER = Path(__file__).parent / "npm"


def find_node(package: str | None = None) -> str:
    """Node's path. Skips the test where it or a package is missing, but never in CI.

    Args:
        package: that the script imports, as npm calls it.
    """
    node = shutil.which("node")
    if node is not None and (package is None or (FOLDER / "node_modules" / package).is_dir()):
        return node
    missing = "no Node; Debian: apt-get install nodejs npm"
    if node is not None:
        missing = f"no {package}; npm ci --prefix tests/npm"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{missing}; in CI it has to be there")
    pytest.skip(missing)


class Script:
    """A script that runs. Its `say(value)` hands a value over, as JSON."""

    def __init__(self, popen: "subprocess.Popen[str]") -> None:
        self._popen = popen

    def __iter__(self) -> Iterator[object]:
        """What it says until it ends, which has to be without an error."""
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        for line in self._popen.stdout:
            yield json.loads(line)
        error = self._popen.stderr.read()
        assert self._popen.wait() == 0, error or "it took too long"

    def next(self) -> object:
        """The next that it says, which it has to."""
        return next(iter(self))


@contextmanager
def script_running(
    source: str, *, package: str | None = None, seconds: float = 60, **names: object
) -> Iterator[Script]:
    """An ES module in Node for the length of the block, killed at its end if it still runs.

    Args:
        source: its text.
        package: that it imports.
        seconds: that it may take.
        names: constants that it finds, as JSON.
    """
    constants = [f"const {name} = {json.dumps(value)};" for name, value in names.items()]
    say = "const say = (value) => console.log(JSON.stringify(value));"
    with subprocess.Popen(
        [find_node(package), "--input-type=module", "--eval", "\n".join([*constants, say, source])],
        cwd=FOLDER,  # where what it imports is looked for
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as popen:
        timer = threading.Timer(seconds, popen.kill)
        timer.start()
        try:
            yield Script(popen)
        finally:
            timer.cancel()
            popen.kill()


def run_script(source: str, **options: object) -> list[object]:
    """All that a script says, until it ends; see `script_running`."""
    with script_running(source, **options) as script:  # type: ignore[arg-type]
        return list(script)


async def run_script_beside(source: str, **options: object) -> list[object]:
    """The same beside a server in this process."""
    return await trio.to_thread.run_sync(lambda: run_script(source, **options))
