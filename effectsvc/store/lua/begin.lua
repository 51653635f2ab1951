#!lua
--[[ begin: proposed, unknown -> pending
KEYS   meta log effect run intent lane rerun lookup parked leases unknown switches tenants counts suspects deaths other more*
ARGV   effect_id token lease_ms executor wall_ms max_age_ms apart ancestor_count rates policy decision entry
REPLY  granted lease_end_ms occurrence first_ms first_wall_ms rule n epoch | taken state | gone | not_due due_ms | frozen scope ids | halted reason | deadline deadline_ms | claim_lost holder | key_expired age_ms | suspected | quarantined | not_compensable state | compensating effect_id | policy_changed digest | wrong_cell cell
]]
--- include: cell
--- include: log
--- include: stops
--- include: move
--- include: attempts
--- include: rates
--- include: suspects
--- include: compensable
local above = {}
for i = 1, tonumber(ancestor_count) do above[i] = k_more[i] end
local f = redis.call('HMGET', k_effect, 'state', 'tool', 'tenant', 'agent', 'run', 'lane', 'attempt', 'token', 'occ', 'first', 'first_wall', 'rerun', 'alive', 'notice',
  'lane_reason', 'proof', 'args', 'compensates', 'compensated_by')
if not f[1] then return { 'gone' } end
local state, lane, number = f[1], f[6], attempt_of(token)
if not has_tail(k_run, f[5]) then return { 'wrong_keys', 'run' } end
if lane and not has_tail(k_lane, lane) then return { 'wrong_keys', 'lane' } end
local record = load_run()
if not record then return { 'wrong_keys', 'run' } end
local scope, ids = frozen(f[3], f[2], f[4])
local stop, reason = run_stop(record, above)
if stop == 'wrong_keys' then return { stop, reason } end
local in_force = redis.call('HGET', k_meta, 'policy') or ''

-- The same actor again: granted only while nothing has come between.
if f[8] == token then
  local lease = tonumber(redis.call('ZSCORE', k_leases, effect_id) or '0')
  if state ~= 'pending' or lease <= now then return { 'taken', state } end
  if scope then return { 'frozen', scope, ids } end
  if stop == 'halted' then return { stop, reason } end
  if in_force ~= policy then return { 'policy_changed', in_force } end
  return { 'granted', int(lease), f[9], f[10], f[11], f[12] or 'no_refusal', '0', string.sub(epoch, 1, 16) }
end
if state ~= 'proposed' and state ~= 'unknown' then return { 'taken', state } end
if string.sub(token, 1, 16) ~= string.sub(epoch, 1, 16) then return { 'taken', state } end
if tonumber(number) ~= tonumber(f[7]) + 1 then return { 'taken', state } end
local home = redis.call('HGET', k_tenants, f[3])
if home and home ~= string.match(k_meta, '^{(.-)}') then return { 'wrong_cell', home } end

-- Only what stands in the lane, or under a named rule in the rerun set, may begin.
local queue = k_lane
if state == 'unknown' then queue = k_rerun end
local due = redis.call('ZSCORE', queue, effect_id)
if not due then return { 'taken', state } end
if tonumber(due) > now then return { 'not_due', int(tonumber(due)) } end
if state == 'unknown' and f[12] == 'reversible' then
  local lease = tonumber(redis.call('ZSCORE', k_leases, effect_id) or '0')
  if lease > now then return { 'not_due', int(lease) } end
end
if scope then
  redis.call('ZREM', queue, effect_id)
  redis.call('ZADD', k_parked, due, effect_id)
  redis.call('HSET', k_effect, 'lane_reason', scope .. '_frozen')
  return { 'frozen', scope, ids }
end
if stop then return { stop, reason } end
-- Its worker judged by another policy than the one in force: it judges again.
if in_force ~= policy then return { 'policy_changed', in_force } end
-- A provider that has forgotten the key would do it again: the age counts from this occurrence's first begin.
if state == 'unknown' and f[12] == 'idempotent_write' and max_age_ms ~= '' and f[10] then
  local age = now - tonumber(f[10])
  if age > tonumber(max_age_ms) then return { 'key_expired', int(age) } end
end
-- What it undoes must still be there to be undone; and what another effect undoes, or may yet undo, does not go on.
if f[18] then
  if not has_tail(k_other, f[18]) then return { 'wrong_keys', 'other' } end
  local why = not_compensable(k_other, f[3])
  if why then return { 'not_compensable', why } end
elseif f[19] then
  local by = has_tail(k_other, f[19]) and redis.call('HMGET', k_other, 'state', 'contradicted') or { 'pending' }
  local ended = by[1] == 'failed' or by[1] == 'refused' or by[1] == 'cancelled'
  if by[1] and (by[2] or not ended) then return { 'compensating', f[19] } end
end
-- What a process died of runs where it can take no other with it (`apart`: in a child process), or not at all; once a death
-- counts against it, as the only one of these in its worker: a worker that dies again then speaks of this one.
local subject = subject_of(f[2], f[17])
local suspected = suspicion(subject)
if suspected == 'quarantined' then return { suspected } end
if suspected and apart ~= 'alone' and (apart == 'no' or redis.call('HGET', k_deaths, subject)) then return { suspected } end
local claim = redis.call('GET', k_intent)
if claim ~= effect_id then return { 'claim_lost', claim or '' } end
-- Under the name that the log shows an effect may hold it that the store had forgotten, and that may have happened.
local first_claim = #above + 1
for _ in string.gmatch(rates, '%d+ %d+') do first_claim = first_claim + 1 end
for i = first_claim, #k_more do
  local adopted = redis.call('GET', k_more[i])
  if adopted and adopted ~= effect_id then return { 'claim_lost', adopted } end
end
-- The first attempt was charged when it was proposed; another is charged here, and only ever put off.
if tonumber(number) > 1 then
  local wait = rate_wait(k_more, #above)
  if wait > 0 then
    redis.call('ZADD', queue, now + wait, effect_id)
    redis.call('HSET', k_effect, 'lane_reason', 'rate_limited')
    return { 'not_due', int(now + wait) }
  end
  charge_rates(k_more, #above)
end

local first, first_wall, rule = f[10] or int(now), f[11] or wall_ms, 'no_refusal'
if state == 'unknown' then rule = f[12] or 'no_refusal' end
local alive = number
if f[13] and f[13] ~= '' then alive = f[13] .. ' ' .. number end
redis.call('HSET', k_effect, 'state', 'pending', 'attempt', number, 'token', token, 'since', int(now), 'first', first,
  'first_wall', first_wall, 'decision', decision, 'alive', alive, 'x' .. number, executor)
if suspected then redis.call('HSET', k_effect, 'suspect', number) end
redis.call('ZREM', queue, effect_id)
if state == 'unknown' then
  redis.call('ZREM', k_unknown, effect_id)
  redis.call('ZREM', k_lookup, effect_id)
  redis.call('HDEL', k_effect, 'waiting_for', 'reason', 'needs_review', 'bound')
end
-- Why it waited, and what an earlier attempt proved, says nothing of this one.
if f[15] or f[16] then redis.call('HDEL', k_effect, 'lane_reason', 'proof', 'code') end
local lease_end = now + tonumber(lease_ms)
redis.call('ZADD', k_leases, lease_end, effect_id)
count(state, 'pending')
tell(f[14], effect_id, 'pending')
local n = append('decision', 'granted', rule, 'no_refusal', state, 'pending', entry)
return { 'granted', int(lease_end), f[9], first, first_wall, rule, n, string.sub(epoch, 1, 16) }
