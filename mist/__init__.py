"""mist: a tag-based publish/subscribe service.

A message carries a set of tags; a subscription names tags and gets every message that carries
all of them.

General layout, from the bottom up; a module imports only what stands before it:

    errors, message, commands   the words: errors, tags, what a peer asks and gets
    addresses, audience, roster topics and subjects as tags; whom a message is for
    index/                      which subscriptions does a tag set satisfy?
    backlog, outbox, lanes,     one peer's queue, and ways into it; the dialects
    protocols/
    directory, routes, fanout,  who gets a message
    screening, broker
    accounts, meters            who got how much; how long what takes, by samples
    sqlite                      what files in SQLite have in common
    auth/                       tokens and what they grant
    history/                    the durable log of messages
    archive/                    the log as Parquet, sealed for Spark
    hub, clients, session,      what all peers share; one peer; one that sends commands
    dialogue
    sequencer, reading          stored, then delivered; from the log to live
    local, pacing, bus/         a peer in this process; whose turn it is; channels
    config/, listening          settings; what is bound to addresses
    transports/, http/          streams of bytes; requests, with static/ for browsers
    collector, server           the process's garbage; one nursery that runs it all
    client/, cli/               the other end, for programs and for people
    pipeline/                   jobs on Spark, and its data source `mist`
    bench/                      what it costs

Nothing below `auth` does I/O or knows trio; nothing below `transports` knows a socket.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mist.broker import Broker
    from mist.config import Config, Listen, load_config
    from mist.errors import MistError
    from mist.hub import Hub
    from mist.local import subscribe
    from mist.message import Message
    from mist.server import Server, open_server, serve

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

__version__ = "0.1.0"

_HOMES: Final = {
    "Broker": "broker",
    "Config": "config",
    "Hub": "hub",
    "Listen": "config",
    "Message": "message",
    "MistError": "errors",
    "Server": "server",
    "load_config": "config",
    "open_server": "server",
    "serve": "server",
    "subscribe": "local",
}


def __getattr__(name: str) -> Any:
    # On demand, since each of Spark's Python workers imports this package, and the server takes
    # half a second of processor that none of them needs.
    if name not in _HOMES:
        raise AttributeError(f"module 'mist' has no attribute {name!r}")
    value = getattr(import_module(f"mist.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
