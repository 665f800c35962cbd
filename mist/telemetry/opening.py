"""Opening telemetry: with OpenTelemetry, as its own environment variables say."""

import os
import re
from typing import TYPE_CHECKING, Final

from mist.errors import StartupError
from mist.version import __version__

if TYPE_CHECKING:
    from mist.telemetry.spans import OpenTelemetry

__all__ = ["open_tracing"]

_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_HEADERS: Final = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
# What OpenTelemetry takes. The rest it would leave out, and log, while there are credentials in it.
_HEADER: Final = re.compile(
    r"[ \t]*[\x21\x23-\x27\x2a\x2b\x2d\x2e0-9A-Z\x5e-\x7a\x7c\x7e]+[ \t]*="
    r"[ \t]*[\x20\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*[ \t]*"
)


def open_tracing() -> "OpenTelemetry":
    """What begins spans, and exports them.

    Raises:
        StartupError: the extra is missing, or an environment variable asks for what is not there.
    """
    for name in _PROTOCOLS:
        if (protocol := os.environ.get(name)) and protocol != _PROTOCOL:
            raise StartupError(f"{name}: only {_PROTOCOL} is supported, not {protocol}")
    exporter = os.environ.get(_EXPORTER) or "otlp"
    if exporter not in ("otlp", "none"):
        raise StartupError(f"{_EXPORTER}: expected otlp or none, not {exporter}")
    for name in _HEADERS:
        given = filter(None, re.split(r"[ \t]*,[ \t]*", os.environ.get(name, "")))
        if not all(_HEADER.fullmatch(header.strip()) for header in given):
            raise StartupError(
                f"{name}: expected NAME=VALUE with commas between, other characters as in URLs"
            )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from mist.telemetry.spans import OpenTelemetry
    except ImportError as error:
        raise StartupError(
            f"--telemetry: {error.name} is missing; pip install 'mist-pubsub[otel]'"
        ) from error
    except ValueError as error:  # of a variable that is read by then
        raise StartupError(f"--telemetry: {error}") from error
    try:
        own = Resource.create({"service.name": "mist", "service.version": __version__})
        # The environment's comes last: what is given to `create` would stand above it.
        provider = TracerProvider(
            resource=own.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,  # which has no bound
        )
        if exporter == "none":
            return OpenTelemetry(provider)
        sender = OTLPSpanExporter()
        provider.add_span_processor(BatchSpanProcessor(sender))
    except (ValueError, OSError) as error:  # of a variable, or a certificate's file
        raise StartupError(f"--telemetry: {error}") from error
    return OpenTelemetry(provider, sender.shutdown)
