-- What stands in the way of an effect: an open switch, or a halted or expired run.
local SCOPES = { 'fleet', 'cell', 'tenant', 'tool', 'agent' }
local function open_one(switches)
  for i = 1, 5 do
    if switches[i] and switches[i] ~= '' then return SCOPES[i], switches[i] end
  end
  return nil
end
local function frozen(tenant, tool, agent)
  return open_one(redis.call('HMGET', k_switches, 'fleet', 'cell', 'tenant:' .. tenant, 'tool:' .. tool, 'agent:' .. agent))
end
-- Answers 'halted', reason | 'deadline', ms | 'wrong_keys', what | nil. `above` are the keys of the run's ancestors.
local function run_stop(run, above)
  if run.halted then return 'halted', run.halted end
  local i = 0
  for tail in string.gmatch(run.ancestors or '', '%S+') do
    i = i + 1
    if not above[i] or string.sub(above[i], -#tail) ~= tail then return 'wrong_keys', 'ancestors' end
    local reason = redis.call('HGET', above[i], 'halted')
    if reason then return 'halted', reason end
  end
  if run.deadline and run.deadline ~= '' and now > tonumber(run.deadline) then return 'deadline', run.deadline end
  return nil
end
local function load_run()
  local r = redis.call('HMGET', k_run, 'tenant', 'halted', 'ancestors', 'deadline', 'closed', 'agent', 'opened', 'opened_n')
  if not r[1] then return nil end
  return { tenant = r[1], halted = r[2], ancestors = r[3] or '', deadline = r[4], closed = r[5], agent = r[6], opened = r[7],
    opened_n = r[8] }
end
