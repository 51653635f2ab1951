-- Ends an effect that waits (held, proposed): nothing has happened. Needs move, log, give_back.
local function withdraw(e, to, rule, layer, kind, bytes)
  redis.call('HSET', k_effect, 'state', to, 'since', int(now), 'rule', rule, 'layer', layer)
  redis.call('HDEL', k_effect, 'lane_reason')
  redis.call('ZREM', k_lane, effect_id)
  redis.call('ZREM', k_parked, effect_id)
  redis.call('ZREM', k_held, effect_id)
  redis.call('SREM', k_open, effect_id)
  give_back()
  count(e.state, to)
  tell(e.notice, effect_id, to)
  return append(kind, to, rule, layer, e.state, to, bytes)
end
