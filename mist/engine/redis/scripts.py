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

__all__ = ["APPEND", "CHECKPOINT", "CONFIRM", "ENTER", "FORMAT", "READ", "STAGE", "TRIM", "Script"]

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


_FORK: Final = """
-- Begin another epoch in a log that has lost records. The ids that may have been given to them are
-- given to nobody again: a record of no body takes them.
local function fork(offset, newest, time, epoch, above, run)
  local known = {}
  for each in string.gmatch(redis.call('HGET', KEYS[1], 'ancestors') or '', '[^;]+') do
    known[#known + 1] = each
  end
  known[#known + 1] = string.format('%s %.0f %.0f', epoch[1], offset, newest)
  local kept = table.concat(known, ';', math.max(1, #known - 19))
  local now = redis.call('TIME')
  local next = math.max(time + 1, now[1] * 1000000 + now[2])
  above = math.max(above, newest)
  redis.call('XADD', KEYS[2], string.format('%.0f-0', offset + 1),
    string.format('%.0f %.0f %.0f %.0f 0 0 -', newest + 1, above - newest, next, time), '')
  redis.call('HSET', KEYS[1], 'epoch', epoch[2], 'newest', above, 'offset', offset + 1,
    'time', next, 'run', run, 'ancestors', kept)
end
"""

ENTER: Final = Script.of(
    _FORK
    + """
-- head, log, nodes; node or '', a new epoch, format, nodes at most, run,
-- of what the node has of the log: its epoch or '', the newest id
local head = redis.call('HMGET', KEYS[1], 'format', 'epoch')
if not head[2] then
  if redis.call('EXISTS', KEYS[2]) == 1 then return 'headless' end
  if ARGV[1] == '' then return 'none' end
  redis.call('HSET', KEYS[1], 'format', ARGV[3], 'epoch', ARGV[2], 'newest', 0, 'offset', 0,
    'trimmed', 0, 'time', 0, 'run', ARGV[5], 'ancestors', '', 'appended', 0, 'checkpoint', '')
  redis.call('DEL', KEYS[3])
  if ARGV[6] ~= '' then fork(0, 0, 0, {ARGV[6], ARGV[2]}, tonumber(ARGV[7]), ARGV[5]) end
elseif head[1] ~= ARGV[3] then
  return 'format'
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
return 'entered'
"""
)

CONFIRM: Final = Script.of(
    _FORK
    + """
-- head, log, members, votes; run, node; what it has of the log: offset, its time or 0, the newest
-- id, the epoch; a new epoch; microseconds: for which a beat counts, and votes are waited for
local head = redis.call('HMGET', KEYS[1], 'epoch', 'offset', 'newest', 'time', 'run', 'trimmed')
if not head[1] then return 'gone' end
local epoch, offset, newest = head[1], tonumber(head[2]), tonumber(head[3])

-- Whether the log has a record as a node has it. Of one that was trimmed nothing is known.
local function has(at, time)
  if at > offset then return false end
  if at == 0 or time == '0' or at <= tonumber(head[6]) then return true end
  local id = string.format('%.0f-0', at)
  local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
  return not entry or string.match(entry[2][1], '^%d+ %d+ (%d+)') == time
end

if head[5] == ARGV[1] then
  if epoch ~= ARGV[6] then return 'forked' end
  if has(tonumber(ARGV[3]), ARGV[4]) then return 'same' end
  fork(offset, newest, tonumber(head[4]), {epoch, ARGV[7]}, tonumber(ARGV[5]), ARGV[1])
  return 'forked'
end

-- Another process has the log. All members say what they have of it before anything is appended.
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local since = redis.call('HGET', KEYS[4], 'since ' .. ARGV[1])
if not since then
  redis.call('DEL', KEYS[4])
  since = string.format('%.0f', now)
  redis.call('HSET', KEYS[4], 'since ' .. ARGV[1], since)
  -- By its last beat: how long the log was away does not matter.
  local beats, last = redis.call('HGETALL', KEYS[3]), 0
  for at = 2, #beats, 2 do
    last = math.max(last, tonumber(string.match(beats[at], '^%d+')))
  end
  for at = 1, #beats, 2 do
    if tonumber(string.match(beats[at + 1], '^%d+')) > last - tonumber(ARGV[8]) then
      redis.call('HSET', KEYS[4], 'member ' .. beats[at], '')
    end
  end
end
redis.call('HSET', KEYS[4], 'member ' .. ARGV[2],
  string.format('%s %s %s %s', ARGV[3], ARGV[4], ARGV[5], ARGV[6]))
-- Of epochs that this one goes on from. Any other is one that the log has lost, with what was in
-- it: it was begun after the last failover, and has not reached the one that has the log now.
local before = {['']=true}
for each in string.gmatch(redis.call('HGET', KEYS[1], 'ancestors') or '', '[^;]+') do
  before[string.match(each, '^%S+')] = true
end
local votes, missing, same, above = redis.call('HGETALL', KEYS[4]), 0, true, newest
for at = 1, #votes, 2 do
  if string.sub(votes[at], 1, 7) == 'member ' then
    local had, time, highest, of = string.match(votes[at + 1], '^(%d+) (%d+) (%d+) (.*)$')
    if not had then
      missing = missing + 1
    elseif not before[of] then
      same = same and of == epoch and has(tonumber(had), time)
      above = math.max(above, tonumber(highest))
    end
  end
end
if missing > 0 and now - tonumber(since) < tonumber(ARGV[9]) then return missing end
redis.call('DEL', KEYS[4])
if same and missing == 0 then
  redis.call('HSET', KEYS[1], 'run', ARGV[1])
  return epoch == ARGV[6] and 'same' or 'forked'
end
-- What a member that is not there any more had of the log is not known: it may have been more.
fork(offset, newest, tonumber(head[4]), {epoch, ARGV[7]}, above, ARGV[1])
return 'forked'
"""
)

