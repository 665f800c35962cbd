"""What stands around a request that is traced."""

from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.contextvars import get_contextvars

from mist.http.traced import Traced
from tests.telemetry.collector import TRACE, TRACEPARENT
from tests.telemetry.test_spans import Recording


async def test_log_lines_of_a_request_have_the_id_of_its_trace() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(get_contextvars().get("trace"))
        await send({"type": "http.response.start", "status": 418, "headers": []})

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        seen.append(message["status"])

    recording = Recording()
    traced = Traced(app, recording.tracing, lambda scope: "/{name}")
    headers = [(b"traceparent", TRACEPARENT.encode())]
    scope = {"type": "http", "method": "GET", "path": "/a", "headers": headers}
    await traced(scope, receive, send)
    assert seen == [TRACE, 418]
    assert "trace" not in get_contextvars()
    assert dict(recording.spans["GET /{name}"].attributes or {}) == {
        "http.request.method": "GET",
        "http.route": "/{name}",
        "http.response.status_code": 418,
    }


@pytest.mark.parametrize(
    ("headers", "state"),
    [
        ([("traceparent", TRACEPARENT)], ""),
        ([("tracestate", "a=1"), ("traceparent", TRACEPARENT), ("tracestate", "b=2")], "a=1,b=2"),
        ([("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT)], None),
        ([("tracestate", "a=1")], None),
    ],
)
async def test_a_trace_is_continued_where_one_is_named(
    headers: list[tuple[str, str]], state: str | None
) -> None:
    seen: list[dict[str, str]] = []
    recording = Recording()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(recording.tracing.headers()))

    async def unused(*message: Any) -> Any:
        raise AssertionError

    raw = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": "GET", "path": "/a", "headers": raw}
    await Traced(app, recording.tracing, lambda scope: None)(scope, unused, unused)
    [told] = seen
    assert (TRACE in told["traceparent"]) is (state is not None)
    assert told.get("tracestate", "") == (state or "")
