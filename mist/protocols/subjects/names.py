"""The names of a NATS client's subscriptions: by subject, and what each has. No I/O.

The session has the subscriptions themselves. This is for what only the dialect knows: that rtmb's
clients unsubscribe by subject, and that a request without recipients is answered on the
subscription on which the client awaits the answer, and that an error names the queue group.
"""

from typing import Final

from mist.index.shards import ShardedDict

__all__ = ["Names"]

_MOST_ENDING: Final = 1_000  # that end by themselves: nobody says here when


class Names:
    """The names of one client's subscriptions."""

    __slots__ = ("_ending", "_queues", "_sids", "_subjects")

    def __init__(self) -> None:
        self._subjects: ShardedDict[bytes, bytes] = ShardedDict()  # by sid
        # By subject, as asked for: one sid, or several.
        self._sids: ShardedDict[bytes, bytes | ShardedDict[bytes, None]] = ShardedDict()
        self._queues: ShardedDict[bytes, str] = ShardedDict()  # by sid, of those in one
        self._ending: dict[bytes, int] = {}  # after how many messages, by sid

    def __len__(self) -> int:
        return len(self._subjects)

    def note(self, sid: bytes, subject: bytes, queue: str = "") -> None:
        """A subscription was made; one that has this sid stays what it was.

        But for one that ends by itself: it may have ended.
        """
        if sid in self._ending:
            self.forget(sid)
        if sid not in self._subjects:
            self._subjects[sid] = subject
            self._file(subject, sid)
            if queue:
                self._queues[sid] = queue

    def forget(self, sid: bytes) -> None:
        """A subscription has ended, or came to nothing."""
        subject = self._subjects.pop(sid)
        if subject is None:
            return
        self._ending.pop(sid, None)
        self._queues.pop(sid)
        sids = self._sids[subject]
        if isinstance(sids, ShardedDict):
            del sids[sid]
            if sids:
                return
        del self._sids[subject]

    def _file(self, subject: bytes, sid: bytes) -> None:
        sids = self._sids.get(subject)
        if sids is None:
            self._sids[subject] = sid
            return
        if isinstance(sids, bytes):
            several: ShardedDict[bytes, None] = ShardedDict()
            several[sids] = None
            self._sids[subject] = sids = several
        sids[sid] = None

    def end_after(self, sid: bytes, most: int) -> None:
        """A subscription will end after so many messages."""
        if sid in self._subjects:
            self._ending[sid] = most
            if len(self._ending) > _MOST_ENDING:
                self.forget(next(iter(self._ending)))

    def queue(self, sid: bytes) -> str:
        """The queue group that a subscription is in; empty for none."""
        return self._queues.get(sid) or ""

    def meant(self, name: bytes) -> list[bytes]:
        """The sids that `UNSUB name` means: the one so called, or else all of this subject."""
        sids = None if name in self._subjects else self._sids.get(name)
        return [*sids] if isinstance(sids, ShardedDict) else [name if sids is None else sids]

    def awaiting(self, reply: bytes) -> bytes | None:
        """The sid of a subscription to a subject that answers go to, None where there is none.

        Looked for is what clients subscribe to for that: the subject, or a pattern that is the
        subject but for its end: `_INBOX.a.1`, `_INBOX.a.*`, `_INBOX.a.>`, `_INBOX.>`, `>`.
        """
        sids = self._sids.get(reply)
        tokens = reply.split(b".")
        if sids is None:
            sids = self._sids.get(b".".join([*tokens[:-1], b"*"]))
        while sids is None and tokens:
            tokens.pop()
            sids = self._sids.get(b".".join([*tokens, b">"]))
        return next(iter(sids)) if isinstance(sids, ShardedDict) else sids

    def is_last(self, sid: bytes) -> bool:
        """Whether a subscription ends with its first message."""
        return self._ending.get(sid) == 1
