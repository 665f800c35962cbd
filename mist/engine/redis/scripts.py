"""What Redis does in one step. All keys of a script are of one realm, and so in one slot.

A record is an entry of the stream with the id `OFFSET-0` and one field, whose name is `FIRST COUNT
TIME PREVIOUS TOKENS SERIAL NODE` and whose value is the body. `PREVIOUS` is the time of the record
before it. Times ascend, so it names one record: a log that has lost some and was continued tells it
by the first record behind the gap, however the loss came about. `TOKENS` is the version of the
token registry.

Numbers stay below 2^53, as which Lua has them. They are handed on as numbers, never put together as
text: that would round times.
"""

import hashlib
from typing import Final

import attrs

from mist.engine.redis.connection import Command

__all__ = ["APPEND", "ENTER", "FORMAT", "READ", "STAGE", "TRIM", "VERIFY", "Script"]

FORMAT: Final = 2
"""Of the keys and the records; a realm of another one is left alone."""


@attrs.frozen
class Script:
    """A script, and the name under which Redis keeps it."""

    source: str = attrs.field(repr=False)
    digest: str

    @classmethod
    def of(cls, source: str) -> "Script":
        """This one."""
        # The name that Redis gives it.
        return cls(source, hashlib.sha1(source.encode()).hexdigest())  # noqa: S324

    def command(
        self, keys: tuple[str, ...], *arguments: bytes | str | int, whole: bool = False
    ) -> Command:
        """The command that runs it.

        Args:
            whole: with its source, for a Redis that does not know it.
        """
        if whole:
            return ("EVAL", self.source, len(keys), *keys, *arguments)
        return ("EVALSHA", self.digest, len(keys), *keys, *arguments)


ENTER: Final = Script.of(
    """
-- head, log, nodes; node or '', a new epoch, format, nodes at most, lost epoch or '', newest seen
local head = redis.call('HMGET', KEYS[1], 'format', 'epoch', 'newest', 'offset', 'trimmed')
if not head[2] then
  if redis.call('EXISTS', KEYS[2]) == 1 then return 'headless' end
  redis.call('HSET', KEYS[1], 'format', ARGV[3], 'epoch', ARGV[2], 'newest', 0, 'offset', 0,
    'trimmed', 0, 'time', 0)
  redis.call('DEL', KEYS[3])
  head = {ARGV[3], ARGV[2], 0, 0, 0}
elseif head[1] ~= ARGV[3] then
  return 'format'
elseif head[2] == ARGV[5] then
  -- It has lost what this node has read. The first that tells begins another epoch.
  head[2] = ARGV[2]
  head[3] = math.max(tonumber(head[3]), tonumber(ARGV[6]))
  redis.call('HSET', KEYS[1], 'epoch', head[2], 'newest', head[3])
end
if ARGV[1] ~= '' and redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then
  local now = redis.call('TIME')
  redis.call('HSET', KEYS[3], ARGV[1], string.format('0 0 0 %.0f', now[1] * 1000000 + now[2]))
  if redis.call('HLEN', KEYS[3]) > tonumber(ARGV[4]) then
    local all = redis.call('HGETALL', KEYS[3])
    local silent, since
    for at = 1, #all, 2 do
      local time = tonumber(string.match(all[at + 1], '%d+$'))
      if all[at] ~= ARGV[1] and (not since or time < since) then
        silent, since = all[at], time
      end
    end
    redis.call('HDEL', KEYS[3], silent)
  end
end
return {head[2], tonumber(head[3]), tonumber(head[4]), tonumber(head[5])}
"""
)

