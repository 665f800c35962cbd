"""`redis://`, `redis+sentinel://`, `redis+cluster://`: a realm's log as a stream in Redis.

Version 6.2 or later.

    location       what a URL says
    connection     commands and replies on one stream, with a deadline on every wait
    discovery      finding the server that has a realm: the one that is named, or as follows
    sentinel       the master that Sentinels watch
    cluster        the member of a cluster that has the slot of the realm
    seeds          Sentinels and members, asked in turn
    pool           connections: reused, opened again with a backoff, refused on a replica
    replication    waiting until replicas have what was written
    fence          whether the log is still the one that it was
    replies        what errors mean
    scripts        what Redis does in one step: append, read, trim
    members        which nodes are there, leases, questions
    engine         `RedisEngine`: the contract over them
    requirements   what a Redis has to be set to
    opening        looks at that, and makes the engine
    tokens         tokens that servers share; `token_scripts` says how they are kept

Keys of a realm, in one slot of a cluster:

    {mist:REALM}:head            format, epoch, newest id, last offset and its time, what is trimmed
    {mist:REALM}:log             a stream, whose ids are the offsets; see `scripts`
    {mist:REALM}:nodes           each node's last serial, and the place it was given
    {mist:REALM}:once:NAME       a value for one node to take; expires
    {mist:REALM}:staged:BATCH    a batch's parts, which expire
    {mist:REALM}:members, …      see `members`
    {mist:REALM}:tokens, …       see `token_scripts`

Commands are sent and replies read here, over hiredis' parser, and not by a client library. Measured
with coredis 6.9 on trio, one call at a time: 204 and 218 µs of processor to append and to read a
record of 200 bytes, against 27 and 25; 353 and 522 against 204 and 58 for 100 kB. Also, a task that
sends, a task that reads and a deadline that only the waiting caller has were three places where a
frozen Redis can be waited for; here there is one, and no task.
"""

from typing import Final, Literal

__all__ = ["SCHEMES", "ServerKind"]

ServerKind = Literal["server", "sentinel", "cluster"]

SCHEMES: Final[dict[str, tuple[ServerKind, bool]]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
"""Of a URL: what its servers are, and whether TLS."""
