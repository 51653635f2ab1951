-- Puts the effect into its lane's outbox; rings when it is the first that is ready (the bell is a hint only).
local function enter_lane(due, lane)
  redis.call('ZADD', k_lane, due, effect_id)
  if due <= now and redis.call('ZCOUNT', k_lane, '-inf', now) == 1 then
    redis.call('PUBLISH', string.sub(k_meta, 1, -5) .. 'bell', lane)
  end
end
-- Puts an unknown effect into its lane's rerun set, due for begin under a named rule.
local function enter_rerun(due, lane, rule)
  redis.call('HSET', k_effect, 'rerun', rule)
  redis.call('ZADD', k_rerun, due, effect_id)
  if due <= now and redis.call('ZCOUNT', k_rerun, '-inf', now) == 1 then
    redis.call('PUBLISH', string.sub(k_meta, 1, -5) .. 'bell', lane)
  end
end
