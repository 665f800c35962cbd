"""Data directories that former versions have made, and how to make one of today's.

    python -m tests.system.former_data SOURCES NAME

runs the server whose sources are in SOURCES, as `git archive COMMIT mist | tar -x -C SOURCES`
leaves them, stores something of each kind, kills it with -9, and packs what it leaves into
`former/NAME.tar.xz`. Do that with the last released version before a schema changes.
"""

import json
import socket
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from tests.processes import environment

FORMER = Path(__file__).parent / "former"
TOKEN = "a-token-of-former-times"
ATTRIBUTES = "user=7&groups=a;b"
COUNT = 200
KEYED = {"tags": ["keyed"], "data": "once"}  # published with the Idempotency-Key `former`
ROOM = ["first", "second", "third"]  # of the channel /room


def message(number: int) -> tuple[str, str]:
    """The tags and the data of one of them; the first has id 1."""
    return f"eu,n{number % 7},order", f"message {number} {'x' * (number % 50)}"


def publish_keyed(url: str) -> object:
    """Publish it, or hear which id it has."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": "former"}
    body = json.dumps(KEYED).encode()
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/messages", body, headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)["id"]


def _fill(tcp: str, http: str) -> None:
    port = int(tcp.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        lines = [f"register order:*,room {TOKEN}", f"set-attr {TOKEN} {ATTRIBUTES}"]
        lines += [f"publish {tags} {data}" for tags, data in map(message, range(COUNT))]
        lines += [f"publish /room {data}" for data in ROOM]
        sock.sendall("".join(f"{line}\n" for line in [*lines, "ping"]).encode())
        assert sock.makefile("rb").readline() == b"pong\n"
    assert publish_keyed(http) == COUNT + len(ROOM) + 1


def make(sources: Path, name: str) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        listen = ("--listen", "tcp://127.0.0.1:0", "--listen", "http://127.0.0.1:0")
        command = [sys.executable, "-m", "mist", "serve", "--data", str(data), *listen]
        environ = environment(PYTHONPATH=str(sources))
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environ, cwd=folder
        ) as popen:
            assert popen.stdout is not None
            urls = [popen.stdout.readline().split()[-1] for _ in range(2)]
            _fill(*urls)
            popen.kill()
        FORMER.mkdir(exist_ok=True)
        with tarfile.open(FORMER / f"{name}.tar.xz", "w:xz") as archive:
            for path in sorted(data.iterdir()):
                if path.is_file() and not path.name.endswith("-shm"):
                    archive.add(path, path.name, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute(), sys.argv[2])
