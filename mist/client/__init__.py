"""The client: publish and subscribe over TCP or a WebSocket, administer over TCP.

    async with connect("tcp://127.0.0.1:1445") as client:
        async with client.subscribe(["room:1"]) as subscription:
            await client.publish(["room:1", "chat"], "hello")
            async for message in subscription:
                print(message.tags, message.text)

It runs under asyncio and trio. `mist.client.sync` is the same for scripts without an event loop.

Guarantees:

* *Publishing* queues and returns. A burst leaves in few writes; `publish` waits only where the
  send buffer is full (backpressure). `await client.flush()` is the fence: it returns when the
  server has handled all of it, and raises where the server refused some. The end of the block
  flushes too.
* *Reconnect*: a lost connection is restored, with all subscriptions, after an exponential
  backoff with full jitter. Messages still queued are sent then. Those written before the break
  and not yet fenced were handled once or not at all, never twice: `flush` raises `Unconfirmed`.
* *Subscribing* is at most once, and reports what is missing. A full queue drops the newest
  messages and counts them (`Subscription.lost`); a lost connection leaves a gap
  (`Subscription.reconnects`). `on_gap` and `raise_on_gap` report both at the point where they
  happened.
* *Recovery*: with a server that keeps a history, a lost connection leaves no gap. Each
  subscription resumes after the last message it was given, without duplicates. Only where the
  history no longer has what came next is there a `Gap`. `since` begins in the past, and `store`
  waits until a message is durable.
* *A wrong or revoked credential* is final: `AccessDenied`, and no further attempt.

General layout, from the bottom up:

    errors              what only clients raise
    address             URLs
    backoff             how long to wait before an attempt to connect
    options             connection options and states
    arguments           argument validation
    position            positions in a history
    dialect             requests to bytes, bytes to events: the contract; no I/O
      line_codec        the line protocol: encode a command, decode a reply
      line              the line protocol: request pipelining
      frames            the JSON frames of a WebSocket
    change, home            tasks that wait for a change; the loop that a client belongs to
    transport           the contract, and plain streams
    websocket           a WebSocket as a transport, with its handshake
    dial                open a stream, TLS and a WebSocket
    send_buffer         the bounded queue of what is to be written
    publisher           encoding of published messages, and their confirmation
    subscription        the bounded queue of one reader, with its gaps
    subscribe_request   subscribes and resumes in flight
    subscription_table  the local subscriptions, and which of them a message matches
    fanout              received messages to local subscriptions, with backpressure
    subscriber          subscribe, unsubscribe, and resume after a reconnect
    supervisor          connect, heartbeat, reconnect
    state               what outlives a connection
    client              the API
    connect             the entry point
    blocking_portal     a thread that runs all of this
    sync                the synchronous client

A publish takes the path `client → publisher → state → send_buffer → supervisor → dialect →
transport`; a delivery comes `transport → supervisor → dialect → state → fanout → subscription`.
"""

from mist.client.backoff import Backoff
from mist.client.client import Client
from mist.client.connect import connect
from mist.client.errors import (
    AccessDenied,
    BadArgument,
    HistoryOff,
    HistoryUnavailable,
    LatestOff,
    MessagesLost,
    NoEventLoop,
    RegistryUnavailable,
    Rejected,
    Revoked,
    TooManyRequests,
    Unconfirmed,
    Unframable,
    Unsupported,
)
from mist.client.options import State
from mist.client.position import Latest, Position
from mist.client.presence import PresenceWatch
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
    "Latest",
    "LatestOff",
    "Message",
    "MessagesLost",
    "NoEventLoop",
    "Position",
    "PresenceWatch",
    "RegistryUnavailable",
    "Rejected",
    "RemoteError",
    "Revoked",
    "State",
    "Subscription",
    "TooManyRequests",
    "Unconfirmed",
    "Unframable",
    "Unsupported",
    "connect",
]
