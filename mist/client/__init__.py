"""The client: publish and administer over TCP, subscribe over TCP or a WebSocket.

    async with connect("tcp://127.0.0.1:1445") as client:
        async with client.subscribe(["room:1"]) as subscription:
            await client.publish(["room:1", "chat"], "hello")
            async for message in subscription:
                print(message.tags, message.text)

For trio; `mist.client.sync` is the same for scripts without an event loop.

What you can rely on:

* *Publishing* queues and returns. A burst leaves in few writes, and `publish` waits only
  where the buffer is full. `await client.flush()` is the fence: it returns when the server has
  carried all of it out, and raises where it refused some. The end of the block flushes too.
* *A lost connection* is made again, with all subscriptions, waiting a random and growing time
  between attempts. Messages still queued are sent then. Those written before the break and not
  yet fenced were carried out once or not at all, never twice: `flush` raises `Unconfirmed`.
* *Subscribing* is at most once, and says what is missing: a full queue drops the newest and
  counts them (`Subscription.lost`), a lost connection leaves a gap
  (`Subscription.reconnects`); `on_gap` and `raise_on_gap` tell of both where they happened.
* *A server with a history* leaves no gap: after a lost connection each subscription goes on
  behind the last message it was given, with none twice; only where the history has forgotten
  what came next is there a `Gap`. `since` begins in the past, and `store` waits until a message
  is durable.
* *A wrong or withdrawn credential* is final: `AccessDenied`, and no attempt after it.

General layout, from the bottom up:

    errors        what only clients raise
    address       URLs
    options       what a link is told, and its states
    arguments     what a program passes in, looked at
    position      places in a history
    dialect       requests to bytes, bytes to events: the contract; no I/O
      words         the line protocol, a command and a reply at a time
      line          how its answers find their questions
      frames        the JSON frames of a WebSocket
    wire          pieces out, chunks in
    websocket     a wire of frames, with its handshake
    dial          addresses to wires, TLS between
    outgoing      the bounded queue of what is to be written
    publishing    what was published, and what became of it
    subscription  the bounded queue of what is to be read, with its gaps
    asking        a subscribe on its way
    topics        who listens to what
    delivery      what arrives, given to who listens
    subscribing   what the server is asked for, so that nothing is missing
    link          one connection after the other
    endpoint      what outlives them
    client        what a program calls
    connect       the entry point
    portal        a thread with all this inside
    sync          the client for scripts

Two ways to walk: a publish goes `client → publishing → endpoint → outgoing → link → dialect →
wire`; a delivery comes `wire → link → dialect → endpoint → delivery → subscription`.
"""

from mist.client.client import Client
from mist.client.connect import connect
from mist.client.errors import (
    AccessDenied,
    BadArgument,
    HistoryOff,
    HistoryUnavailable,
    MessagesLost,
    Rejected,
    Revoked,
    Unconfirmed,
    Unframable,
    Unsupported,
)
from mist.client.options import Backoff, State
from mist.client.position import Position
from mist.client.subscription import Gap, Subscription
from mist.errors import ClientClosed, ClientError, ConnectError, ConnectionLost, RemoteError
from mist.message import Message

__all__ = [
    "AccessDenied",
    "Backoff",
    "BadArgument",
    "Client",
    "ClientClosed",
    "ClientError",
    "ConnectError",
    "ConnectionLost",
    "Gap",
    "HistoryOff",
    "HistoryUnavailable",
    "Message",
    "MessagesLost",
    "Position",
    "Rejected",
    "RemoteError",
    "Revoked",
    "State",
    "Subscription",
    "Unconfirmed",
    "Unframable",
    "Unsupported",
    "connect",
]
