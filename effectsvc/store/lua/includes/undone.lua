-- Ends the doubt with proof that nothing happened: unknown -> failed, or proposed (due after delay_ms).
-- Needs move, log, outbox, give_back.
local function undone(e, to, proof, bound, delay_ms, kind, bytes)
  redis.call('HDEL', k_effect, 'doubt', 'reason', 'rerun', 'lane_reason', 'waiting_for', 'needs_review', 'alive', 'decision',
    'absent_at', 'absent_of', 'probe_at', 'probe_until', 'late', 'late_digest', 'late_ref', 'parts', 'bound')
  redis.call('DEL', k_parts)
  redis.call('ZREM', k_leases, effect_id)
  redis.call('ZREM', k_unknown, effect_id)
  redis.call('ZREM', k_rerun, effect_id)
  redis.call('ZREM', k_lookup, effect_id)
  redis.call('ZREM', k_parked, effect_id)
  redis.call('HSET', k_effect, 'state', to, 'since', int(now), 'proof', proof)
  if to == 'failed' then
    redis.call('HSET', k_effect, 'bound', bound)
    give_back()
    redis.call('SREM', k_open, effect_id)
  else
    enter_lane(now + tonumber(delay_ms), e.lane)
  end
  count('unknown', to)
  tell(e.notice, effect_id, to)
  return append(kind, to, proof, 'no_refusal', 'unknown', to, bytes)
end
-- Whether parts of the effect are known to be done: such an effect is never failed, refused or cancelled.
local function has_done_parts(parts) return tonumber(string.match(parts or '', '^(%d+)/') or '0') > 0 end
