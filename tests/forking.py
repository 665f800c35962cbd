"""Processes of mist that are forked, instead of started one by one.

Python takes half a second of CPU to start and to import what a command needs, and tests run a
thousand servers and as many commands. So a process of this module imports all of that once, and
forks for each: a process of its own still, which has its own arguments, environment, folder,
standard streams and exit code, and ends as Python does. That a command also finds what it needs
when it is started is for tests of their own (tests/cli/test_reference.py, test_serve.py).

    python -m tests.forking DESCRIPTOR     forks for each request that comes from this socket
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import IO, Self

__all__ = ["ForkedProcess"]

_ROOT = Path(__file__).parents[1]
_MOST = 200_000  # bytes of a request
_NUMBER = struct.Struct("i")  # a process's, and then how it ended
# Besides the commands themselves, which import these when they run. Not pyarrow: it starts threads.
_IMPORTED = (
    *("mist.client.sync", "mist.index", "mist.server", "mist.serving", "rich.table"),
    *("mist.engine.postgres.opening", "mist.engine.redis.opening", "mist.sessions.archiving"),
)


class ForkedProcess:
    """A command of mist in a process of its own; as a `subprocess.Popen` with pipes of text.

    Close it by `with`, which waits until it has ended.

    Args:
        arguments: those after `mist`.
        environ: all of its environment. What Python itself reads of it is not looked at.
        cwd: its folder; this process's if None.
        stdin: whether it has a pipe to read from; nothing otherwise.

    Attributes:
        pid: its number.
        stdin, stdout, stderr: the other ends of its streams.
        returncode: as of `Popen`; None until it was seen to have ended.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environ: Mapping[str, str],
        cwd: Path | None = None,
        stdin: bool = False,
    ) -> None:
        self.args = ["mist", *arguments]
        self.returncode: int | None = None
        request = json.dumps([list(arguments), dict(environ), str(cwd or Path.cwd())]).encode()
        with ExitStack() as theirs:
            ends = [os.pipe() for _ in range(4)]
            (read, to_write), (stdout, out), (stderr, err), (told, tell) = ends
            for each in (read, out, err, tell):
                theirs.callback(os.close, each)
            socket.send_fds(_forking(), [request], [read, out, err, tell])
        self.stdin: IO[str] | None = open(to_write, "w")  # noqa: SIM115
        self.stdout: IO[str] | None = open(stdout, errors="backslashreplace")  # noqa: SIM115
        self.stderr: IO[str] | None = open(stderr, errors="backslashreplace")  # noqa: SIM115
        if not stdin:
            self.stdin.close()
            self.stdin = None
        self._told = told
        self._lock = Lock()
        [self.pid] = _NUMBER.unpack(os.read(told, _NUMBER.size))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in (self.stdin, self.stdout, self.stderr):
            if each is not None:
                with suppress(BrokenPipeError):
                    each.close()
        self.wait()
        os.close(self._told)

    def poll(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None if it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended.

        Args:
            timeout: seconds; for ever if None.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._told, select.POLLIN)
            ended = waiting.poll(None if timeout is None else timeout * 1000)
            with self._lock:  # others may wait, too
                if ended and self.returncode is None:
                    [self.returncode] = _NUMBER.unpack(os.read(self._told, _NUMBER.size))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, text: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Write what it reads, and wait for its end; returns what it printed, and its log.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        texts = ["", ""]
        threads = [Thread(target=self._write, args=(text,), daemon=True)]
        for place, file in enumerate((self.stdout, self.stderr)):
            threads.append(Thread(target=_read, args=(file, texts, place), daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(None if give_up is None else max(0, give_up - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if give_up is None else max(0, give_up - time.monotonic()))
        return texts[0], texts[1]

    def _write(self, text: str | None) -> None:
        if self.stdin is not None:
            with suppress(BrokenPipeError):
                self.stdin.write(text or "")
            with suppress(BrokenPipeError):
                self.stdin.close()


def _read(file: IO[str], texts: list[str], place: int) -> None:
    texts[place] = file.read()


@cache
def _forking() -> socket.socket:
    """The socket of this process's forking one, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        popen = subprocess.Popen(
            [sys.executable, "-m", "tests.forking", str(theirs.fileno())],
            stdin=subprocess.PIPE,  # no terminal: as those of the commands
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            pass_fds=[theirs.fileno()],
        )

    @atexit.register
    def end() -> None:
        ours.close()
        with popen:
            pass

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
    *streams, tell = descriptors
    if process := os.fork():
        for each in streams:
            os.close(each)
        os.write(tell, _NUMBER.pack(process))
        _, code = os.waitpid(process, 0)
        os.write(tell, _NUMBER.pack(os.waitstatus_to_exitcode(code)))
        os._exit(0)
    os.close(tell)
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
