"""A server takes anything that a peer sends: no traceback, no growth, and it still answers.

    pytest tests/fuzz                      a few thousand inputs a protocol
    pytest tests/fuzz --slow -s            a million
    MIST_FUZZ_SEED=7 MIST_FUZZ_INPUTS=50000 pytest tests/fuzz -s -k nats

Each test prints its seed and what it came to.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest

from tests.fuzz.conversations import converse
from tests.fuzz.dialects import DIALECTS
from tests.fuzz.vocabulary import FULL
from tests.processes import dial, environment

_FEW: Final = 3_000
_MANY: Final = 1_000_000
_GROWTH: Final = 48.0  # MiB
_SETTLED: Final = 100_000  # inputs, of which a tenth has had everything imported and cached
_OPTIONS: Final = (
    *("--listen", "tcp://127.0.0.1:0", "--listen", "nats://127.0.0.1:0"),
    *("--listen", "http://127.0.0.1:0", "--tokens", "memory://", "--durability", "process"),
    *("--keep-bytes", "1MiB", "--token-rate", "1000000", "--request-rate", "1000000"),
    *("--max-connections", "1000"),
)


@attrs.frozen
class Fuzzed:
    """A server, whose log goes to a file."""

    process: "subprocess.Popen[str]"
    urls: dict[str, str]
    log: Path


@contextmanager
def fuzzed(folder: Path) -> Iterator[Fuzzed]:
    """A server with a token that may do everything, and what every endpoint needs."""
    log = folder / "log"
    command = [sys.executable, "-m", "mist", "serve", "--data", str(folder / "data"), *_OPTIONS]
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment()
        ) as process,
    ):
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline().strip() for _ in range(3)]
            urls = {
                url.partition(":")[0]: url
                for url in (line.removeprefix("listening on ") for line in lines)
            }
            answers(
                urls["tcp"], b"register *,>*,/*,>/*,.> %b\nset >.> %b\n" % ((FULL.encode(),) * 2)
            )
            yield Fuzzed(process, urls, log)
        finally:
            process.kill()


def answers(url: str, sent: bytes = b"") -> None:
    """A server that answers, after having done all that was sent."""
    with dial(url) as sock:
        sock.sendall(sent + b"ping\n")
        assert sock.recv(1_000) == b"pong\n"


@pytest.mark.parametrize("protocol", DIALECTS)
@pytest.mark.parametrize(
    "count", [_FEW, pytest.param(_MANY, marks=pytest.mark.slow)], ids=["few", "million"]
)
def test_a_server_takes_anything(protocol: str, count: int, tmp_path: Path) -> None:
    seed = os.environ.get("MIST_FUZZ_SEED", "1")
    count = int(os.environ.get("MIST_FUZZ_INPUTS", count))
    dialect = DIALECTS[protocol]
    with fuzzed(tmp_path) as server:
        pid = server.process.pid
        figures = converse(dialect, server.urls[dialect.listener], pid, count, seed)
        print(f"{protocol}, seed {seed}: {figures}")
        assert not figures.stuck
        answers(server.urls["tcp"])
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "[error" not in log, log[-4_000:]
    assert figures.taken >= count
    assert count < _SETTLED or figures.late < figures.early + _GROWTH
