-- What stops a call in its run, as run_stop; and whether all runs of its tenant or agent were halted that had been opened by
-- then: of these nobody knows all, so each is halted when it calls next. Needs stops and halt.
local function told_to_halt(opener, opened, caller)
  local here, anywhere = 'halt:' .. tenant .. '\n', 'halt:\n'
  local told = redis.call('HMGET', k_switches, here, anywhere .. opener, here .. opener, anywhere .. caller, here .. caller)
  for i = 1, 5 do
    local by_ms, actor, reason = string.match(told[i] or '', '^(%d+)\n([^\n]*)\n(.*)$')
    if by_ms and tonumber(opened) <= tonumber(by_ms) then return reason, actor end
  end
  return nil
end
local function stop_of_call(record, above)
  local stop, what = run_stop(record, above)
  if stop == 'halted' or stop == 'wrong_keys' then return stop, what end
  local reason, actor = told_to_halt(record.agent, record.opened, agent)
  for i = 1, #above do
    if reason then break end
    local r = redis.call('HMGET', above[i], 'agent', 'opened')
    if r[1] then reason, actor = told_to_halt(r[1], r[2], r[1]) end
  end
  if not reason then return stop, what end
  halt(run, reason, actor, entry)
  return 'halted', reason
end
