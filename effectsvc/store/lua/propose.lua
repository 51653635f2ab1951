#!lua
--[[ propose: none -> proposed, held, refused
KEYS   meta log effect payload run lane call intent switches tenants counts open held halted tomb_effect tomb_call tomb_intent spent target more*
ARGV   effect_id ancestor_count looks bucket_count to rule layer tool version tenant agent run lane args call_id needs_call compensates delay_ms ttl_ms notice halt_rules halts_any policy loops budgets rates exclusive payload entry
REPLY  proposed due_ms occurrence again_of n epoch | held expires_ms occurrence again_of n epoch | refused rule layer detail n epoch | frozen scope ids n epoch | exists state rule layer occurrence | joined how effect_id state occurrence n epoch | look effect_id | retired what value | wrong_cell cell | run_missing | buckets count
]]
--- include: cell
--- include: log
--- include: stops
--- include: move
--- include: halt
--- include: told_to_halt
--- include: calls
--- include: rates
--- include: compensable
if cell[3] ~= bucket_count then return { 'buckets', cell[3] } end
local above, look = {}, {}
for i = 1, tonumber(ancestor_count) do above[i] = k_more[i] end
local at = #above
for id in string.gmatch(looks, '%S+') do
  at = at + 1
  look[id] = k_more[at]
end
local first_rate = at
for _ in string.gmatch(rates, '%d+ %d+') do at = at + 1 end
local superseded = {}
for i = at + 1, #k_more do superseded[#superseded + 1] = k_more[i] end
local short_epoch = string.sub(epoch, 1, 16)

-- The same actor again: the effect that carries this id answers as before.
local mine = redis.call('HMGET', k_effect, 'state', 'args', 'args0', 'tool', 'run', 'rule', 'layer', 'occ')
if mine[1] then
  if (mine[2] ~= args and mine[3] ~= args) or mine[4] ~= tool or mine[5] ~= run then
    return { 'refused', 'tool_call_conflict', '4:effect', effect_id .. ' ' .. mine[1], '0', short_epoch }
  end
  return { 'exists', mine[1], mine[6] or 'no_refusal', mine[7] or 'no_refusal', mine[8] or '1' }
end
local tomb = redis.call('HGET', k_tomb_effect, 'e' .. effect_id)
if tomb then return { 'retired', 'effect', tomb } end

-- A refusal that is stored: a re-send of this id is answered from it. It holds no claim.
local function refuse(why, where, detail, may_halt)
  redis.call('HSET', k_effect, 'state', 'refused', 'tool', tool, 'tenant', tenant, 'agent', agent, 'run', run, 'args', args,
    'rule', why, 'layer', where, 'at', int(now), 'since', int(now), 'notice', notice)
  redis.call('SET', k_payload, payload)
  count(nil, 'refused')
  remember_call()
  local n = append('decision', 'refused', why, where, '', 'refused', entry)
  if may_halt and (halts_any == '1' or string.find(halt_rules, ' ' .. why .. ' ', 1, true)) then halt(run, why, '', entry) end
  return { 'refused', why, where, detail, n, short_epoch }
end

local record = load_run()
if not record or record.closed then return { 'run_missing' } end
if record.tenant ~= tenant or not has_tail(k_run, run) then return { 'wrong_keys', 'run' } end
local home = redis.call('HGET', k_tenants, tenant)
local here = string.match(k_meta, '^{(.-)}')
if home and home ~= here then return { 'wrong_cell', home } end

local switches = switches_of(record.agent, agent)
local scope, ids = open_one(switches)
if scope == 'fleet' or scope == 'tenant' then return refuse('kill_switch', '0.5:kill_switch', scope .. ' ' .. ids, true) end
if scope then
  local why = scope .. '_frozen'
  local n = append('decision', 'frozen', why, '0.5:kill_switch', '', '', entry)
  if string.find(halt_rules, ' ' .. why .. ' ', 1, true) then halt(run, why, '', entry) end
  return { 'frozen', scope, ids, n, short_epoch }
end
local stop, reason = stop_of_call(record, above, switches)
if stop == 'wrong_keys' then return { stop, reason } end
if stop == 'halted' then return refuse('run_halted', '0.7:run_halted', reason, false) end
if stop == 'deadline' then return refuse('deadline_passed', '9:deadline', reason, false) end
local function as_the_client_says() return refuse(rule, layer, '', redis.call('HGET', k_meta, 'policy') == policy) end
if to == 'refused' and tonumber(string.match(layer, '^[%d.]+') or '99') < 2.3 then return as_the_client_says() end
-- What layer 2 admitted counts, each call id once; so a known one never does.
local loop, called = nil, nil
if call_id == '' then
  loop = look_back(effect_id)
else
  called = redis.call('GET', k_call)
  if not called then loop = look_back(k_call) end
end
local looped = loop_refusal(loop, refuse)
if looped then return looped end
if to == 'refused' then return as_the_client_says() end
if call_id == '' and needs_call == '1' then return refuse('tool_call_id_required', '4:effect', '', true) end

-- What a claim's holder means for this call: 'free', 'same', 'other', or 'look' when its keys are not declared.
local function holder(id)
  if not look[id] then return 'look' end
  local x = redis.call('HMGET', look[id], 'state', 'args', 'args0', 'tool', 'contradicted', 'rule', 'occ', 'proof', 'compensated')
  if not x[1] then return 'gone' end
  -- A final state that late evidence contradicts is no knowledge: it is told as unknown.
  local e = { id = id, state = x[1], told = x[5] and 'unknown' or x[1], rule = x[6], occ = tonumber(x[7] or '1'), proof = x[8], compensated = x[9] }
  e.same = (x[2] == args or x[3] == args) and x[4] == tool
  e.free = ((x[1] == 'failed' or x[1] == 'refused' or x[1] == 'cancelled') and not x[5]) or e.compensated
  return nil, e
