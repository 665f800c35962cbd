"""mist: a tag-based publish/subscribe service.

A message carries a set of tags; a subscription names tags and gets every message that carries
all of them.

General layout, from the bottom up; a module imports only what stands before it:

    version, errors             the vocabulary begins: what goes wrong
    addresses                   topics and subjects as tags
    fields, attributes,         what is known of a session; targeted delivery
    audience
    message, wire               tags and messages; the record, in which messages cross the server
    commands, replies           what a peer asks and gets
    index/                      which subscriptions does a tag set satisfy?
    protocols/                  the dialects: bytes to commands, replies to bytes
    change                      tasks that wait for the next change of something
    outage                      what the log tells of one
    telemetry/                  traces, by OpenTelemetry
    client/                     the other end, for programs
    broker/                     who gets a message, in which form, and what is queued for them
    sqlite                      what files in SQLite have in common
    auth/                       tokens and what they grant
    history/                    the durable log of messages
    engine/                     one log for many servers
    config/                     settings
    archive/, pipeline/         the log as Parquet; jobs on Spark, and its data source `mist`
    sessions/                   one connected peer: dispatch, recovery, sequencer; the hub
    bus/                        channels of `mist.bus`
    certificate                 what TLS is spoken with
    systemd, control            the service manager; commands on the same machine
    listening                   what is bound to addresses
    transports/, http/          streams of bytes; requests, with static/ for browsers
    allocator, collector        the process: its memory allocator; its garbage collection
    descriptors                 the table of its open files
    logs, server                logging; one nursery that runs it all
    reloading, backup/          settings taken again; copies of a running server
    serving                     the server as a process
    bench/, cli/                what it costs; the command line

Nothing in `broker` or below does I/O or knows trio, but `change`; nothing below `transports`
knows a socket.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mist.broker.broker import Broker
    from mist.config import Config, Listen, load_config
    from mist.errors import MistError
    from mist.message import Message
    from mist.server import Server, open_server
    from mist.serving import serve
    from mist.sessions.hub import Hub
    from mist.sessions.local import subscribe
    from mist.version import __version__

__all__ = [
    "Broker",
    "Config",
    "Hub",
    "Listen",
    "Message",
    "MistError",
    "Server",
    "__version__",
    "load_config",
    "open_server",
    "serve",
    "subscribe",
]

_HOMES: Final = {
    "Broker": "broker.broker",
    "Config": "config",
    "Hub": "sessions.hub",
    "Listen": "config",
    "Message": "message",
    "MistError": "errors",
    "Server": "server",
    "__version__": "version",
    "load_config": "config",
    "open_server": "server",
    "serve": "serving",
    "subscribe": "sessions.local",
}


def __getattr__(name: str) -> Any:
    # On demand, since each of Spark's Python workers imports this package, and the server takes
    # half a second of processor that none of them needs.
    if name not in _HOMES:
        raise AttributeError(f"module 'mist' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"mist.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("mist."):
            raise  # something that mist needs
        # Not an AttributeError, whose text `from mist import …` would replace.
        raise ImportError(
            f"mist.{name} is the server's, and only its client is installed: "
            "pip install mist-pubsub",
            name=error.name,
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
