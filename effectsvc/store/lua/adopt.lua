#!lua flags=allow-oom
--[[ adopt: none, or any but committed -> unknown, from an attempt that the store has forgotten
KEYS   meta log effect payload run intent lane leases unknown rerun lookup parked held counts open tomb_effect epochs
ARGV   effect_id tool version tenant agent run run_id ancestors lane args occurrence token executor next compensates payload entry
REPLY  adopted n epoch | retired what value | already state
]]
--- include: cell
--- include: log
--- include: move
--- include: attempts
local number, short_epoch = attempt_of(token), string.sub(epoch, 1, 16)
if number == '' then return { 'wrong_keys', 'token' } end
if not has_tail(k_open, run) then return { 'wrong_keys', 'run' } end
if not has_tail(k_lane, lane) then return { 'wrong_keys', 'lane' } end
if not has_tail(k_run, run) then return { 'wrong_keys', 'run' } end
local f = redis.call('HMGET', k_effect, 'state', 'token', 'attempt', 'alive', 'notice', 'run', 'contradicted', 'a' .. number,
  'lane')
local state = f[1]
if state then
  if f[6] ~= run then return { 'wrong_keys', 'run' } end
  -- What this store still knows it has not lost: this attempt, or any of its own epoch.
  if state == 'committed' or f[2] == token or f[8] == token then return { 'already', state } end
  if string.sub(token, 1, 16) == short_epoch then return { 'already', state } end
  if f[9] and f[9] ~= lane then return { 'wrong_keys', 'lane' } end
  -- Refused at propose, or cancelled before it: such a record was never meant for a lane.
  if not f[9] then redis.call('HSET', k_effect, 'lane', lane, 'version', version, 'occ', occurrence) end
else
  local tomb = redis.call('HGET', k_tomb_effect, 'e' .. effect_id)
  if tomb then return { 'retired', 'effect', tomb } end
  redis.call('HSET', k_effect, 'tool', tool, 'version', version, 'tenant', tenant, 'agent', agent, 'run', run, 'lane', lane,
    'args', args, 'occ', occurrence, 'at', int(now), 'first', int(now), 'lost', '1')
  if compensates ~= '' then redis.call('HSET', k_effect, 'compensates', compensates) end
  if payload ~= '' then redis.call('SET', k_payload, payload) end
end
-- Where the epoch of the attempt ended: there the store lost it. Where it never had that epoch, its own began.
local function lost_at()
  local known, of = redis.call('HGETALL', k_epochs), redis.call('HGET', k_epochs, string.sub(token, 1, 16))
  local began = of and tonumber(string.match(of, '^%d+')) or math.huge
  local after, at = nil, string.match(redis.call('HGET', k_epochs, short_epoch), '%d+$')
  for i = 2, #known, 2 do
    local number, start = string.match(known[i], '^(%d+) (%d+)$')
    number = tonumber(number or '0')
    if number > began and (not after or number < after) then after, at = number, start end
  end
  return at
end
-- What is proved not to have happened may begin again, and only in a run. That was opened before the store lost it, so before
-- whatever was said since.
if run_id ~= '' and redis.call('EXISTS', k_run) == 0 then
  redis.call('HSET', k_run, 'tenant', tenant, 'run_id', run_id, 'agent', agent, 'state', '', 'deadline', '',
    'parent', string.match(ancestors, '^%S+') or '', 'ancestors', ancestors, 'opened', int(now),
    'opened_n', lost_at())
end
-- The newest attempt stays the current one; each that may have acted is alive until it is known to be over.
if not f[3] or tonumber(f[3]) < tonumber(number) then
  redis.call('HSET', k_effect, 'token', token, 'attempt', number)
end
local alive = alive_without(f[4], number)
if alive ~= '' then alive = alive .. ' ' end
redis.call('HSET', k_effect, 'state', 'unknown', 'since', int(now), 'doubt', '1', 'reason', 'store_lost',
  'alive', alive .. number, 'x' .. number, executor, 'a' .. number, token)
redis.call('HDEL', k_effect, 'rerun', 'lane_reason', 'rule', 'layer', 'proof', 'code', 'bound', 'contradicted',
  'absent_at', 'absent_of', 'probe_at', 'probe_until')
if f[7] then redis.call('HINCRBY', k_counts, 'contradicted', -1) end
redis.call('ZREM', k_lane, effect_id)
redis.call('ZREM', k_rerun, effect_id)
redis.call('ZREM', k_parked, effect_id)
redis.call('ZREM', k_held, effect_id)
redis.call('ZREM', k_leases, effect_id)
redis.call('SADD', k_open, effect_id)
-- Whoever has taken the intent since can no longer begin.
redis.call('SET', k_intent, effect_id)
redis.call('ZADD', k_unknown, now, effect_id)
if next == 'lookup' then
  redis.call('HSET', k_effect, 'waiting_for', 'lookup')
  redis.call('ZADD', k_lookup, now, effect_id)
else
  redis.call('HSET', k_effect, 'waiting_for', 'person', 'needs_review', '1')
  redis.call('ZREM', k_lookup, effect_id)
end
count(state, 'unknown')
tell(f[5], effect_id, 'unknown')
local n = append('resolve', 'adopted', 'store_lost', 'no_refusal', state or '', 'unknown', entry)
return { 'adopted', n, short_epoch }
