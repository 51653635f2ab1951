-- Leaves an effect unknown: it enters the lane's rerun set (under a named rule) or its lookup set, never the outbox.
-- Needs move, log, attempts. `over` is '1' when the attempt is known to be over; `bound` is what forbade a rerun.
local function leave_unknown(e, reason, over, next, rule, bound, delay_ms, bytes)
  local number = attempt_of(e.token)
  if over == '1' then
    redis.call('HSET', k_effect, 'alive', alive_without(e.alive, number))
    redis.call('HDEL', k_effect, 'x' .. number)
    redis.call('ZREM', k_leases, effect_id)
  end
  redis.call('HDEL', k_effect, 'rerun', 'bound')
  if bound ~= 'no_bound' then redis.call('HSET', k_effect, 'bound', bound) end
  redis.call('HSET', k_effect, 'state', 'unknown', 'since', int(now), 'doubt', '1', 'reason', reason)
  redis.call('ZADD', k_unknown, now, effect_id)
  if next == 'rerun' then
    redis.call('HSET', k_effect, 'rerun', rule)
    redis.call('ZADD', k_rerun, now + tonumber(delay_ms), effect_id)
  elseif next == 'review' then
    redis.call('HSET', k_effect, 'needs_review', '1', 'waiting_for', 'person')
  else
    redis.call('HSET', k_effect, 'waiting_for', 'lookup')
    redis.call('ZADD', k_lookup, now + tonumber(delay_ms), effect_id)
  end
  count(e.state, 'unknown')
  tell(e.notice, effect_id, 'unknown')
  return append('outcome', 'unknown', reason, 'no_refusal', e.state, 'unknown', bytes)
end
-- Late evidence that it happened was stored while this attempt ran: its close ends committed, whatever it says.
local function stored_evidence(e, over, bytes)
  local late = redis.call('HMGET', k_effect, 'late', 'late_digest', 'late_ref')
  if not late[1] then return nil end
  local result = redis.call('GET', k_result) or ''
  local n = happened(e, 'outcome', 'late_evidence', result, late[2], late[3] or '', bytes)
  local number = attempt_of(e.token)
  local left = e.alive or ''
  if over == '1' then
    left = alive_without(left, number)
    redis.call('HDEL', k_effect, 'x' .. number)
  end
  if left ~= '' then redis.call('HSET', k_effect, 'alive', left) end
  return n
end
