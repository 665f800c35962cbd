"""Structured logging: one pipeline for mist and its libraries, to standard error.

mist logs through `logging.getLogger("mist.…")`, with the fields of an event in `extra`, so a
program that embeds mist handles its log lines like all others. `configure` is for the command
line, which owns its process.

Any field of any record may hold text that a peer chose. So all that is written is escaped, here and
nowhere else: a record is one line of printable characters, and the lines of a traceback below it
are indented. In `json` the encoding does that: it is ASCII.
"""

import logging
import sys
from collections.abc import MutableMapping
from io import StringIO
from typing import Any, Final, TextIO

import structlog
from structlog.typing import ExcInfo

__all__ = ["configure"]

_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_BELOW: Final = "    "  # before each line below a record's first


class _Verbatim:
    """A value that is written as this text, since nothing but a string is written otherwise."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _escaped(text: str) -> str:
    """Text with what isn't printable (`str.isprintable`) as in a literal: `\\x1b`, `\\n`."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else repr(each)[1:-1] for each in text])


def _below(text: str) -> str:
    """Lines that follow a record."""
    return "\n".join([_BELOW + _escaped(line) for line in text.strip("\n").split("\n")])


def _escape(logger: object, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape every field for the console, but for the exception: see `_write_traceback`."""
    for key, value in event.items():
        if key == "event":
            event[key] = _escaped(str(value))
        elif key in ("stack", "exception"):
            event[key] = _below(str(value))
        elif isinstance(value, str):
            if not value.isprintable():
                event[key] = _Verbatim(repr(value))  # quoted
        elif key != "exc_info" and not isinstance(value, bool | int | float):
            event[key] = _Verbatim(_escaped(repr(value)))
    return event


def _write_traceback(sio: TextIO, exc_info: ExcInfo) -> None:
    text = StringIO()
    # Locals in tracebacks would show tokens.
    structlog.dev.plain_traceback(text, exc_info)
    sio.write("\n" + _below(text.getvalue()))


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
        rendering: list[Any] = [structlog.processors.JSONRenderer()]
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=_write_traceback
        )
        rendering = [_escape, renderer]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared[:3], _add_extra, *shared[3:]],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
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
