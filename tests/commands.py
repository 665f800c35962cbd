"""Commands of mist as processes that are forked, instead of started one by one.

Python takes half a second of CPU to start and to import what a command needs, and tests run
commands many hundreds of times. So a process of this module imports all of that once, and forks
for each command: a process of its own still, which has its own arguments, environment, folder,
standard streams and exit code, and ends as Python does. That each command also finds what it needs
when it is started is a test of its own (tests/cli/test_reference.py).

    python -m tests.commands DESCRIPTOR     forks for each request that comes from this socket
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread

__all__ = ["run_command"]

_ROOT = Path(__file__).parents[1]
_MOST = 200_000  # bytes of a request
# Besides the commands themselves, which import these when they run.
_IMPORTED = ("mist.client.sync", "mist.index", "mist.server", "rich.table")


def run_command(
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    stdin: str | None,
    cwd: Path | None,
    timeout: float,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, as `subprocess.run` does it with pipes.

    Args:
        arguments: those after `mist`.
        environ: all of its environment. What Python itself reads of it is not looked at.
        stdin: what it reads; nothing if None.
        cwd: its folder; this process's if None.
        timeout: seconds, after which it is killed.

    Raises:
        subprocess.TimeoutExpired: it did not end in time.
    """
    request = json.dumps([list(arguments), dict(environ), str(cwd or Path.cwd())]).encode()
    give_up = time.monotonic() + timeout
    read, to_write = os.pipe()
    (stdout, out), (stderr, err), (told, status) = [os.pipe() for _ in range(3)]
    socket.send_fds(_forking(), [request], [read, out, err, status])
    for each in (read, out, err, status):
        os.close(each)
    texts = ["", "", ""]
    process = int(os.read(told, 20))
    threads = [Thread(target=_write, args=(to_write, stdin or ""), daemon=True)]
    for place, each in enumerate((told, stdout, stderr)):
        threads.append(Thread(target=_read, args=(each, texts, place), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, give_up - time.monotonic()))
        if thread.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["mist", *arguments], timeout)
    return subprocess.CompletedProcess(["mist", *arguments], int(texts[0]), *texts[1:])


def _write(descriptor: int, text: str) -> None:
    with suppress(BrokenPipeError), open(descriptor, "w") as file:
        file.write(text)


def _read(descriptor: int, texts: list[str], place: int) -> None:
    with open(descriptor) as file:
        texts[place] = file.read()


@cache
def _forking() -> socket.socket:
    """The socket of this process's forking one, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        popen = subprocess.Popen(
            [sys.executable, "-m", "tests.commands", str(theirs.fileno())],
            stdin=subprocess.PIPE,  # no terminal: as those of the commands
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            pass_fds=[theirs.fileno()],
        )

    @atexit.register
    def end() -> None:
        ours.close()
        popen.communicate()

    return ours


def _fork_for_each(requests: socket.socket) -> list[str]:
    """Returns in a process for a command, with its arguments; otherwise not."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for these
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _MOST, 4)
        if not request:
            sys.exit()
        if os.fork() == 0:
            break
        for each in descriptors:
            os.close(each)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    *streams, status = descriptors
    if process := os.fork():
        for each in streams:
            os.close(each)
        os.write(status, b"%d\n" % process)
        _, code = os.waitpid(process, 0)
        os.write(status, b"%d" % os.waitstatus_to_exitcode(code))
        os._exit(0)
    os.close(status)
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    arguments, environ, folder = json.loads(request)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    os.chdir(folder)
    return [str(each) for each in arguments]


def main() -> None:
    """Import, and fork for each request; then be the command."""
    from mist.cli import main as mist

    requests = socket.socket(fileno=int(sys.argv[1]))
    for where, _ in mist.lazy_commands.values():
        importlib.import_module(where.partition(":")[0])
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    sys.argv[1:] = _fork_for_each(requests)
    runpy.run_module("mist", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
