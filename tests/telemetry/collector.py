"""A collector: an HTTP server that decodes what is exported by OTLP."""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ExportedSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.auth.jwt.issuer import Site, site

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@attrs.frozen
class Seen:
    """A span as it was exported.

    Attributes:
        parent: the id of the span that it is part of; empty for none.
        links: the ids of those that it refers to.
    """

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, object]
    failed: bool
    links: list[str]

    @classmethod
    def of(cls, span: ExportedSpan) -> "Seen":
        attributes: dict[str, object] = {
            each.key: getattr(each.value, str(each.value.WhichOneof("value")))
            for each in span.attributes
        }
        return cls(
            span.name,
            ExportedSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            attributes,
            span.status.code == Status.STATUS_CODE_ERROR,
            [link.span_id.hex() for link in span.links],
        )


class Collector:
    """See the module."""

    def __init__(self, endpoint: Site) -> None:
        self.endpoint = endpoint

    @property
    def spans(self) -> list[Seen]:
        """All that were exported."""
        return [
            Seen.of(span)
            for body in list(self.endpoint.asked)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name]

    @property
    def resource(self) -> dict[str, str]:
        """What the server says of itself."""
        [first, *_] = self.endpoint.asked
        [resource] = ExportTraceServiceRequest.FromString(first).resource_spans
        return {each.key: each.value.string_value for each in resource.resource.attributes}


@contextmanager
def collecting(
    patch: pytest.MonkeyPatch, *, answers: type[Site] = Site, **variables: str
) -> Iterator[Collector]:
    """A collector, which the environment names."""
    with site(answers=answers) as endpoint:
        patch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")  # milliseconds
        for name, value in variables.items():
            patch.setenv(name, value)
        yield Collector(endpoint)
