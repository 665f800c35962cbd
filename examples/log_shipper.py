"""Follow a log file and publish each line, with tags taken from it.

    python examples/log_shipper.py --file /var/log/dpkg.log --from-start

A line of dpkg.log, `2026-10-16 23:04:01 status installed libc-bin:amd64 2.36-9`, is published
with the tags `log:dpkg`, `action:status`, `state:installed`, `package:libc-bin`, `arch:amd64`;
a line of any other log gets `log:NAME` and, if it names a log level, `level:error` and so on.
The file may be rotated or truncated while it is followed. A line is published once it is complete.
"""

import argparse
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from mist.client import connect
from mist.errors import MistError

DPKG = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?P<action>\S+) (?:(?P<state>[\w-]+) )?"
    r"(?P<package>[a-z0-9][\w.+-]*):(?P<arch>\w+) "
)
LEVEL = re.compile(r"\b(debug|info|notice|warn|warning|error|critical|fatal)\b", re.IGNORECASE)
LEVELS = {"warn": "warning", "fatal": "critical"}


def tags_of(line: str, log: str) -> set[str]:
    """The tags of a line; always at least one."""
    tags = {f"log:{log}"}
    if found := DPKG.match(line):
        tags |= {f"{name}:{value}" for name, value in found.groupdict().items() if value}
    elif found := LEVEL.search(line):
        level = found[1].lower()
        tags.add(f"level:{LEVELS.get(level, level)}")
    return tags


async def lines_of(path: Path, *, from_start: bool, once: bool) -> AsyncIterator[str]:
    """Complete lines of a file as they are written, from its end or its start.

    A file that is replaced (rotated) or truncated is read again from its beginning.
    """
    file = path.open("rb")
    if not from_start:
        file.seek(0, os.SEEK_END)
    rest = b""
    try:
        while True:
            # Read in chunks, so that a long file need not fit into memory.
            if chunk := file.read(65_536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode("utf-8", "replace")
                continue
            if once:
                return
            await trio.sleep(0.2)
            try:
                current = path.stat()
            except FileNotFoundError:
                continue  # between the two steps of a rotation
            opened = os.fstat(file.fileno())
            if current.st_ino != opened.st_ino or current.st_size < file.tell():
                file.close()
                file, rest = path.open("rb"), b""
    finally:
        file.close()


async def main(url: str, path: Path, *, from_start: bool, once: bool) -> None:
    """Publish the lines of `path`."""
    log = re.sub(r"[^\w.-]", "-", path.name.removesuffix(".log"))
    count = 0
    async with connect(url, secret=os.environ.get("MIST_SECRET")) as client:
        async for line in lines_of(path, from_start=from_start, once=once):
            if line:
                await client.publish(tags_of(line, log), line)
                count += 1
    print(f"{count} lines published")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="tcp://127.0.0.1:1445", metavar="URL")
    parser.add_argument("--file", type=Path, default=Path("/var/log/dpkg.log"))
    parser.add_argument("--from-start", action="store_true", help="publish existing lines too")
    parser.add_argument("--once", action="store_true", help="stop at the end of the file")
    options = parser.parse_args()
    try:
        trio.run(
            lambda: main(
                options.host, options.file, from_start=options.from_start, once=options.once
            )
        )
    except KeyboardInterrupt:
        pass
    except (MistError, OSError) as error:
        sys.exit(f"log_shipper: {error}")
