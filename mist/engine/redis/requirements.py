"""What a Redis has to be, and to be set to. Anything else is refused before it loses messages."""

import logging
import re
from typing import Final

import hiredis

from mist.engine.contract import EngineUnavailable
from mist.engine.redis.location import Location
from mist.engine.redis.pool import Pool
from mist.engine.redis.replies import information, reason
from mist.errors import StartupError
from mist.history import Durability

__all__ = ["check_replicas", "check_server"]

log = logging.getLogger("mist.engine")

_REPLICA: Final = re.compile(r"slave\d+")
_OLDEST: Final = (6, 2)  # XTRIM MINID


async def check_server(pool: Pool, location: Location, durability: Durability) -> None:
    """Look whether a Redis can be the engine.

    What only `CONFIG GET` tells is logged as a warning where that is forbidden, as it is with some
    managed ones.

    Args:
        durability: that acknowledged messages are to have. `PROCESS` takes any `appendfsync`. With
            `everysec`, Redis may have acknowledged what is in its memory only, while a sync takes
            long; a `kill -9` of it in these two seconds loses that, and nodes are told: `Forked`.
            With `no` and `always` it has written first.

    Raises:
        StartupError: one line that says why not.
    """
    try:
        (about,) = await pool.call(("INFO",))
    except EngineUnavailable as error:
        raise StartupError(f"engine: {error}") from None
    where = location.name
    if not isinstance(about, bytes):
        why = reason(about) if isinstance(about, hiredis.ReplyError) else "it has no INFO"
        raise StartupError(f"engine: {where}: {why}")
    known = information(about)
    problem = (
        _wrong_version(known)
        or _wrong_state(known, location)
        or _evicts(known)
        or _loses(known, durability)
        or await _loses_power(pool, durability, where)
    )
    if problem:
        raise StartupError(f"engine: {where} {problem}")


async def check_replicas(pool: Pool, location: Location, wanted: int, *, new: bool) -> None:
    """Look whether a Redis has as many replicas as are to have what is stored.

    Too few are a warning, since one of them may be about to be replaced; but for a realm that is
    new, where it is more likely that they have been forgotten.

    Args:
        new: whether the realm is.

    Raises:
        EngineUnavailable: there is no answer.
        StartupError: one line that says that there are too few.
    """
    if not wanted:
        return
    (about,) = await pool.call(("INFO", "replication"))
    known = information(about) if isinstance(about, bytes) else {}
    there = [
        each for name, each in known.items() if _REPLICA.fullmatch(name) and "state=online" in each
    ]
    if len(there) >= wanted:
        return
    problem = f"has {len(there)} of the {wanted} replicas that engine_replicas asks for"
    if new:
        raise StartupError(f"engine: {location.name} {problem}")
    log.warning(f"the engine {problem}; nothing is stored until they are there")


def _wrong_version(known: dict[str, str]) -> str:
    version = known.get("redis_version", "0")
    numbers = tuple([int(each) for each in re.findall(r"\d+", version)[:2]])
    if numbers < _OLDEST:
        return f"is version {version}; 6.2 or later is needed"
    return ""


def _wrong_state(known: dict[str, str], location: Location) -> str:
    if known.get("loading") == "1":
        return "is loading its data"
    if known.get("cluster_enabled") == "1" and location.kind != "cluster":
        return "is part of a cluster; use redis+cluster://"
    return ""


def _evicts(known: dict[str, str]) -> str:
    policy = known.get("maxmemory_policy", "noeviction")
    if known.get("maxmemory", "0") != "0" and policy != "noeviction":
        return f"would evict what it keeps; set maxmemory-policy from {policy} to noeviction"
    return ""


def _loses(known: dict[str, str], durability: Durability) -> str:
    if durability is not Durability.NOTHING and known.get("aof_enabled") != "1":
        return f"keeps no file of its log; durability {durability.value} needs appendonly yes"
    return ""


async def _loses_power(pool: Pool, durability: Durability, where: str) -> str:
    if durability is not Durability.POWER:
        return ""
    (reply,) = await pool.call(("CONFIG", "GET", "appendfsync"))
    match reply:
        case [_, b"always"]:
            return ""
        case [_, bytes(policy)]:
            return (
                f"may lose what it acknowledged when power fails (appendfsync {policy.decode()}); "
                "set appendfsync always, or durability to process"
            )
        case _:
            log.warning(
                "appendfsync can't be read; a power failure loses acknowledged messages unless it "
                "is 'always'",
                extra={"engine": where},
            )
            return ""
