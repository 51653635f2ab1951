#!lua flags=allow-oom
--[[ probe: unknown -> unknown, or what two absent findings prove: a due lookup is claimed, and its finding reported
KEYS   meta log effect parts lane leases unknown rerun lookup parked counts open run spent
ARGV   effect_id phase prober attempt force lease_ms finding parts_done settle_ms waited_ms delay_ms last to bound entry
REPLY  claimed until_ms alive absent_at_ms now_ms | not_due due_ms | unknown due_ms waiting_for n epoch | review n epoch | rerun due_ms n epoch | proposed due_ms n epoch | failed n epoch | taken state | already state | stale state | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: outbox
--- include: give_back
--- include: undone
local f = redis.call('HMGET', k_effect, 'state', 'attempt', 'alive', 'lane', 'run', 'notice', 'prober', 'probe_until',
  'absent_at', 'absent_of', 'late', 'parts', 'probe_at')
local state, alive, short_epoch = f[1], f[3] or '', string.sub(epoch, 1, 16)
if not state then return { 'gone' } end
local claimed_until = tonumber(f[8] or '0')

if phase == 'claim' then
  if state ~= 'unknown' or f[2] ~= attempt then return { 'taken', state } end
  if not has_tail(k_lookup, f[4]) then return { 'wrong_keys', 'lane' } end
  if claimed_until > now and f[7] ~= prober then return { 'taken', state } end
  local due = tonumber(redis.call('ZSCORE', k_lookup, effect_id) or '')
  if claimed_until <= now and force ~= '1' then
    if not due then return { 'taken', state } end
    if due > now then return { 'not_due', int(due) } end
  end
  if claimed_until <= now then
    claimed_until = now + tonumber(lease_ms)
    redis.call('HSET', k_effect, 'prober', prober, 'probe_at', int(now), 'probe_until', int(claimed_until))
    -- Due again when the lease ends, for another prober.
    if due then redis.call('ZADD', k_lookup, claimed_until, effect_id) end
  end
  local absent_at = ''
  if f[9] and string.match(f[10], '^%d+') == f[2] then absent_at = f[9] end
  return { 'claimed', int(claimed_until), alive, absent_at, int(now) }
end

-- A report counts once, from who claimed it, about the attempts that it knew.
if f[7] ~= prober then return { 'stale', state } end
if not f[8] then return { 'already', state } end
if state ~= 'unknown' or f[2] ~= attempt then return { 'stale', state } end
if not has_tail(k_lane, f[4]) then return { 'wrong_keys', 'lane' } end
if not has_tail(k_open, f[5]) or not has_tail(k_run, f[5]) then return { 'wrong_keys', 'run' } end

-- Parts that were said to be done stay done: a lookup that misses one is for a person.
local reported, missed, not_done, is_done = {}, false, {}, {}
for line in string.gmatch(parts_done, '[^\n]+') do
  local name, ref = string.match(line, '^(%S+) ?(.*)$')
  reported[name] = ref
end
local known = redis.call('HGETALL', k_parts)
for i = 1, #known, 2 do
  local name = known[i]
  is_done[name] = string.sub(known[i + 1], 1, 5) == 'done '
  if not reported[name] and is_done[name] then missed = true end
  if not reported[name] and not is_done[name] then not_done[#not_done + 1] = name end
end

local verdict, waiting_for, due, first = 'unknown', 'lookup', now + tonumber(delay_ms), nil
local this = f[2] .. ' absent'
if finding == 'partly' then this = f[2] .. ' ' .. string.sub(redis.sha1hex(parts_done), 1, 20) end
if finding == 'absent' or finding == 'partly' then
  if alive ~= '' then
    waiting_for = 'attempt_over'
  elseif missed or (finding == 'absent' and f[11]) then
    verdict = 'review'
  elseif f[10] ~= this then
    first, due = this, now + tonumber(settle_ms)
  else
    -- The settle time must have passed on both clocks when the provider was asked, however late it is told: Redis' from
    -- the first finding to this claim, the prober's since it knew of that finding.
    local asked_at = tonumber(f[13] or f[9])
    local lacking = tonumber(settle_ms) - math.min(asked_at - tonumber(f[9]), tonumber(waited_ms))
    if lacking <= 0 then verdict = 'proved' else due = now + lacking end
  end
end
if verdict == 'unknown' and last == '1' then verdict = 'review' end

redis.call('HDEL', k_effect, 'probe_at', 'probe_until')
if verdict == 'proved' and finding == 'absent' then
  local e = { notice = f[6], lane = f[4] }
  local n = undone(e, to, 'absent', bound, '0', 'reconcile', entry)
  if to == 'failed' then return { 'failed', n, short_epoch } end
  return { 'proposed', int(now), n, short_epoch }
end
if verdict == 'proved' then
  local done = 0
  for name, ref in pairs(reported) do
    done = done + 1
    if not is_done[name] then redis.call('HSET', k_parts, name, 'done ' .. f[2] .. ' ' .. ref) end
  end
  for i = 1, #not_done do redis.call('HDEL', k_parts, not_done[i]) end
  if done > 0 then redis.call('HSET', k_effect, 'parts', int(done) .. '/' .. int(done)) else redis.call('HDEL', k_effect, 'parts') end
  redis.call('HDEL', k_effect, 'absent_at', 'absent_of')
  verdict = to
end
if verdict == 'resume' then
  redis.call('ZREM', k_lookup, effect_id)
  redis.call('HDEL', k_effect, 'waiting_for', 'needs_review')
  enter_rerun(now, f[4], 'resume')
  local n = append('reconcile', 'rerun', 'resume', 'no_refusal', state, state, entry)
  return { 'rerun', int(now), n, short_epoch }
end
if first then redis.call('HSET', k_effect, 'absent_at', int(now), 'absent_of', first) end
if verdict ~= 'unknown' then
  redis.call('ZREM', k_lookup, effect_id)
  redis.call('HSET', k_effect, 'needs_review', '1', 'waiting_for', 'person')
  return { 'review', append('reconcile', 'review', finding, 'no_refusal', state, state, entry), short_epoch }
end
redis.call('ZADD', k_lookup, due, effect_id)
redis.call('HSET', k_effect, 'waiting_for', waiting_for)
local n = append('reconcile', 'unknown', finding, 'no_refusal', state, state, entry)
return { 'unknown', int(due), waiting_for, n, short_epoch }
