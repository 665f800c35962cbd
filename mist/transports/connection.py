"""A stream and an outbox joined: how bytes get from a session's outbox to its peer.

On a socket, `flush` writes with a non-blocking system call right where it is called: waking
a writer task for each flush would cost ten times the write itself. Only what the kernel
doesn't take waits for a drain task, which exists while the socket is full and no longer. So
an idle connection has one task, its reader, and a slow peer has one more, of its own.

Other streams (TLS, the memory streams of tests) can't be written without waiting. They keep a
writer task from the first flush on, since a wake-up costs a third of a task's beginning.

Reading is the same bargain: a non-blocking system call where there is reason to think that
something has come, and waiting only where there is not.
"""

import errno
import logging
import os
import socket
from contextlib import suppress
from typing import Final

import trio

from mist.broker.outbox import Outbox
from mist.change import Change
from mist.listening import keep_alive
from mist.newcomers import Newcomers
from mist.transports.streams import close_now

__all__ = ["Connection"]

log = logging.getLogger("mist.transports")

# trio asks the kernel to queue no more than 16 KiB it hasn't sent. That suits a protocol that
# waits for each write; here it would turn every larger flush into a wait and a task.
_NOT_SENT: Final = 1_048_576

_LINGER: Final = 1.0  # seconds
_DISCARDED: Final = 65_536  # bytes in one read of what nobody will look at


