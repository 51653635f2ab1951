-- What stops a call: the switches that freeze it, and those that say that all runs of its tenant or agent were halted which
-- had been opened by then. Of these nobody knows all, so each is halted when it calls next. Needs stops and halt.
local function switches_of(opener, caller)
  local here, anywhere = 'halt:' .. tenant .. '\n', 'halt:\n'
  return redis.call('HMGET', k_switches, 'fleet', 'cell', 'tenant:' .. tenant, 'tool:' .. tool, 'agent:' .. caller,
    here, anywhere .. opener, here .. opener, anywhere .. caller, here .. caller)
end
-- Who told the run to halt, and why; `switches` of the run's opener and whoever calls in it.
local function told_to_halt(opened, opened_n, switches)
  for i = 6, 10 do
    if switches[i] then
      local by_n, by_ms, actor, reason = string.match(switches[i], '^(%d+)\n(%d+)\n([^\n]*)\n(.*)$')
      if by_n and tonumber(opened_n or opened) <= tonumber(opened_n and by_n or by_ms) then return reason, actor end
    end
  end
  return nil
end
-- As run_stop; `switches` as the call met them.
local function stop_of_call(record, above, switches)
  local stop, what = run_stop(record, above)
  if stop == 'halted' or stop == 'wrong_keys' then return stop, what end
  local reason, actor = told_to_halt(record.opened, record.opened_n, switches)
  for i = 1, #above do
    if reason then break end
    local r = redis.call('HMGET', above[i], 'agent', 'opened', 'opened_n')
    if r[1] then reason, actor = told_to_halt(r[2], r[3], switches_of(r[1], r[1])) end
  end
  if not reason then return stop, what end
  halt(run, reason, actor, entry)
  return 'halted', reason
end
