"""Structured logging: one pipeline for mist and its libraries, to standard error.

mist logs through `logging.getLogger("mist.…")`, with the fields of an event in `extra`, so a
program that embeds mist handles its log lines like all others. `configure` is for the command
line, which owns its process.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

__all__ = ["configure"]

_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def _add_extra(
    logger: object, name: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    record = event.get("_record")
    if isinstance(record, logging.LogRecord):
        event.update((key, value) for key, value in vars(record).items() if key not in _OWN)
    return event


def configure(style: str, level: str) -> None:
    """Send log lines to standard error.

    Args:
        style: `console` for people, `json` for programs: one object a line.
        level: minimum log level: `debug`, `info`, `warning`, `error`. Debug lines of libraries
            are never written, because they may quote what peers sent, including tokens.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if style == "json":
        # Tracebacks are text inside the object, not lines between objects.
        shared.append(structlog.processors.format_exc_info)
        renderer: Any = structlog.processors.JSONRenderer()
    else:
        # Locals in tracebacks would show tokens.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared[:3], _add_extra, *shared[3:]],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    logging.getLogger("mist").setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
