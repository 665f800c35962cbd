"""A server takes anything that a peer sends: no traceback, no growth, and it still answers.

    pytest tests/fuzz                      a few thousand inputs a protocol
    pytest tests/fuzz --slow -s            a million
    MIST_FUZZ_SEED=7 MIST_FUZZ_INPUTS=50000 pytest tests/fuzz -s -k nats

Each test prints its seed and what it came to.
"""

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest

from tests.fuzz.conversations import converse, goes_on
from tests.fuzz.dialects import DIALECTS, Http
from tests.fuzz.vocabulary import FULL
from tests.processes import dial, environment
from tests.servers import port_of

_FEW: Final = 3_000
_MANY: Final = 1_000_000
_GROWTH: Final = 24.0  # MiB, of what a server caches within its bounds
_OPTIONS: Final = (
    *("--listen", "tcp://127.0.0.1:0", "--listen", "nats://127.0.0.1:0"),
    *("--listen", "http://127.0.0.1:0", "--tokens", "memory://", "--durability", "process"),
    *("--keep-bytes", "64KiB", "--token-rate", "1000000", "--request-rate", "1000000"),
    *("--max-connections", "1000", "--trusted-proxy", "127.0.0.1"),
)
_ARROW: Final = "application/vnd.apache.arrow.stream"
_ARROW_START: Final = b"\xff\xff\xff\xff"
_PUBLISHED: Final = (b"a", b"a,b", b"room:1", b"/foo", b"/foo/bar", b".foo.bar")


@attrs.frozen
class Fuzzed:
    """A server, whose log goes to a file."""

    process: "subprocess.Popen[str]"
    urls: dict[str, str]
    log: Path

    def request(self, method: str, path: str, body: bytes = b"", kind: str = "") -> bytes:
        """Make a request, and return the body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", port_of(self.urls["http"]))
        try:
            connection.request(method, path, body, {"Content-Type": kind} if kind else {})
            return connection.getresponse().read()
        finally:
            connection.close()

    def contained_failures(self) -> list[str]:
        """The samples of the metric that counts them."""
        metrics = self.request("GET", "/metrics").decode().splitlines()
        return [line for line in metrics if line.startswith("mist_contained_failures_total")]


@contextmanager
def fuzzed(folder: Path) -> Iterator[Fuzzed]:
    """A server with a token that may do everything, and as many messages as it will keep.

    Few, since what reads all of them is what takes longest, and memory in proportion.
    """
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
            token = FULL.encode()
            registered = b"register *,>*,/*,>/*,.> %b\nset >.> %b\n" % (token, token)
            publishes = [
                b"publish %b %0100d\n" % (tags, n) for n in range(100) for tags in _PUBLISHED
            ]
            answers(urls["tcp"], registered + b"".join(publishes))
            yield Fuzzed(process, urls, log)
        finally:
            process.kill()


def load_arrow(server: Fuzzed) -> None:
    """Have a server import what it answers in Arrow with: a cost that it has once.

    The first page of `/v1/log`, or part that is staged, imports numpy and pyarrow, which takes
    50 MiB; and pyarrow imports pandas with the first row, which takes 40 MiB more where it is
    installed, as for the tests of the pipeline.
    """
    assert server.request("GET", "/v1/log").startswith(_ARROW_START)
    refused = server.request("PUT", "/v1/log/stage/t/0/0/0/0", b"none", _ARROW)
    assert b"no such Arrow stream" in refused


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
        if isinstance(dialect, Http):
            load_arrow(server)
        pid, url = server.process.pid, server.urls[dialect.listener]
        figures = converse(dialect, url, pid, count, seed)
        print(f"{protocol}, seed {seed}: {figures}")
        assert not figures.stuck
        assert goes_on(dialect, url)
        answers(server.urls["tcp"])
        failures = server.contained_failures()
        assert failures
        assert all(line.endswith(" 0.0") for line in failures), failures
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "[error" not in log, log[-4_000:]
    assert figures.taken >= count
    assert figures.growth < _GROWTH
