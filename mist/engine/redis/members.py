"""The members of a realm in Redis.

    {mist:REALM}:members         each node's last beat: NODE → "MICROSECONDS STATE"
    {mist:REALM}:leases          NAME → "FENCE MICROSECONDS NODE": when it ends, and whose it is
    {mist:REALM}:questions       NUMBER → "MICROSECONDS BODY"
    {mist:REALM}:answers:NUMBER  NODE → BODY; expires

Microseconds are decimal digits, of the clock of Redis. Fences and numbers of questions are taken
from that clock, too, and above those before: so they ascend even where a Redis that came back has
lost the last of them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from mist.engine.contract import EngineUnavailable
from mist.engine.members import (
    ANSWERED,
    FORGOTTEN,
    MAX_QUESTIONS,
    OPEN,
    SHARED,
    BeatReply,
    Member,
    Members,
    Question,
    TooManyQuestions,
    check_answer,
    check_question,
    check_state,
)
from mist.engine.redis.connection import Reply
from mist.engine.redis.fence import RedisFence
from mist.engine.redis.scripts import Script

__all__ = ["RedisMembers"]

_SECOND: Final = 1_000_000  # microseconds
_NONSENSE: Final = "Redis has answered what it was not asked"

# Each writes what is allowed where memory is full first: what comes after it is allowed then, too.
# A lease is most wanted there, since what is trimmed is trimmed under one.

_BEAT: Final = Script.of(
    """
