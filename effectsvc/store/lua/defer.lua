#!lua flags=allow-oom
--[[ defer: proposed, unknown (due for begin) -> the same, due later; appends nothing
KEYS   meta effect lane rerun
ARGV   effect_id attempt delay_ms reason
REPLY  deferred due_ms | taken state | gone
]]
--- include: cell
--- include: move
local f = redis.call('HMGET', k_effect, 'state', 'attempt', 'lane')
local state = f[1]
if not state then return { 'gone' } end
if (state ~= 'proposed' and state ~= 'unknown') or f[2] ~= attempt then return { 'taken', state } end
if not has_tail(k_lane, f[3]) then return { 'wrong_keys', 'lane' } end
local queue = k_lane
if state == 'unknown' then queue = k_rerun end
local due = tonumber(redis.call('ZSCORE', queue, effect_id) or '')
if not due then return { 'taken', state } end
-- Only what is due is put off: a second send, or a second worker, finds it put off and does not add to it.
if due > now then return { 'deferred', int(due) } end
due = now + tonumber(delay_ms)
redis.call('ZADD', queue, due, effect_id)
redis.call('HSET', k_effect, 'lane_reason', reason)
return { 'deferred', int(due) }
