"""Telemetry is opened as the environment says, closed in time, and not even imported where off."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

from mist.errors import StartupError
from mist.telemetry.opening import open_tracing
from tests.auth.jwt.issuer import Site
from tests.http.client import request
from tests.processes import environment
from tests.servers import listeners, running
from tests.telemetry.collector import TRACE, TRACEPARENT, Collector, collecting
from tests.waiting import until

LISTEN = listeners("http")


class Silent(Site):
    """Answers when it is told to.

    Attributes:
        released: set for that.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.released = threading.Event()

    def answer(self, asked: bytes) -> tuple[int, bytes]:
        self.released.wait(600)
        return 200, b""


WITHOUT = """
import sys, trio
from pathlib import Path
from mist.config import Config, Listen
from mist.server import open_server

async def main():
    config = Config(data=Path(sys.argv[1]), listen=(Listen("http", "127.0.0.1", 0),), tokens="memory://")
    async with open_server(config) as server, trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await server.hub.store(frozenset({"a"}), b"1")
        nursery.cancel_scope.cancel()

trio.run(main)
print([name for name in sys.modules if name.startswith(("opentelemetry", "mist.telemetry."))])
"""


def test_a_server_without_it_imports_none_of_it(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)],
        env=environment(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "grpc",
            "OTEL_EXPORTER_OTLP_PROTOCOL: only http/protobuf is supported, not grpc",
        ),
        (
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "http/json",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: only http/protobuf is supported, not http/json",
        ),
        (
            "OTEL_TRACES_EXPORTER",
            "zipkin",
            "OTEL_TRACES_EXPORTER: expected otlp or none, not zipkin",
        ),
    ],
)
def test_what_the_environment_asks_for_in_vain_is_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(StartupError) as caught:
        open_tracing()
    assert str(caught.value) == line


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"]
)
@pytest.mark.parametrize("value", ["Authorization: Bearer s3cret", "a=b,s3cret", 'a="s3cret"'])
def test_headers_that_are_none_are_refused_and_told_to_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(StartupError, match=f"^{name}: expected NAME=VALUE") as caught:
        open_tracing()
    assert "s3cret" not in str(caught.value) + caplog.text


async def test_headers_as_opentelemetry_has_them_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    headers = "authorization=Bearer s3cret , x-b=a%2Cb=,"
    with collecting(monkeypatch, OTEL_EXPORTER_OTLP_HEADERS=headers) as collector:
        async with running(tmp_path, listen=LISTEN, telemetry=True) as server:
            await request(server, "GET", "/")
        assert collector.spans
    assert "s3cret" not in caplog.text


def test_a_variable_that_is_read_early_is_refused_in_one_line(tmp_path: Path) -> None:
    options = ("serve", "--telemetry", "--data", str(tmp_path), "--listen", "http://127.0.0.1:0")
    run = subprocess.run(
        [sys.executable, "-m", "mist", *options],
        env=environment(OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT="x"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert run.stderr.startswith("mist serve: --telemetry: OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(StartupError) as caught:
        open_tracing()
    assert str(caught.value) == (f"--telemetry: {name} is missing; pip install 'mist-pubsub[otel]'")


async def test_the_server_names_itself(tmp_path: Path, collector: Collector) -> None:
    async with running(tmp_path, listen=LISTEN, telemetry=True) as server:
        await request(server, "GET", "/")
        await until(lambda: collector.spans)
    assert collector.resource["service.name"] == "mist"
    assert collector.resource["service.version"] == "0.1.0"


async def test_the_environment_names_it_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "OTEL_SERVICE_NAME": "orders",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    with collecting(monkeypatch, **variables) as collector:
        async with running(tmp_path, listen=LISTEN, telemetry=True) as server:
            await request(server, "GET", "/")
            await until(lambda: collector.spans)
        assert collector.resource["service.name"] == "orders"
        assert collector.resource["deployment.environment.name"] == "test"


async def test_what_has_ended_is_exported_when_the_server_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting(monkeypatch, OTEL_BSP_SCHEDULE_DELAY="3600000") as collector:
        async with running(tmp_path, listen=LISTEN, telemetry=True) as server:
            await request(server, "GET", "/")
            assert collector.spans == []
        assert [span.name for span in collector.spans] == ["GET /"]


async def test_the_sampler_is_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting(monkeypatch, OTEL_TRACES_SAMPLER="always_off") as collector:
        async with running(tmp_path, listen=LISTEN, telemetry=True) as server:
            await request(server, "GET", "/")
        assert collector.spans == []


async def test_a_collector_that_is_away_hurts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with trio.fail_after(30):
        async with running(tmp_path, listen=LISTEN, telemetry=True) as server:
            for _ in range(50):
                assert (await request(server, "GET", "/")).status == 200


async def test_a_collector_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        collecting(monkeypatch, answers=Silent, OTEL_EXPORTER_OTLP_TIMEOUT="600") as collector,
        trio.fail_after(60),
    ):
        async with running(tmp_path, listen=LISTEN, telemetry=True) as server:
            for _ in range(5):
                assert (await request(server, "GET", "/")).status == 200
            await until(lambda: collector.endpoint.asked)
        assert isinstance(collector.endpoint, Silent)
        collector.endpoint.released.set()


async def test_where_nothing_is_exported_traces_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting(monkeypatch, OTEL_TRACES_EXPORTER="none") as collector:
        async with running(tmp_path, listen=LISTEN, telemetry=True) as server:
            await request(server, "GET", "/")
            tracing = server.hub.tracing
            assert tracing is not None
            with tracing.request("GET", "/", {"traceparent": TRACEPARENT}) as span:
                assert span.trace_id == TRACE
        assert collector.endpoint.asked == []
