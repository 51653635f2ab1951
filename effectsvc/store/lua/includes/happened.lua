--- include: compensated
-- Moves an effect to committed with a stored result; used wherever proof of it arrives. Needs move, log, attempts.
-- `e.is_first`: by its first attempt, and it was never in doubt: so it has few fields to lose, and to look for costs.
local function happened(e, kind, rule, result, digest, ref, bytes)
  local from = e.state
  if e.is_first then
    redis.call('HDEL', k_effect, 'decision', 'alive', 'suspect', 'x1')
  else
    redis.call('HDEL', k_effect, 'decision', 'lane_reason', 'waiting_for', 'rerun', 'doubt', 'alive', 'needs_review', 'reason',
      'late', 'late_digest', 'late_ref', 'absent_at', 'absent_of', 'probe_at', 'probe_until', 'rule', 'layer', 'proof', 'code', 'bound')
  end
  redis.call('HSET', k_effect, 'state', 'committed', 'since', int(now), 'result', digest, 'ref', ref)
  redis.call('SET', k_result, result)
  redis.call('ZREM', k_leases, effect_id)
  if from == 'unknown' then
    redis.call('ZREM', k_unknown, effect_id)
    redis.call('ZREM', k_rerun, effect_id)
    redis.call('ZREM', k_lookup, effect_id)
    redis.call('ZREM', k_parked, effect_id)
  end
  redis.call('SREM', k_open, effect_id)
  count(from, 'committed')
  tell(e.notice, effect_id, 'committed')
  if e.compensates then close_compensated(e.compensates, bytes) end
  return append(kind, 'committed', rule, 'no_refusal', from, 'committed', bytes)
end
