"""What stands around a request that is traced."""

from collections.abc import MutableMapping
from typing import Any

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