-- members, questions, head; node, state, microseconds for which a question is open, run
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- Until it is confirmed that this process has the log, beats stay as they were: by them it is known
-- who has to be asked.
if redis.call('HGET', KEYS[3], 'run') == ARGV[4] then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now) .. ARGV[2])
end
local open = {now, tonumber(redis.call('HGET', KEYS[3], 'offset') or 0)}
local all = redis.call('HGETALL', KEYS[2])
for at = 1, #all, 2 do
  local asked, body = string.match(all[at + 1], '^(%d+) (.*)$')
  if now < asked + ARGV[3] then
    open[#open + 1] = all[at]
    open[#open + 1] = body
  end
end
return open
"""
)

_ALL: Final = Script.of(
    """
-- members, head; microseconds after which a node is forgotten, run
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local confirmed = redis.call('HGET', KEYS[2], 'run') == ARGV[2] -- as for a beat
local members = {}
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  local beat, state = string.match(all[at + 1], '^(%d+) (.*)$')
  if not beat or now - beat > tonumber(ARGV[1]) then
    if confirmed then redis.call('HDEL', KEYS[1], all[at]) end
  else
    members[#members + 1] = all[at]
    members[#members + 1] = math.max(now - beat, 0)
    members[#members + 1] = state
  end
end
return members
"""
)

_LEAVE: Final = Script.of(
    """
-- members, head; node, run
if redis.call('HGET', KEYS[2], 'run') == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end
return 1
"""
)

_TAKE: Final = Script.of(
    """
-- leases; name, node, microseconds
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local fence, ends, holder = now, 0, ARGV[2]
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held then
  fence, ends, holder = string.match(held, '^(%d+) (%d+) (.*)$')
  fence, ends = tonumber(fence), tonumber(ends)
  if holder ~= ARGV[2] then
    if now < ends then return false end
    fence = math.max(now, fence + 1)
  end
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1],
  string.format('%.0f %.0f ', fence, now + ARGV[3]) .. ARGV[2])
return fence
"""
)

_GIVE_UP: Final = Script.of(
    """
-- leases; name, node
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held then
  local fence, ends, holder = string.match(held, '^(%d+) (%d+) (.*)$')
  if holder == ARGV[2] then
    -- Its fence stays, for the next one to be above it.
    redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('HSET', KEYS[1], ARGV[1], fence .. ' 0 ')
  end
end
return 1
"""
)

_HOLDS: Final = Script.of(
    """
-- leases; name, fence
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local held = redis.call('HGET', KEYS[1], ARGV[1])
if not held then return 0 end
local fence, ends = string.match(held, '^(%d+) (%d+) ')
return fence == ARGV[2] and now < tonumber(ends) and 1 or 0
"""
)

_ASK: Final = Script.of(
    """
-- questions; body, microseconds of sharing, of being open, questions at most
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local open, number = 0, now
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  local asked, body = string.match(all[at + 1], '^(%d+) (.*)$')
  if now >= asked + ARGV[3] then
    redis.call('HDEL', KEYS[1], all[at])
  else
    if body == ARGV[1] and now < asked + ARGV[2] then return tonumber(all[at]) end
    open, number = open + 1, math.max(number, all[at] + 1)
  end
end
if open >= tonumber(ARGV[4]) then return false end
redis.call('HSET', KEYS[1], string.format('%.0f', number),
  string.format('%.0f ', now) .. ARGV[1])
return number
"""
)

_CLOSE: Final = Script.of(
    """
-- questions; number
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
"""
)

_ANSWER: Final = Script.of(
    """
-- answers; node, body, seconds
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""
)


_ANSWERS: Final = Script.of(
    """
-- answers; nodes that are known
local known = {}
for at = 1, #ARGV do known[ARGV[at]] = true end
local answers = {}
for _, node in ipairs(redis.call('HKEYS', KEYS[1])) do
  if not known[node] then
    answers[#answers + 1] = node
    answers[#answers + 1] = redis.call('HGET', KEYS[1], node)
  end
end
return answers
"""
)


class RedisMembers(Members):
    """See the module.

    Args:
        fence: of the engine. Members are asked of whichever Redis is there, also while its log is
            known to have lost records: they are what finds out how to go on.
    """

    def __init__(self, realm: str, fence: RedisFence) -> None:
        prefix = f"{{mist:{realm}}}:"
        self._members, self._leases = f"{prefix}members", f"{prefix}leases"
        self._questions, self._answers = f"{prefix}questions", f"{prefix}answers:"
        self._fence = fence

    async def beat(self, node: str, state: bytes) -> BeatReply:
        check_state(state)
        keys = (self._members, self._questions, self._fence.head)
        match await self._fence.anywhere(
            _BEAT, keys, lambda run: (node, state, round(OPEN * _SECOND), run)
        ):
            case [int(now), int(offset), *fields]:
                found = _pairs(fields)
                questions = [Question(int(number), body) for number, body in found]
                return BeatReply(now / _SECOND, offset, sorted(questions, key=_by_number))
            case _:
                raise EngineUnavailable(_NONSENSE)

    async def all(self) -> Sequence[Member]:
        keys = (self._members, self._fence.head)
        reply = await self._fence.anywhere(
            _ALL, keys, lambda run: (round(FORGOTTEN * _SECOND), run)
        )
        members = []
        fields = reply if isinstance(reply, list) else []
        for node, age, state in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
            match node, age, state:
                case bytes(), int(), bytes():
                    members.append(Member(node.decode(), state, age / _SECOND))
        return sorted(members, key=lambda each: each.node)

    async def leave(self, node: str) -> None:
        keys = (self._members, self._fence.head)
        await self._fence.anywhere(_LEAVE, keys, lambda run: (node, run))

    async def take(self, name: str, node: str, seconds: float) -> int | None:
        reply = await self._fence.run_anywhere(
            _TAKE, (self._leases,), name, node, round(seconds * _SECOND)
        )
        return reply if isinstance(reply, int) else None

    async def give_up(self, name: str, node: str) -> None:
        await self._fence.run_anywhere(_GIVE_UP, (self._leases,), name, node)

    async def holds(self, name: str, fence: int) -> bool:
        return await self._fence.run_anywhere(_HOLDS, (self._leases,), name, fence) == 1

    async def ask(self, body: bytes, most: int = MAX_QUESTIONS) -> int:
        check_question(body)
        reply = await self._fence.run_anywhere(
            _ASK,
            (self._questions,),
            body,
            round(SHARED * _SECOND),
            round(OPEN * _SECOND),
            most,
        )
        if not isinstance(reply, int):
            raise TooManyQuestions
        return reply

    async def close(self, number: int) -> None:
        await self._fence.run_anywhere(_CLOSE, (self._questions,), number)

    async def answer(self, number: int, node: str, body: bytes) -> None:
        check_answer(body)
        key = f"{self._answers}{number}"
        await self._fence.run_anywhere(_ANSWER, (key,), node, body, round(ANSWERED))

    async def answers(self, number: int, known: Collection[str] = ()) -> Mapping[str, bytes]:
        fields = await self._fence.run_anywhere(_ANSWERS, (f"{self._answers}{number}",), *known)
        return {node.decode(): body for node, body in _pairs(fields)}


def _by_number(question: Question) -> int:
    return question.number


def _pairs(reply: Reply) -> Iterator[tuple[bytes, bytes]]:
    """The fields of a hash, with their values."""
    if not isinstance(reply, list):
        raise EngineUnavailable(_NONSENSE)
    for name, value in zip(reply[::2], reply[1::2], strict=True):
        if isinstance(name, bytes) and isinstance(value, bytes):
            yield name, value
