"""The dialects: bytes to Commands, Replies to bytes. No I/O.

One package a dialect, each with a `Protocol` and the `WireForm` of its deliveries:

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
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import ClassVar

from mist.commands import Command, Reply
from mist.message import Entry, Envelope

__all__ = ["Protocol", "WireForm", "ids_of"]


class WireForm(abc.ABC):
    """How deliveries look on the wire, shared by every session that wants them so.

    Instances are compared by identity and used as keys: sessions with the same form get the
    same bytes objects.
    """

    name: ClassVar[str]
    numbered: ClassVar[bool] = False
    """Whether deliveries carry their ids, where there are any."""
    passes_lines: ClassVar[bool] = False
    """Whether messages in line form, where none holds LF, are in this form as they are."""

    @abc.abstractmethod
    def pieces(
        self,
        entries: Sequence[Entry],
        *,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> list[bytes]:
        """Each message of a fan-out in this form, in order.

        A message that the form can't carry is left out; the broker counts what is missing.

        Args:
            entries: see `mist.message.Entry`.
            firsts: the id of each entry's first message; those behind it count on from there.
                None where there are no ids. A form that isn't `numbered` makes no use of it.
            envelope: what all of them have beside, for dialects that tell it.
        """

    def join(
        self,
        entries: Sequence[Entry],
        *,
        framable: bool,
        firsts: Sequence[int] | None = None,
        envelope: Envelope | None = None,
    ) -> tuple[bytes, int]:
        """All messages of a fan-out in one bytes object, and how many they are.

        Args:
            entries: as for `pieces`.
            framable: whether no data holds LF, as `mist.message.Batch` says.
            firsts, envelope: as for `pieces`.
        """
        pieces = self.pieces(entries, firsts=firsts, envelope=envelope)
        return b"".join(pieces), len(pieces)


def ids_of(entries: Sequence[Entry], firsts: Sequence[int]) -> Sequence[int]:
    """The id of each message of a fan-out, in order; see `WireForm.pieces`."""
    counts = [entry[2] for entry in entries]
    if len(counts) == 1:
        return range(firsts[0], firsts[0] + counts[0])
    if sum(counts) == len(counts) == len(firsts):
        return firsts
    ranges = [range(first, first + count) for first, count in zip(firsts, counts, strict=True)]
    return tuple(chain.from_iterable(ranges))


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
    """Seconds without a byte from the peer after which it is asked for one (`beat`); None where
    the network's own ways are enough."""
    keeps_up: ClassVar[bool] = False
    """Whether who is too slow for what is live is brought it from the history, where there is
    one, and told so (`notice` of a `Behind`, and of a `CaughtUp`). Else that is done for those
    only who have asked for what was, and nothing is said."""

    def greeting(self) -> bytes:
        """What the server says first; empty where it waits to be spoken to."""
        return b""

    def beat(self) -> bytes | None:
        """What a peer is sent that has been silent for a `pulse`; None ends its session."""
        return b""

    @abc.abstractmethod
    def receive(self, data: bytes) -> Iterator[Command]:
        """Commands in what has arrived, in order.

        A generator on purpose: a command takes effect before what stands behind it is
        looked at, so `auth` can change what the next line may be. Whoever stops early
        (because the session ends) just stops.
        """

    @abc.abstractmethod
    def reply(self, command: Command, reply: Reply) -> bytes:
        """The wire form of a reply; empty where the dialect says nothing."""

    def notice(self, notice: Reply) -> bytes:
        """The wire form of something nobody asked for; empty where the dialect has none."""
        return b""

    def authenticated(self) -> None:
        """The peer has proven who it is; limits for unauthenticated peers end."""

    def escape(self, on: bool) -> None:
        """Have `form` escape what the dialect can't carry otherwise; nothing where it can."""

    def ids(self, on: bool) -> None:
        """Have `form` carry ids; nothing where it does anyway."""
