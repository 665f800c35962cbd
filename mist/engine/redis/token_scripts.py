"""What Redis does in one step with the tokens of a realm.

    {mist:REALM}:tokens         a hash: values by digests; see `mist.auth.shared`
    {mist:REALM}:tokens:head    format, fingerprint of the key, version, write, changes
    {mist:REALM}:tokens:log     a stream, whose ids are `VERSION-0`: what each write has changed

An entry of the log has one field. Its name is `WRITE CHANGES`: the name of the write, and how many
tokens have been changed up to it. Its value is what was changed, as `mist.engine.redis.tokens`
packs it: for each token the digest of 32 bytes, the length of the value in 4, and the value, which
is empty where the token is removed.
"""

from typing import Final

from mist.engine.redis.scripts import Script

__all__ = ["ENTER", "FORMAT", "NEWS", "WRITE"]

FORMAT: Final = 1
"""Of the keys; a registry of another one is left alone."""

ENTER: Final = Script.of(
    """
-- head, tokens, log; format, fingerprint, name of the first write
local head = redis.call('HMGET', KEYS[1], 'format', 'fingerprint', 'version')
if not head[3] then
  if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then return 'headless' end
  local now = redis.call('TIME')
  local version = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
  redis.call('XADD', KEYS[3], version .. '-0', ARGV[3] .. ' 0', '')
  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'fingerprint', ARGV[2], 'version', version,
    'write', ARGV[3], 'changes', 0)
  return 'made'
end
if head[1] ~= ARGV[1] then return 'format' end
if head[2] ~= ARGV[2] then return 'key' end
return 'known'
"""
)

WRITE: Final = Script.of(
    """
-- head, tokens, log; version, its write, name of this one, changes kept, how many, changes
local head = redis.call('HMGET', KEYS[1], 'version', 'write', 'changes')
if not head[1] then return 'gone' end
local version = string.format('%.0f', ARGV[1] + 1)
if head[1] ~= ARGV[1] or head[2] ~= ARGV[2] then
  -- It may be this very write, repeated since its reply was lost.
  local entry = redis.call('XRANGE', KEYS[3], version .. '-0', version .. '-0')[1]
  if entry and string.match(entry[2][1], '^%x+') == ARGV[3] then return 'written' end
  return 'stale'
end
local set, gone, changes, at = {}, {}, head[3] + ARGV[5], 1
local body = ARGV[6]
local function flush()
  if #set > 0 then redis.call('HSET', KEYS[2], unpack(set)) end
  if #gone > 0 then redis.call('HDEL', KEYS[2], unpack(gone)) end
  set, gone = {}, {}
end
-- The first write: where Redis refuses one, such as for want of memory, it refuses this.
redis.call('XADD', KEYS[3], version .. '-0', string.format('%s %.0f', ARGV[3], changes), body)
while at <= #body do
  local digest, length = struct.unpack('>c32I4', body, at)
  at = at + 36
  if length == 0 then
    gone[#gone + 1] = digest
  else
    set[#set + 1] = digest
    set[#set + 1] = string.sub(body, at, at + length - 1)
  end
  at = at + length
  if #set + #gone > 2000 then flush() end
end
flush()
redis.call('HSET', KEYS[1], 'version', version, 'write', ARGV[3],
  'changes', string.format('%.0f', changes))
-- A few at a time, since one may be of megabytes. Each write leaves fewer, down to those to keep.
for _ = 1, 10 do
  local oldest = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)[1]
  if changes - tonumber(string.match(oldest[2][1], '%d+$')) <= tonumber(ARGV[4]) then break end
  redis.call('XDEL', KEYS[3], oldest[1])
end
return 'written'
"""
)

NEWS: Final = Script.of(
    """
-- head, log; version, its write, bytes at most
local head = redis.call('HMGET', KEYS[1], 'version', 'write')
if not head[1] then return 'gone' end
if head[1] == ARGV[1] and head[2] == ARGV[2] then return {head[1]} end
local at, most = tonumber(ARGV[1]), tonumber(ARGV[3])
if at >= tonumber(head[1]) then return 'forgotten' end
local id = string.format('%.0f-0', at)
local known = redis.call('XRANGE', KEYS[2], id, id)[1]
if not known or string.match(known[2][1], '^%x+') ~= ARGV[2] then return 'forgotten' end
local found = {head[1]}
-- One by one: any may be of megabytes.
while most > 0 do
  id = string.format('%.0f-0', at + 1)
  local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
  if not entry then break end
  found[#found + 1] = string.match(entry[2][1], '^%x+') or ''
  found[#found + 1] = entry[2][2]
  at, most = at + 1, most - #entry[2][2] - 100
end
if #found == 1 then return 'forgotten' end
return found
"""
)
