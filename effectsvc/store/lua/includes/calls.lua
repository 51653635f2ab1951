-- What a run's calls come to: loops and budgets. `look_back` and `over_budget` only read; the rest write. Needs clock, halt.
local recent, recent_ids, loop_mark
-- Answers 'loop' when this call makes of the last ones `repeats` copies of one block of at most `period` calls, 'halt'
-- when it is the run's second loop. The history is two strings, eight characters for each call (32 bits tell enough among
-- the few calls that are compared): what was called, and under which id; an id counts once.
local function look_back(id)
  local repeats, period = string.match(loops, '^(%d+) (%d+)$')
  if not repeats then return nil end
  local f = redis.call('HMGET', k_run, 'recent', 'recent_ids', 'looped')
  local mark, ids = string.sub(redis.sha1hex(id), 1, 8), f[2] or ''
  for at = 1, #ids, 8 do
    if string.sub(ids, at, at + 7) == mark then return f[3] == mark and 'loop' or nil end
  end
  local kept = -8 * repeats * period
  recent = string.sub((f[1] or '') .. string.sub(redis.sha1hex(tool .. ' ' .. args), 1, 8), kept)
  recent_ids, loop_mark = string.sub(ids .. mark, kept), mark
  for p = 1, tonumber(period) do
    local whole = 8 * p * repeats
    if #recent >= whole and string.sub(recent, -whole, -8 * p - 1) == string.sub(recent, 8 * p - whole) then
      return f[3] and 'halt' or 'loop'
    end
  end
  return nil
end
local DAY = 86400000
local function over_budget()
  local tool_max, run_max, cost, run_cost, tenant_cost = string.match(budgets, '^(%S+) (%S+) (%d+) (%S+) (%S+)$')
  if not cost then return nil end
  local used = redis.call('HMGET', k_run, 'calls:' .. tool, 'calls', 'cost')
  if tool_max ~= '-' and tonumber(used[1] or '0') >= tonumber(tool_max) then return 'call_budget_exhausted', 'tool ' .. tool_max end
  if run_max ~= '-' and tonumber(used[2] or '0') >= tonumber(run_max) then return 'call_budget_exhausted', 'run ' .. run_max end
  if run_cost ~= '-' and (used[3] or '0') + cost > tonumber(run_cost) then return 'cost_budget_exhausted', 'run ' .. run_cost end
  if tenant_cost ~= '-' then
    local day, spent = string.match(redis.call('HGET', k_spent, tenant) or '', '^(%d+) (%d+)$')
    if day ~= int(math.floor(now / DAY)) then spent = '0' end
    if spent + cost > tonumber(tenant_cost) then return 'cost_budget_exhausted', 'tenant ' .. tenant_cost end
  end
  return nil
end
local function remember_call()
  if recent then redis.call('HSET', k_run, 'recent', recent, 'recent_ids', recent_ids) end
end
local function remember_loop()
  if loop_mark then redis.call('HSET', k_run, 'looped', loop_mark) end
end
-- Takes one call and its cost from the budgets; answers what an effect keeps to give it back, or nil.
local function charge_budgets()
  local cost = string.match(budgets, '^%S+ %S+ (%d+) ')
  if not cost then return nil end
  local today = int(math.floor(now / DAY))
  redis.call('HINCRBY', k_run, 'calls', 1)
  redis.call('HINCRBY', k_run, 'calls:' .. tool, 1)
  redis.call('HINCRBY', k_run, 'cost', cost)
  local day, spent = string.match(redis.call('HGET', k_spent, tenant) or '', '^(%d+) (%d+)$')
  if day ~= today then spent = '0' end
  redis.call('HSET', k_spent, tenant, today .. ' ' .. int(spent + cost))
  return cost .. ' ' .. today
end
-- The refusal of a call that completes a loop, by the script's own `refuse`; nil for another. A run's second loop halts it.
local function loop_refusal(loop, refuse)
  if loop == 'halt' then
    halt(run, 'loop_detected', '', entry)
    return refuse('run_halted', '0.7:run_halted', 'loop_detected', false)
  end
  if loop then
    remember_loop()
    return refuse('loop_detected', '2.3:run_loop', '', true)
  end
  return nil
end
