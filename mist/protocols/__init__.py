"""The dialects: bytes to Commands, Replies to bytes. No I/O.

One package a dialect, each with a `Protocol` and the wire form of its deliveries
(`mist.wire.WireForm`):

    line/       the line protocol of TCP
    frames/     mist's own WebSocket frames
    json/       nanopack/mist's JSON, over TCP and, in `json.frames`, over a WebSocket
    subjects/   NATS and rtmb
    topics/     guble, in WebSocket messages

`event_forms` is how deliveries look over HTTP, which sends commands in its own way; `rfc6455` and
`client_frames` are what the dialects on WebSockets share.

What several read alike is in positions.py (places in a history) and selections.py (`a,b; c`).

A protocol belongs to one connection and keeps only what reading needs: the beginning of a
line that hasn't ended, whether the peer is authenticated and so may send long ones. It has
no grant, no subscriptions and no outbox; those are the session's.
"""

import abc
from collections.abc import Generator, Iterator
from typing import ClassVar

from mist.commands import Command
from mist.replies import Reply
from mist.wire import WireForm

__all__ = ["Protocol"]


class Protocol(abc.ABC):
    """One connection's reader and writer of a dialect.

    Attributes:
        form: how deliveries to this peer look; a command may change it.
    """

    form: WireForm
    counts_subscriptions: ClassVar[bool] = False
    """Whether a subscription made twice has to be undone twice."""
    echoes: ClassVar[bool] = True
    """Whether a peer receives what it publishes itself, unless it says otherwise."""
    pulse: ClassVar[float | None] = None
    """The heartbeat's interval: seconds without a byte from the peer after which `beat` is sent;
    None for no heartbeat of the dialect's own."""
    keeps_up: ClassVar[bool] = False
    """Whether a slow consumer is replayed what it missed, where there is a history, and told so
    (`notice` of a `Behind`, and of a `CaughtUp`). Otherwise only peers that have asked for recovery
    are, and get no notice."""

    def greeting(self) -> bytes:
        """What the server sends first; empty where the peer begins."""
        return b""

    def beat(self) -> bytes | None:
        """The heartbeat for a peer that has sent nothing for a `pulse`; None ends its session."""
        return b""

    @abc.abstractmethod
    def receive(self, data: bytes) -> Iterator[Command]:
        """Commands in what has arrived, in order.

        A generator on purpose: a command takes effect before what stands behind it is
        read, so `auth` can change what the next line may be. A caller may stop early, where
        the session ends.
        """

    @abc.abstractmethod
    def reply(self, command: Command, reply: Reply) -> bytes:
        """The wire form of a reply; empty where the dialect has none."""

    def reply_in_steps(self, command: Command, reply: Reply) -> Generator[None, None, bytes]:
        """As `reply`, in steps: for lists, which may be long."""
        yield from ()
        return self.reply(command, reply)

    def notice(self, notice: Reply) -> bytes:
        """The wire form of a notice, which answers no command; empty where there is none."""
        return b""

    def authenticated(self) -> None:
        """The peer has proven who it is; limits for unauthenticated peers end."""

    def escape(self, on: bool) -> None:
        """Have `form` escape what the dialect can't carry otherwise; nothing where it can."""

    def ids(self, on: bool) -> None:
        """Have `form` carry ids; nothing where it does anyway."""