end
local function joined(how, e)
  if how == 'intent' then
    -- The model did call again: it counts for rates and loops, and takes no budget.
    local wait = rate_wait(k_more, first_rate)
    if wait > 0 then return refuse('rate_limited', '5:rate', int(wait), true) end
    charge_rates(k_more, first_rate)
    remember_call()
  end
  if how == 'intent' and call_id ~= '' then
    redis.call('SET', k_call, e.id)
    -- Its record names the calls that joined it: their claims go when it is retired.
    local record_of_it = look[e.id]
    redis.call('HSET', record_of_it, 'j' .. string.match(k_call, '[^:]+$'), '1')
  end
  local n = append('replay', 'joined', how, 'no_refusal', e.state, e.state, entry)
  return { 'joined', how, e.id, e.told, int(e.occ), n, short_epoch }
end

local occurrence, again_of = 1, ''
if call_id ~= '' then
  if called then
    local word, e = holder(called)
    if word == 'look' then return { 'look', called } end
    if e then
      if not e.same then return refuse('tool_call_conflict', '4:effect', called .. ' ' .. e.told, true) end
      if not e.free or e.rule == 'approval_rejected' then return joined('call', e) end
      again_of = called
    end
  end
  local buried = redis.call('HGET', k_tomb_call, 'c' .. string.match(k_call, '[^:]+$'))
  if buried then return { 'retired', 'call', buried } end
end
local claimed = {}
local function judge_claim(claim)
  local id = redis.call('GET', claim)
  if not id then return nil end
  claimed[claim] = true
  local word, e = holder(id)
  if word == 'look' then return { 'look', id } end
  if not e then return nil end
  if e.free then
    if claim == k_intent then
      occurrence = e.occ
      if e.compensated or (e.state == 'failed' and e.proof == 'rejected') then occurrence = e.occ + 1 end
      again_of = id
    end
    return nil
  end
  if e.same then return joined('intent', e) end
  return refuse('same_intent_other_arguments', '4:effect', id .. ' ' .. e.told, true)
end
local answer = judge_claim(k_intent)
if answer then return answer end
for i = 1, #superseded do
  answer = judge_claim(superseded[i])
  if answer then return answer end
end
local buried = redis.call('HGET', k_tomb_intent, 'i' .. string.match(k_intent, '[^:]+$'))
if buried then return { 'retired', 'intent', buried } end

-- A compensation looks at what it undoes.
if compensates ~= '' then
  local it = look[compensates]
  if not it then return { 'look', compensates } end
  if not has_tail(it, compensates) then return { 'wrong_keys', 'compensated' } end
  local why = not_compensable(it, tenant)
  if why then return refuse('not_compensable', '4:effect', compensates .. ' ' .. why, true) end
end
if exclusive == '1' then
  local id = redis.call('GET', k_target)
  local word, e = nil, nil
  if id then word, e = holder(id) end
  if word == 'look' then return { 'look', id } end
  if e and not e.free and e.told ~= 'committed' then return refuse('target_busy', '4:effect', id .. ' ' .. e.told, true) end
end
local wait = rate_wait(k_more, first_rate)
if wait > 0 then return refuse('rate_limited', '5:rate', int(wait), true) end
local exhausted, bound = over_budget()
if exhausted then return refuse(exhausted, '6:budget', bound, true) end

redis.call('HSET', k_effect, 'state', to, 'tool', tool, 'version', version, 'tenant', tenant, 'agent', agent, 'run', run,
  'lane', lane, 'args', args, 'occ', int(occurrence), 'attempt', '0', 'notice', notice, 'at', int(now), 'since', int(now))
if compensates ~= '' then
  redis.call('HSET', k_effect, 'compensates', compensates)
  -- What is undone names it from now on, so that it does not go on meanwhile.
  redis.call('HSET', look[compensates], 'compensated_by', effect_id)
end
if again_of ~= '' then redis.call('HSET', k_effect, 'again_of', again_of) end
redis.call('SET', k_payload, payload)
if call_id ~= '' then redis.call('SET', k_call, effect_id) end
redis.call('SET', k_intent, effect_id)
-- The other names of this intent are free too, or it would have been answered: who held one is no more in its way.
for i = 1, #superseded do
  if claimed[superseded[i]] then redis.call('SET', superseded[i], effect_id) end
end
if exclusive == '1' then redis.call('SET', k_target, effect_id) end
remember_call()
charge_rates(k_more, first_rate)
local charge = charge_budgets()
if charge then redis.call('HSET', k_effect, 'charge', charge) end
if not home then redis.call('HSET', k_tenants, tenant, here) end
redis.call('SADD', k_open, effect_id)
count(nil, to)
if to == 'held' then
  local expires = now + tonumber(ttl_ms)
  redis.call('HSET', k_effect, 'rule', rule, 'layer', layer)
  redis.call('ZADD', k_held, expires, effect_id)
  local n = append('proposal', 'held', rule, layer, '', 'held', entry)
  return { 'held', int(expires), int(occurrence), again_of, n, short_epoch }
end
local due = now + tonumber(delay_ms)
redis.call('ZADD', k_lane, due, effect_id)
local n = append('proposal', 'proposed', 'no_refusal', 'no_refusal', '', 'proposed', entry)
if redis.call('ZCOUNT', k_lane, '-inf', now) == 1 then
  redis.call('PUBLISH', string.sub(k_meta, 1, -5) .. 'bell', lane)
end
return { 'proposed', int(due), int(occurrence), again_of, n, short_epoch }