APPEND: Final = Script.of(
    """
-- head, log, nodes, tokens; epoch, seen offset, its time, node, serial, count, body, run
local head = redis.call('HMGET', KEYS[1], 'epoch', 'newest', 'offset', 'time', 'run', 'appended')
if head[1] ~= ARGV[1] then return 'forked' end
if head[5] ~= ARGV[8] then return 'unconfirmed' end
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
local tokens = tonumber(redis.call('HGET', KEYS[4], 'version') or 0) or 0
-- The first write: where Redis refuses one, such as for want of memory, it refuses this.
redis.call('XADD', KEYS[2], string.format('%.0f-0', offset + 1),
  string.format('%.0f %s %.0f %.0f %.0f %s %s', newest + 1, ARGV[6], next, time, tokens, ARGV[5],
    ARGV[4]), ARGV[7])
redis.call('HSET', KEYS[1], 'newest', newest + tonumber(ARGV[6]), 'offset', offset + 1,
  'time', next, 'appended', tonumber(head[6]) + #ARGV[7])
redis.call('HSET', KEYS[3], ARGV[4],
  string.format('%s %.0f %.0f %.0f', ARGV[5], offset + 1, newest + 1, next))
return {offset + 1, newest + 1, next}
"""
)

READ: Final = Script.of(
    """
-- head, log; epoch, after, bytes at most, records at most
local head = redis.call('HMGET', KEYS[1], 'epoch', 'offset', 'time', 'newest', 'trimmed',
  'replicated')
if head[1] ~= ARGV[1] then return 'forked' end
local offset, trimmed = tonumber(head[2]), tonumber(head[5])
local at, most, left = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if offset < at then return 'forked' end
if at < trimmed then return {trimmed + 1} end
local found = {offset, tonumber(head[3]), tonumber(head[4]), tonumber(head[6]) or 0}
-- One by one: any may be of megabytes.
while at < offset and most > 0 and left > 0 do
  local id = string.format('%.0f-0', at + 1)
  local entry = redis.call('XRANGE', KEYS[2], id, '+', 'COUNT', 1)[1]
  if not entry or entry[1] ~= id then
    -- Removed by others than `trim`.
    if #found > 4 then break end
    return {entry and tonumber(string.match(entry[1], '%d+')) or offset + 1}
  end
  found[#found + 1] = entry[2][1]
  found[#found + 1] = entry[2][2]
  at, most, left = at + 1, most - #entry[2][2], left - 1
end
return found
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

CHECKPOINT: Final = Script.of(
    """
-- head, staged, staged of the one before; epoch, run, offset, checkpoint, the one before, seconds
local head = redis.call('HMGET', KEYS[1], 'epoch', 'run', 'checkpoint')
if head[1] ~= ARGV[1] then return 'forked' end
if head[2] ~= ARGV[2] then return 'unconfirmed' end
if head[3] ~= ARGV[5] then return head[3] end
local known = string.match(head[3], '^%S+ %d+ (%d+)')
if known and tonumber(known) >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], 'checkpoint', ARGV[4])
redis.call('PERSIST', KEYS[2])
redis.call('EXPIRE', KEYS[3], ARGV[6])
return 1
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
