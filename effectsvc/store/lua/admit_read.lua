#!lua
--[[ admit_read: a read tool's decision; a known call answers from its stored result
KEYS   meta log run switches tenants halted read spent more*
ARGV   reader ancestor_count tool tenant agent run args call_id to rule layer halt_rules halts_any policy loops budgets rates retain_ms entry
REPLY  admitted n epoch | replay result digest n epoch | refused rule layer detail n epoch | frozen scope ids n epoch | policy_changed digest | wrong_cell cell | run_missing
]]
--- include: cell
--- include: log
--- include: stops
--- include: move
--- include: halt
--- include: told_to_halt
--- include: calls
--- include: rates
local above = {}
for i = 1, tonumber(ancestor_count) do above[i] = k_more[i] end
local record = load_run()
if not record or record.closed then return { 'run_missing' } end
if record.tenant ~= tenant or not has_tail(k_run, run) then return { 'wrong_keys', 'run' } end
local home = redis.call('HGET', k_tenants, tenant)
if home and home ~= string.match(k_meta, '^{(.-)}') then return { 'wrong_cell', home } end
local short_epoch = string.sub(epoch, 1, 16)
local known = {}
if call_id ~= '' then known = redis.call('HMGET', k_read, 'args', 'tool', 'result', 'digest', 'in:' .. reader) end

-- The same actor again, refused before: answers as before. What was admitted passes the stops once more.
local why, where, detail = string.match(known[5] or '', '^refused ([^\n]*)\n([^\n]*)\n(.*)$')
if why then return { 'refused', why, where, detail, '0', short_epoch } end

local function remember(outcome)
  if call_id == '' then return end
  redis.call('HSET', k_read, 'in:' .. reader, outcome)
  redis.call('PEXPIRE', k_read, retain_ms, 'NX')
end
local function refuse(why, where, detail, may_halt)
  remember('refused ' .. why .. '\n' .. where .. '\n' .. detail)
  remember_call()
  local n = append('decision', 'refused', why, where, '', '', entry)
  if may_halt and (halts_any == '1' or string.find(halt_rules, ' ' .. why .. ' ', 1, true)) then halt(run, why, '', entry) end
  return { 'refused', why, where, detail, n, short_epoch }
end
local switches = switches_of(record.agent, agent)
local scope, ids = open_one(switches)
if scope == 'fleet' or scope == 'tenant' then return refuse('kill_switch', '0.5:kill_switch', scope .. ' ' .. ids, true) end
if scope then
  local n = append('decision', 'frozen', scope .. '_frozen', '0.5:kill_switch', '', '', entry)
  if string.find(halt_rules, ' ' .. scope .. '_frozen ', 1, true) then halt(run, scope .. '_frozen', '', entry) end
  return { 'frozen', scope, ids, n, short_epoch }
end
local stop, reason = stop_of_call(record, above, switches)
if stop == 'wrong_keys' then return { stop, reason } end
if stop == 'halted' then return refuse('run_halted', '0.7:run_halted', reason, false) end
if stop == 'deadline' then return refuse('deadline_passed', '9:deadline', reason, false) end
local in_force = redis.call('HGET', k_meta, 'policy') or ''
local function as_the_client_says() return refuse(rule, layer, '', in_force == policy) end
if to == 'refused' and tonumber(string.match(layer, '^[%d.]+') or '99') < 2.3 then return as_the_client_says() end
local loop = nil
if call_id == '' then loop = look_back(reader)
elseif not known[1] then loop = look_back(k_read) end
local looped = loop_refusal(loop, refuse)
if looped then return looped end
if to == 'refused' then return as_the_client_says() end
-- Allowed by another policy than the one in force: its client judges again.
if in_force ~= policy and not known[5] then return { 'policy_changed', in_force } end
if known[1] and (known[1] ~= args or known[2] ~= tool) then
  return refuse('tool_call_conflict', '4:effect', known[2], true)
end
if known[4] then
  return { 'replay', known[3], known[4], append('replay', 'replayed', 'call', 'no_refusal', '', '', entry), short_epoch }
end
if known[5] then return { 'admitted', '0', short_epoch } end
if not known[1] then
  local wait = rate_wait(k_more, #above)
  if wait > 0 then return refuse('rate_limited', '5:rate', int(wait), true) end
  local exhausted, bound = over_budget()
  if exhausted then return refuse(exhausted, '6:budget', bound, true) end
  remember_call()
  charge_rates(k_more, #above)
  charge_budgets()
end
if call_id ~= '' then redis.call('HSET', k_read, 'args', args, 'tool', tool) end
remember('admitted')
return { 'admitted', append('decision', 'admitted', 'no_refusal', 'no_refusal', '', '', entry), short_epoch }
