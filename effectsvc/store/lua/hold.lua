#!lua flags=allow-oom
--[[ hold: proposed -> held (escalated, or quarantined); in doubt it stays unknown, with the reason
KEYS   meta log effect lane rerun lookup parked held counts approvals
ARGV   effect_id attempt rule layer render ttl_ms next delay_ms entry
REPLY  held expires_ms n epoch | unknown n epoch | already state | taken state | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: keep_unknown
local f = redis.call('HMGET', k_effect, 'state', 'attempt', 'notice', 'lane', 'rule', 'reason')
local state = f[1]
if not state then return { 'gone' } end
if state == 'held' and f[5] == rule then return { 'already', state } end
-- Due again since: held back anew, or it would stand in the rerun set for ever.
if state == 'unknown' and f[6] == rule and not redis.call('ZSCORE', k_rerun, effect_id) then return { 'already', state } end
if (state ~= 'proposed' and state ~= 'unknown') or f[2] ~= attempt then return { 'taken', state } end
if not has_tail(k_lane, f[4]) then return { 'wrong_keys', 'lane' } end
local short_epoch = string.sub(epoch, 1, 16)
if state == 'unknown' then
  local n = keep_unknown(rule, next, delay_ms, 'approval', rule, layer, entry)
  -- A lookup may end the doubt; but whether this tool may run on these arguments is for a person.
  if rule == 'quarantined' then redis.call('HSET', k_effect, 'needs_review', '1') end
  return { 'unknown', n, short_epoch }
end
local expires = now + tonumber(ttl_ms)
redis.call('ZREM', k_lane, effect_id)
redis.call('ZREM', k_parked, effect_id)
redis.call('ZADD', k_held, expires, effect_id)
-- Approvals given before do not count for this one.
redis.call('DEL', k_approvals)
redis.call('HDEL', k_effect, 'lane_reason', 'approving', 'approved', 'approved_until', 'render')
redis.call('HSET', k_effect, 'state', 'held', 'since', int(now), 'rule', rule, 'layer', layer)
if render ~= '' then redis.call('HSET', k_effect, 'render', render) end
count('proposed', 'held')
tell(f[3], effect_id, 'held')
local n = append('approval', 'held', rule, layer, 'proposed', 'held', entry)
return { 'held', int(expires), n, short_epoch }
