#!lua flags=allow-oom
--[[ resolve: unknown -> committed, failed, proposed, or due for begin again; a contradicted final state -> committed
KEYS   meta log effect result parts lane leases unknown rerun lookup parked counts open run spent compensated*
ARGV   effect_id attempt by to attempt_over delay_ms digest ref bound result entry
REPLY  committed n epoch | failed n epoch | proposed due_ms n epoch | rerun due_ms n epoch | attempt_alive alive | parts_done parts | already state | stale state | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: attempts
--- include: outbox
--- include: happened
--- include: give_back
--- include: undone
local f = redis.call('HMGET', k_effect, 'state', 'attempt', 'alive', 'lane', 'run', 'notice', 'contradicted', 'parts', 'rerun',
  'late_digest', 'late_ref', 'compensates')
local state, alive, short_epoch = f[1], f[3] or '', string.sub(epoch, 1, 16)
if not state then return { 'gone' } end
if state == to then return { 'already', state } end
if not has_tail(k_open, f[5]) or not has_tail(k_run, f[5]) then return { 'wrong_keys', 'run' } end
if f[4] and not has_tail(k_lane, f[4]) then return { 'wrong_keys', 'lane' } end
if f[12] and not compensated_declared(f[12]) then return { 'wrong_keys', 'compensated' } end
local e = { state = state, notice = f[6], lane = f[4], compensates = f[12] }

if to == 'committed' then
  if state ~= 'unknown' and not (f[7] and state ~= 'pending') then return { 'stale', state } end
  -- Without a result of its own, the evidence that a late attempt brought is the result.
  if digest == '' and f[10] then digest, ref, result = f[10], f[11] or '', redis.call('GET', k_result) or '' end
  if f[7] then
    redis.call('HDEL', k_effect, 'contradicted', 'rule', 'layer', 'proof', 'code', 'bound')
    redis.call('HINCRBY', k_counts, 'contradicted', -1)
  end
  local n = happened(e, 'resolve', by, result, digest, ref, entry)
  if alive ~= '' then redis.call('HSET', k_effect, 'alive', alive) end
  return { 'committed', n, short_epoch }
end

-- Any other verdict speaks for every attempt, so none may have begun since the evidence was gathered, and none may live.
if to == 'run_again' and state == 'unknown' and f[9] == 'person' and redis.call('ZSCORE', k_rerun, effect_id) then
  return { 'already', state }
end
if state ~= 'unknown' or f[2] ~= attempt then return { 'stale', state } end
if to ~= 'run_again' and has_done_parts(f[8]) then return { 'parts_done', f[8] } end
if alive ~= '' and attempt_over ~= '1' then return { 'attempt_alive', alive } end
for number in string.gmatch(alive, '%S+') do redis.call('HDEL', k_effect, 'x' .. number) end
if to ~= 'run_again' then
  local n = undone(e, to, by, bound, delay_ms, 'resolve', entry)
  if to == 'failed' then return { 'failed', n, short_epoch } end
  return { 'proposed', int(now + tonumber(delay_ms)), n, short_epoch }
end
local due = now + tonumber(delay_ms)
redis.call('HSET', k_effect, 'alive', '')
redis.call('HDEL', k_effect, 'needs_review', 'waiting_for', 'lane_reason', 'absent_at', 'absent_of', 'probe_at',
  'probe_until')
redis.call('ZREM', k_leases, effect_id)
redis.call('ZREM', k_lookup, effect_id)
redis.call('ZREM', k_parked, effect_id)
enter_rerun(due, f[4], 'person')
return { 'rerun', int(due), append('resolve', 'rerun', 'person', 'no_refusal', state, state, entry), short_epoch }
