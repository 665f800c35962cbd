"""Spans of OpenTelemetry, as they are recorded."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mist.telemetry.spans import OpenTelemetry
from tests.telemetry.collector import TRACE, TRACEPARENT


class Recording:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = OpenTelemetry(provider)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def recording() -> Recording:
    return Recording()


def test_what_is_done_for_one_is_part_of_it_and_for_many_refers_to_each(
    recording: Recording,
) -> None:
    tracing, origins = recording.tracing, []
    for method in ("GET", "PUT"):
        with tracing.request(method, "/a", {}):
            origins.append(tracing.origin())
    assert tracing.origin() is None
    one, other = origins
    assert one is not None
    assert other is not None
    with tracing.task("of one", {}, [one, one]), tracing.task("of both", {}, [one, other, one]):
        pass
    spans = recording.spans
    get, put = (spans[name].context for name in ("GET /a", "PUT /a"))
    assert get is not None
    assert put is not None
    parent = spans["of one"].parent
    assert parent is not None
    assert parent.span_id == get.span_id
    assert not spans["of one"].links
    assert [link.context.span_id for link in spans["of both"].links] == [get.span_id, put.span_id]


def test_a_task_for_nobody_begins_a_trace(recording: Recording) -> None:
    with recording.tracing.task("commit", {"messages": 3}):
        pass
    span = recording.spans["commit"]
    assert span.parent is None
    assert dict(span.attributes or {}) == {"mist.messages": 3}


def test_a_request_is_not_part_of_what_is_current(recording: Recording) -> None:
    with recording.tracing.task("outer", {}), recording.tracing.request("GET", "/a", {}):
        pass
    assert recording.spans["GET /a"].parent is None


def test_a_method_that_nobody_knows_is_not_told(recording: Recording) -> None:
    with recording.tracing.request("HUSH", "/a", {}):
        pass
    assert dict(recording.spans["HTTP /a"].attributes or {}) == {
        "http.request.method": "_OTHER",
        "http.route": "/a",
    }


@pytest.mark.parametrize(
    ("traceparent", "trace"),
    [
        (TRACEPARENT, TRACE),
        ("00-zz", None),
        ("ff-" + TRACEPARENT[3:], None),
        ("00-" + "0" * 32 + TRACEPARENT[35:], None),
        ("", None),
    ],
)
def test_only_a_trace_that_can_be_is_continued(
    recording: Recording, traceparent: str, trace: str | None
) -> None:
    with recording.tracing.request("GET", None, {"traceparent": traceparent}) as span:
        assert (span.trace_id == TRACE) is (trace is not None)
        assert span.headers["traceparent"].startswith(f"00-{span.trace_id}-")
        assert span.headers == recording.tracing.headers()


def test_a_long_state_is_not_passed_on(recording: Recording) -> None:
    state = ",".join(f"vendor{number}={'x' * 20}" for number in range(30))
    headers = {"traceparent": TRACEPARENT, "tracestate": state}
    with recording.tracing.request("GET", None, headers) as span:
        assert set(span.headers) == {"traceparent"}


def test_what_raises_has_failed_and_tells_no_text(recording: Recording) -> None:
    with pytest.raises(ValueError, match="hush"):
        with recording.tracing.task("commit", {}):
            raise ValueError("hush")
    span = recording.spans["commit"]
    assert dict(span.attributes or {}) == {"error.type": "ValueError"}
    assert not span.events
    assert "hush" not in span.to_json()


@pytest.mark.parametrize(("status", "failed"), [(200, False), (404, False), (500, True)])
def test_only_what_is_the_servers_fault_is_a_failure_of_a_request(
    recording: Recording, status: int, failed: bool
) -> None:
    with recording.tracing.request("GET", "/a", {}) as span:
        span.answered(status)
    assert ("error.type" in dict(recording.spans["GET /a"].attributes or {})) is failed


def test_a_question_that_is_refused_has_failed(recording: Recording) -> None:
    url = "https://name:hush@auth.example:8443/hush?hush"
    with recording.tracing.question("POST", url) as span:
        span.answered(404)
    span_of = recording.spans["POST auth.example"]
    assert dict(span_of.attributes or {}) == {
        "http.request.method": "POST",
        "server.address": "auth.example",
        "server.port": 8443,
        "http.response.status_code": 404,
        "error.type": "404",
    }


def test_a_span_that_was_ended_in_its_block_ends_once(
    recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    with recording.tracing.request("GET", "/a", {}) as span:
        span.end()
        assert list(recording.spans) == ["GET /a"]
        span.answered(500)
    assert [each for each in caplog.records if each.name == "opentelemetry.sdk.trace"] == []
