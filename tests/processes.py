"""Servers and commands as processes of their own, as a user runs them."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import attrs

from mist.auth.key import make_key_file
from tests.forking import ForkedProcess
from tests.servers import port_of

_PROGRAM = ("-m", "mist")
LISTEN = ("--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0")


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without settings of mist's, and with `variables`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MIST_")}
    return {**kept, **variables}


@attrs.frozen
class Process:
    """A running server.

    Attributes:
        urls: where it listens, TCP first.
    """

    popen: "subprocess.Popen[str] | ForkedProcess"
    urls: list[str]

    @property
    def stdout(self) -> IO[str]:
        assert self.popen.stdout is not None
        return self.popen.stdout

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait, and return the exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(20)


@contextmanager
def serving(
    data: Path,
    *options: str,
    listen: Sequence[str] = LISTEN,
    program: Sequence[str] = _PROGRAM,
    pass_fds: Sequence[int] = (),
    listens: bool = True,
    **variables: str,
) -> Iterator[Process]:
    """`mist serve` in a process of its own, killed at the end if it still runs.

    It is forked where nothing asks for a Python that is started: see `_may_fork`.

    Args:
        data: the data directory; made if it is missing.
        options: of the command. With `--listen` among them, `listen` is not used.
        listen: the options that say where it listens.
        program: arguments of Python's that run mist, which is started for them.
        pass_fds: descriptors that it inherits, from a Python that is started.
        listens: whether it has to come so far.
        variables: of its environment.
    """
    if "--listen" not in options:
        options = (*listen, *options)
    listeners = options.count("--listen")
    arguments = ["serve", "--data", str(data), *options]
    environ = environment(**variables)
    running: subprocess.Popen[str] | ForkedProcess
    if program == _PROGRAM and not pass_fds and _may_fork(variables):
        running = ForkedProcess(arguments, environ=environ)
    else:
        running = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            pass_fds=pass_fds,
        )
    with running as popen:
        try:
            assert popen.stdout is not None
            lines = [popen.stdout.readline().strip() for _ in range(listeners)]
            if listens and not all(lines):
                assert popen.stderr is not None
                raise AssertionError(f"it does not listen: {popen.stderr.read()}")
            yield Process(popen, [line.removeprefix("listening on ") for line in lines])
        finally:
            if popen.poll() is None:
                popen.kill()


def token_key(folder: Path) -> Path:
    """A key file of a token registry that servers share, made where it is missing."""
    path = folder / "token.key"
    if not path.exists():
        make_key_file(path)
    return path


def dial(url: str) -> socket.socket:
    """A connection to a listener's URL that sends at once, and waits no longer than 20 seconds."""
    sock = socket.create_connection(("127.0.0.1", port_of(url)), timeout=20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@contextmanager
def joined(thread: threading.Thread) -> Iterator[None]:
    """Have a thread run, and wait at the end until it has ended; for half a minute at most."""
    thread.start()
    try:
        yield
    finally:
        thread.join(30)
        assert not thread.is_alive()


def mist(
    *arguments: str,
    stdin: str | bytes | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
    **variables: str,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, in this folder or in `cwd`; seconds. See `_may_fork`."""
    if isinstance(stdin, bytes):
        stdin = stdin.decode()
    forked = _may_fork(variables)
    if cwd is not None:
        variables = {"PYTHONPATH": os.getcwd(), **variables}
    environ = environment(**variables)
    if forked:
        with ForkedProcess(arguments, environ=environ, cwd=cwd, stdin=True) as popen:
            try:
                out, err = popen.communicate(stdin, timeout)
            finally:
                popen.kill()
            return subprocess.CompletedProcess(popen.args, popen.wait(), out, err)
    return subprocess.run(
        [sys.executable, "-m", "mist", *arguments],
        cwd=cwd,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environ,
        check=False,
    )


def _may_fork(variables: Iterable[str]) -> bool:
    """Whether no variable is for Python itself, or decides what is imported."""
    return all(name.startswith("MIST_") and name != "MIST_PURE" for name in variables)
