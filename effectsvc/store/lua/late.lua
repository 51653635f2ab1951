#!lua flags=allow-oom
--[[ late: evidence from an attempt that it happened: unknown -> committed; held, proposed -> unknown; a final state is contradicted
KEYS   meta log effect result intent lane leases unknown rerun lookup parked held counts open compensated*
ARGV   effect_id token digest ref result entry
REPLY  committed n epoch | unknown n epoch | stored n epoch | contradicted n epoch | already state | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: attempts
--- include: happened
local number = attempt_of(token)
if number == '' then return { 'wrong_keys', 'token' } end
local f = redis.call('HMGET', k_effect, 'state', 'attempt', 'notice', 'alive', 'lane', 'run', 'contradicted', 'ref', 'l' .. number, 'compensates')
local state = f[1]
if not state then return { 'gone' } end
local seen = string.sub(redis.sha1hex(token .. ' ' .. digest), 1, 20)
if f[9] == seen then return { 'already', state } end
if f[5] and not has_tail(k_lane, f[5]) then return { 'wrong_keys', 'lane' } end
if not has_tail(k_open, f[6]) then return { 'wrong_keys', 'run' } end
if f[10] and not compensated_declared(f[10]) then return { 'wrong_keys', 'compensated' } end

local short_epoch = string.sub(epoch, 1, 16)
redis.call('HSET', k_effect, 'l' .. number, seen)
-- A number that this store does not remember (it lost its past) is never given again.
if tonumber(number) > tonumber(f[2] or '0') then redis.call('HSET', k_effect, 'attempt', number) end
local left = alive_without(f[4], number)
redis.call('HDEL', k_effect, 'x' .. number)
if state == 'unknown' then
  local n = happened({ state = state, notice = f[3], compensates = f[10] }, 'late', 'late_evidence', result, digest, ref, entry)
  if left ~= '' then redis.call('HSET', k_effect, 'alive', left) end
  return { 'committed', n, short_epoch }
end
if f[4] then redis.call('HSET', k_effect, 'alive', left) end
if state == 'committed' then
  local rule = 'late_evidence'
  if ref ~= '' and f[8] and f[8] ~= '' and f[8] ~= ref then rule = 'other_reference' end
  return { 'committed', append('late', 'committed', rule, 'no_refusal', state, state, entry), short_epoch }
end
redis.call('HSET', k_effect, 'late', number, 'late_digest', digest, 'late_ref', ref)
redis.call('SET', k_result, result)
if state == 'pending' then
  return { 'stored', append('late', 'stored', 'late_evidence', 'no_refusal', state, state, entry), short_epoch }
end
if state == 'held' or state == 'proposed' then
  redis.call('ZREM', k_lane, effect_id)
  redis.call('ZREM', k_parked, effect_id)
  redis.call('ZREM', k_held, effect_id)
  redis.call('HDEL', k_effect, 'lane_reason')
  redis.call('HSET', k_effect, 'state', 'unknown', 'since', int(now), 'doubt', '1', 'reason', 'late_evidence', 'waiting_for', 'lookup')
  redis.call('ZADD', k_unknown, now, effect_id)
  redis.call('ZADD', k_lookup, now, effect_id)
  count(state, 'unknown')
  tell(f[3], effect_id, 'unknown')
  return { 'unknown', append('late', 'unknown', 'late_evidence', 'no_refusal', state, 'unknown', entry), short_epoch }
end
-- Final, and wrong: whoever has taken the intent since can no longer begin.
redis.call('SET', k_intent, effect_id)
if not f[7] then
  redis.call('HSET', k_effect, 'contradicted', '1')
  redis.call('HINCRBY', k_counts, 'contradicted', 1)
end
tell(f[3], effect_id, state)
return { 'contradicted', append('late', 'contradicted', 'late_evidence', 'no_refusal', state, state, entry), short_epoch }
