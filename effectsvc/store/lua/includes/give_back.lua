-- Gives back what a proposal took from the budgets, once: nothing has happened, and nothing will. Needs move.
local function give_back()
  local f = redis.call('HMGET', k_effect, 'charge', 'tool', 'tenant')
  if not f[1] then return end
  local cost, day = string.match(f[1], '^(%d+) (%d+)$')
  redis.call('HDEL', k_effect, 'charge')
  redis.call('HINCRBY', k_run, 'calls', -1)
  redis.call('HINCRBY', k_run, 'calls:' .. f[2], -1)
  redis.call('HINCRBY', k_run, 'cost', -cost)
  -- A budget of yesterday is nobody's any more.
  local current, spent = string.match(redis.call('HGET', k_spent, f[3]) or '', '^(%d+) (%d+)$')
  if current == day then redis.call('HSET', k_spent, f[3], day .. ' ' .. int(spent - cost)) end
end