APPEND: Final = Script.of(
    """
-- head, log, nodes, tokens; epoch, seen offset, its time, node, serial, count, body
local head = redis.call('HMGET', KEYS[1], 'epoch', 'newest', 'offset', 'time')
if head[1] ~= ARGV[1] then return 'forked' end
local newest, offset, time = tonumber(head[2]), tonumber(head[3]), tonumber(head[4])
-- The last record that the node knows of has to be there, as it was.
if offset < tonumber(ARGV[2]) then return 'forked' end
if head[3] == ARGV[2] and ARGV[3] ~= '0' and head[4] ~= ARGV[3] then return 'forked' end
local known = redis.call('HGET', KEYS[3], ARGV[4])
if not known then return 'unknown' end
local serial = tonumber(ARGV[5])
local last, at, first, when = string.match(known, '(%d+) (%d+) (%d+) (%d+)')
if serial < tonumber(last) then return 'unknown' end
if serial == tonumber(last) then return {tonumber(at), tonumber(first), tonumber(when)} end
local now = redis.call('TIME')
local next = math.max(time + 1, now[1] * 1000000 + now[2])
local tokens = redis.call('HGET', KEYS[4], 'version') or '0'
-- The first write: where Redis refuses one, such as for want of memory, it refuses this.
redis.call('XADD', KEYS[2], string.format('%.0f-0', offset + 1),
  string.format('%.0f %s %.0f %.0f %s %s %s', newest + 1, ARGV[6], next, time, tokens, ARGV[5],
    ARGV[4]), ARGV[7])
redis.call('HSET', KEYS[1], 'newest', newest + tonumber(ARGV[6]), 'offset', offset + 1,
  'time', next)
redis.call('HSET', KEYS[3], ARGV[4],
  string.format('%s %.0f %.0f %.0f', ARGV[5], offset + 1, newest + 1, next))
return {offset + 1, newest + 1, next}
"""
)

READ: Final = Script.of(
    """
-- head, log; epoch, after, bytes at most, records at most
local head = redis.call('HMGET', KEYS[1], 'epoch', 'offset', 'time', 'newest', 'trimmed')
if head[1] ~= ARGV[1] then return 'forked' end
local offset, trimmed = tonumber(head[2]), tonumber(head[5])
local at, most, left = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if offset < at then return 'forked' end
if at < trimmed then return {trimmed + 1} end
local found = {offset, tonumber(head[3]), tonumber(head[4])}
-- One by one: any may be of megabytes.
while at < offset and most > 0 and left > 0 do
  local id = string.format('%.0f-0', at + 1)
  local entry = redis.call('XRANGE', KEYS[2], id, '+', 'COUNT', 1)[1]
  if not entry or entry[1] ~= id then
    -- Removed by others than `trim`.
    if #found > 3 then break end
    return {entry and tonumber(string.match(entry[1], '%d+')) or offset + 1}
  end
  found[#found + 1] = entry[2][1]
  found[#found + 1] = entry[2][2]
  at, most, left = at + 1, most - #entry[2][2], left - 1
end
return found
"""
)

VERIFY: Final = Script.of(
    """
-- head, log; epoch, seen offset, its time
local head = redis.call('HMGET', KEYS[1], 'epoch', 'offset')
if head[1] ~= ARGV[1] or tonumber(head[2]) < tonumber(ARGV[2]) then return 'forked' end
local id = string.format('%.0f-0', ARGV[2])
local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
if entry and ARGV[3] ~= '0' and string.match(entry[2][1], '^%d+ %d+ (%d+)') ~= ARGV[3] then
  return 'forked'
end
return 'same'
"""
)

TRIM: Final = Script.of(
    """
-- head, log; up to, records at most
local head = redis.call('HMGET', KEYS[1], 'offset', 'trimmed')
if not head[1] then return {0, 0} end
local trimmed = tonumber(head[2])
local upto = math.min(tonumber(ARGV[1]), tonumber(head[1]))
local step = math.min(upto, trimmed + tonumber(ARGV[2]))
if step > trimmed then
  -- First, since it is allowed where memory is full, and so is what comes after.
  redis.call('XTRIM', KEYS[2], 'MINID', '=', string.format('%.0f-0', step + 1))
  redis.call('HSET', KEYS[1], 'trimmed', step)
end
return {step, upto}
"""
)

STAGE: Final = Script.of(
    """
-- staged; part, body, seconds
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""
)
