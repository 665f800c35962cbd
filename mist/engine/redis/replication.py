"""Waiting until replicas have what was written (`--engine-replicas`).

`WAIT` waits for what its connection has written; from Redis 7.2 on, one that has written nothing is
answered at once, whatever replicas have. So something is written before it, each time: then a
repeated append waits for the one that is there already, and a reader for what others have appended.
What is written is how far it is known that replicas have the log: up to there nobody has to wait.

A replica says that it has something as soon as that is in its memory. What its disk has is up to
its own `appendfsync`.
"""

from typing import Final

import hiredis

from mist.engine.contract import EngineUnavailable
from mist.engine.redis.connection import Command, Reply
from mist.engine.redis.replies import reason
from mist.engine.redis.scripts import Script

__all__ = ["SECONDS", "Replication"]

SECONDS: Final = 1.0
"""For which replicas are waited for in one call."""

_WRITE: Final = Script.of(
    """
-- head; how far it is known that replicas have the log
local known = redis.call('HMGET', KEYS[1], 'format', 'replicated')
if not known[1] then return 0 end
-- First what is allowed where memory is full: then so is what comes after it.
redis.call('HDEL', KEYS[1], 'none')
redis.call('HSET', KEYS[1], 'replicated', math.max(tonumber(known[2]) or 0, ARGV[1]))
return 1
"""
)


class Replication:
    """See the module.

    Args:
        replicas: that are to have what is written; 0 waits for none.
        name: of the Redis, for messages.
    """

    def __init__(self, replicas: int, name: str) -> None:
        self.replicas = replicas
        self._name = name

    def commands(self, head: str, known: int = 0, *, whole: bool = False) -> tuple[Command, ...]:
        """What to send behind a command that has written, on the same connection.

        Args:
            head: a key that is there where what was written is, a hash with the field `format`.
            known: how far it is known that replicas have the log.
            whole: see `Script.command`.
        """
        wait = ("WAIT", self.replicas, round(SECONDS * 1000))
        return _WRITE.command((head,), known, whole=whole), wait

    def problem(self, replies: list[Reply]) -> EngineUnavailable | None:
        """Why too few replicas have it; None where enough have.

        Args:
            replies: of the `commands`.
        """
        for each in replies:
            if isinstance(each, hiredis.ReplyError):
                return EngineUnavailable(f"{self._name}: {reason(each)}")
        have = replies[-1] if isinstance(replies[-1], int) else 0
        if have >= self.replicas:
            return None
        return EngineUnavailable(
            f"{self._name}: {have} of {self.replicas} replicas have what was stored"
        )
