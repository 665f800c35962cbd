"""What a publish over HTTP costs with telemetry: CPU time, of client and server together.

    python -m tests.benchmarks.telemetry [--count 3000] [--turns 5]

Each way is measured in a process of its own, in turns. Prints medians, in microseconds a request.
"""

import argparse
import http.server
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import trio

from mist.config import Config, Listen
from mist.server import open_server
from tests.http.client import connect
from tests.processes import environment

WAYS: Final = {
    "off": {},
    "every request": {"OTEL_TRACES_SAMPLER": "always_on"},
    "1 in 100": {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"},
}
_WARM_UP: Final = 300  # requests


class _Sink(http.server.BaseHTTPRequestHandler):
    """A collector that keeps nothing."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


async def measure(count: int, *, telemetry: bool) -> float:
    """Seconds of CPU for one request."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            data=Path(folder),
            listen=(Listen("http", "127.0.0.1", 0),),
            tokens="memory://",
            history="memory://",
            telemetry=telemetry,
        )
        async with open_server(config) as server, trio.open_nursery() as nursery:
            await nursery.start(server.run)
            began = 0.0
            async with connect(server) as client:
                for number in range(_WARM_UP + count):
                    if number == _WARM_UP:
                        began = time.process_time()
                    body = {"tags": ["a"], "data": "1"}
                    await client.request("POST", "/v1/messages", json=body)
            seconds = time.process_time() - began
            nursery.cancel_scope.cancel()
    return seconds / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--way", choices=WAYS)
    arguments = parser.parse_args()
    if arguments.way is not None:
        found = trio.run(lambda: measure(arguments.count, telemetry=arguments.way != "off"))
        print(found)
        return
    sink = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    sink.daemon_threads = True
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{sink.server_address[1]}"
    seconds = defaultdict[str, list[float]](list)
    for _ in range(arguments.turns):
        for way, variables in WAYS.items():
            options = ["--count", str(arguments.count), "--way", way]
            run = subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.telemetry", *options],
                env=environment(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **variables),
                stdout=subprocess.PIPE,
                check=True,
            )
            seconds[way].append(float(run.stdout))
    for way, each in seconds.items():
        print(f"{way:15} {statistics.median(each) * 1e6:6.0f} µs")


if __name__ == "__main__":
    main()
