#!lua flags=allow-oom
--[[ park: proposed, unknown (due for begin) -> the same, out of the lane under a reason; appends nothing
KEYS   meta effect lane rerun parked
ARGV   effect_id attempt reason
REPLY  parked reason | taken state | gone
]]
--- include: cell
--- include: move
local f = redis.call('HMGET', k_effect, 'state', 'attempt', 'lane', 'lane_reason')
local state = f[1]
if not state then return { 'gone' } end
if state ~= 'proposed' and state ~= 'unknown' then return { 'taken', state } end
if not has_tail(k_lane, f[3]) then return { 'wrong_keys', 'lane' } end
if redis.call('ZSCORE', k_parked, effect_id) then return { 'parked', f[4] or '' } end
if f[2] ~= attempt then return { 'taken', state } end
local queue = k_lane
if state == 'unknown' then queue = k_rerun end
local due = redis.call('ZSCORE', queue, effect_id)
if not due then return { 'taken', state } end
redis.call('ZREM', queue, effect_id)
redis.call('ZADD', k_parked, due, effect_id)
redis.call('HSET', k_effect, 'lane_reason', reason)
return { 'parked', reason }
