#!lua flags=allow-oom
--[[ over: any state stays; attempt `number` is over, and `how` that is known
KEYS   meta log effect leases lookup suspects deaths
ARGV   effect_id number how after_ms entry
REPLY  over state alive n epoch | already state | alive presumed_ms | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: attempts
--- include: suspects
--- include: deaths
local f = redis.call('HMGET', k_effect, 'state', 'token', 'alive', 'waiting_for', 'lane', 'since', 'tool', 'args', 'suspect')
local state = f[1]
if not state then return { 'gone' } end
local left = alive_without(f[3], number)
if left == (f[3] or '') then return { 'already', state } end
if not has_tail(k_lookup, f[5]) then return { 'wrong_keys', 'lane' } end
-- Silence is counted from when the effect became unknown, and only while nobody renews.
if how == 'presumed' then
  local lease = tonumber(redis.call('ZSCORE', k_leases, effect_id) or '0')
  local presumed_at = math.max(lease, f[6] + after_ms)
  if state ~= 'unknown' or lease > now or presumed_at > now then return { 'alive', int(presumed_at) } end
end
if how == 'lock_free' or how == 'exit_status' then note_death('process', f[9] == number, f[7], f[8], entry) end
redis.call('HSET', k_effect, 'alive', left)
redis.call('HDEL', k_effect, 'x' .. number)
if attempt_of(f[2] or '') == number then
  -- A pending effect stays in the sweep's sight: its lease ends now, and the sweep marks it unknown.
  if state == 'pending' then redis.call('ZADD', k_leases, now, effect_id) else redis.call('ZREM', k_leases, effect_id) end
end
if left == '' and state == 'unknown' and f[4] == 'attempt_over' then
  redis.call('HSET', k_effect, 'waiting_for', 'lookup')
  redis.call('ZADD', k_lookup, now, effect_id)
end
local n = append('over', 'over', how, 'no_refusal', state, state, entry)
return { 'over', state, left, n, string.sub(epoch, 1, 16) }