class Connection:
    """One accepted stream with its outbox.

    Args:
        stream: as accepted; a TLS stream has done its handshake.
        outbox: whose `flush` this becomes.
        nursery: where a drain or writer task runs. It must outlive the connection; these
            tasks never raise into it, and end when the connection is abandoned.
        newcomers: where it waits for a peer that is not live yet; None for where all wait.
        origin: of the peer; see `mist.origins`.
    """

    __slots__ = (
        "_drained",
        "_draining",
        "_fd",
        "_filled",
        "_newcomers",
        "_nursery",
        "_origin",
        "_queues_more",
        "_wanted",
        "broken",
        "outbox",
        "stream",
    )

    def __init__(
        self,
        stream: trio.abc.Stream,
        outbox: Outbox,
        nursery: trio.Nursery,
        newcomers: Newcomers | None = None,
        origin: str = "",
    ) -> None:
        self.stream = stream
        self.outbox = outbox
        self.broken = False  # nothing can be written any more
        self._nursery = nursery
        self._newcomers = newcomers
        self._origin = origin
        self._draining = False
        self._drained = Change()
        self._wanted: Change | None = None  # what a writer task waits for, where there is one
        self._filled = False  # whether the last read got all it asked for
        self._queues_more = False  # whether the kernel was told to
        self._fd: int | None = None
        if isinstance(stream, trio.SocketStream):
            self._fd = stream.socket.fileno()
            keep_alive(stream.socket)
        elif isinstance(stream, trio.SSLStream):
            below = stream.transport_stream
            if isinstance(below, trio.SocketStream):
                keep_alive(below.socket)
                _queue_more(below.socket)
        outbox.flush = self.flush

    @property
    def emptied(self) -> bool:
        """Whether nothing was left to be read when it was last looked."""
        return not self._filled

    async def receive(self, size: int, *, rested: bool = False, live: bool = True) -> bytes:
        """What has arrived, at most `size` bytes; empty at the end, also when the peer is gone.

        Args:
            size: bytes; costs an allocation of that size, and no more is kept than has come.
            rested: whether there was a checkpoint since the last call; else this is one.
            live: whether the peer has been served before; else it is a newcomer.
        """
        fd, newcomers = self._fd, None if live else self._newcomers
        try:
            if fd is None:
                return bytes(await self.stream.receive_some(size))
            if not rested:
                # A read that was not filled has emptied the socket: nothing to try for.
                if self._filled:
                    await trio.lowlevel.checkpoint()
                else:
                    await self._until_readable(fd, newcomers)
            while True:
                try:
                    data = os.read(fd, size)
                except BlockingIOError:
                    await self._until_readable(fd, newcomers)
                else:
                    self._filled = len(data) == size
                    return data
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def _until_readable(self, fd: int, newcomers: Newcomers | None) -> None:
        if newcomers is None:
            await trio.lowlevel.wait_readable(fd)
        else:
            await newcomers.readable(fd, self._origin)

    def flush(self) -> None:
        """Write what is queued as far as that goes without waiting; leave the rest to a task."""
        if self._draining or self.broken:
            return
        if self._fd is not None:
            if self._write(self._fd):
                return
            if self.outbox.size and not self._queues_more:
                # Not before it is needed: a page that has a few messages needs no system call.
                self._queues_more = True
                assert isinstance(self.stream, trio.SocketStream)
                _queue_more(self.stream.socket)
                self._write(self._fd)
        if self.outbox.size and not self.broken:
            self._draining = True
            if self._wanted is not None:
                self._wanted.notify()
            else:
                self._nursery.start_soon(self._keep_writing if self._fd is None else self._drain)

    def _write(self, fd: int) -> bool:
        """Write what the kernel takes at once. Whether nothing is left to be written."""
        outbox = self.outbox
        try:
            while outbox.size:
                data = outbox.peek()
                written = os.write(fd, data)
                outbox.sent(written)
                if written < len(data):
                    return False
        except BlockingIOError:
            return False
        except OSError as error:
            self._break(error)
        return True

    async def _drain(self) -> None:
        try:
            while self.outbox.size and self._fd is not None:
                await trio.lowlevel.wait_writable(self._fd)
                if self._fd is not None:
                    self._write(self._fd)
        except (OSError, trio.ClosedResourceError) as error:
            self._break(error)
        finally:
            self._set_drained()

    async def _keep_writing(self) -> None:
        self._wanted = Change()
        try:
            while not self.broken:
                while self.outbox.size:
                    data = self.outbox.peek()
                    self.outbox.writing = len(data)
                    await self.stream.send_all(data)
                    self.outbox.writing = 0
                    if self.broken:  # abandoned meanwhile, and the outbox emptied
                        return
                    self.outbox.sent(len(data))
                self._set_drained()
                await self._wanted.wait()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._break(error)
        finally:
            self._set_drained()

    def _set_drained(self) -> None:
        self._draining = False
        self._drained.notify()

    def _break(self, error: Exception) -> None:
        # Not an error to report: the reader sees the end of the stream and ends the session.
        if not isinstance(error, OSError) or error.errno not in (errno.EPIPE, errno.ECONNRESET):
            log.debug("write failed: %r", error)
        self.broken = True
        self.outbox.discard()

    async def finish(self, grace: float, *, linger: bool = False) -> None:
        """Write what is queued, then close. Never raises but `trio.Cancelled`.

        A checkpoint only where there is something to wait for.

        Args:
            grace: seconds for the peer to take what is queued; the rest is lost.
            linger: whether to wait, a second at most, for the peer to close too. Closing a
                socket while bytes of the peer's are unread resets it, and a reset can
                overtake what was just written, such as the reason for closing.
        """
        self.flush()
        if not linger and self._fd is not None and not self._draining:
            self.abandon()
            await close_now(self.stream)
            return
        with trio.CancelScope(shield=True) as scope:
            scope.deadline = trio.current_time() + grace
            await self._flushed()
            scope.deadline = trio.current_time() + _LINGER
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                if linger and not self.broken and isinstance(self.stream, trio.SocketStream):
                    self.stream.socket.shutdown(socket.SHUT_WR)
                    while await self.receive(_DISCARDED):
                        pass
                self.abandon()
                if not isinstance(self.stream, trio.SocketStream):
                    await self.stream.aclose()  # which over TLS says goodbye
        self.abandon()
        await close_now(self.stream)

    def abandon(self) -> None:
        """Write nothing any more; what is queued is lost. The stream is the caller's to close.

        Idempotent.
        """
        if self.broken and self._fd is None:
            return
        self.broken = True
        self._fd = None
        if self.outbox.size or not self.outbox.closed:
            self.outbox.discard()
        if self._wanted is not None:
            self._wanted.notify()

    async def flushed(self, grace: float) -> bool:
        """Write what is queued. Whether all of it was taken. Finishes even where it is cancelled.

        Args:
            grace: seconds for the peer to take it.
        """
        with trio.CancelScope(shield=True, deadline=trio.current_time() + grace):
            await self._flushed()
        return not self.broken and not self.outbox.size

    async def _flushed(self) -> None:
        self.flush()
        while self._draining:
            await self._drained.wait()


def _queue_more(sock: trio.socket.SocketType) -> None:
    """Have the kernel queue as much as suits flushes; best effort, since not all systems can."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOT_SENT)
