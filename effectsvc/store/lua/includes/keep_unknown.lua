-- In doubt: the effect stays unknown, with the reason, and leaves the rerun set, so that nothing begins it again by itself.
-- `next` is 'lookup' (after delay_ms), 'review' (a person), or 'keep' (a person, unless a lookup is due anyway). Needs log.
local function keep_unknown(reason, next, delay_ms, kind, rule, layer, bytes)
  redis.call('ZREM', k_rerun, effect_id)
  redis.call('ZREM', k_parked, effect_id)
  redis.call('HDEL', k_effect, 'rerun', 'lane_reason')
  redis.call('HSET', k_effect, 'reason', reason)
  if next == 'lookup' then
    redis.call('ZADD', k_lookup, 'LT', now + tonumber(delay_ms), effect_id)
    redis.call('HSET', k_effect, 'waiting_for', 'lookup')
  else
    local scheduled = redis.call('ZSCORE', k_lookup, effect_id)
    if next == 'review' or not scheduled then redis.call('HSET', k_effect, 'needs_review', '1') end
    if not scheduled then redis.call('HSET', k_effect, 'waiting_for', 'person') end
  end
  return append(kind, 'unknown', rule, layer, 'unknown', 'unknown', bytes)
end
