#!lua
--[[ unpark: proposed, unknown -> the same, back where it was parked from, if it is still parked for this reason; appends nothing
KEYS   meta effect lane rerun parked
ARGV   effect_id reason
REPLY  unparked due_ms | parked reason | already state | gone
]]
--- include: cell
--- include: move
local f = redis.call('HMGET', k_effect, 'state', 'lane', 'lane_reason')
local state = f[1]
if not state then return { 'gone' } end
if state ~= 'proposed' and state ~= 'unknown' then return { 'already', state } end
if not has_tail(k_lane, f[2]) then return { 'wrong_keys', 'lane' } end
local due = redis.call('ZSCORE', k_parked, effect_id)
if not due then return { 'already', state } end
if f[3] ~= reason then return { 'parked', f[3] or '' } end
local queue = k_lane
if state == 'unknown' then queue = k_rerun end
redis.call('ZREM', k_parked, effect_id)
redis.call('ZADD', queue, due, effect_id)
redis.call('HDEL', k_effect, 'lane_reason')
if tonumber(due) <= now and redis.call('ZCOUNT', queue, '-inf', now) == 1 then
  redis.call('PUBLISH', string.sub(k_meta, 1, -5) .. 'bell', f[2])
end
return { 'unparked', int(tonumber(due)) }
