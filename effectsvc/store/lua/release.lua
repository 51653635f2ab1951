#!lua flags=allow-oom
--[[ release: pending -> proposed (later) or failed; unknown when in doubt; burns an attempt number that has not begun
KEYS   meta log effect result lane leases unknown rerun lookup parked counts open run spent compensated*
ARGV   effect_id token proof code to delay_ms bound next rule entry
REPLY  proposed due_ms n epoch | failed n epoch | unknown n epoch | committed n epoch | burnt | already state | stale state | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: attempts
--- include: happened
--- include: doubt
--- include: give_back
local f = redis.call('HMGET', k_effect, 'state', 'token', 'notice', 'alive', 'doubt', 'attempt', 'lane', 'parts', 'run', 'compensates')
if not f[1] then return { 'gone' } end
local number = attempt_of(token)
if f[2] ~= token then
  -- Its begin has not arrived: the number is burnt, so that a begin that comes later finds it taken.
  if f[1] == 'held' or f[1] == 'proposed' or f[1] == 'unknown' then
    if tonumber(number) == tonumber(f[6]) + 1 then redis.call('HSET', k_effect, 'attempt', number) return { 'burnt' } end
    -- Burnt before: no attempt of this number has begun.
    if number == f[6] and attempt_of(f[2] or '') ~= number then return { 'burnt' } end
  end
  return { 'stale', f[1] }
end
if f[1] ~= 'pending' then return { 'already', f[1] } end
if not has_tail(k_run, f[9]) then return { 'wrong_keys', 'run' } end
if not has_tail(k_lane, f[7]) then return { 'wrong_keys', 'lane' } end
if f[10] and not compensated_declared(f[10]) then return { 'wrong_keys', 'compensated' } end
local e = { state = 'pending', token = token, notice = f[3], alive = f[4], compensates = f[10] }
local short_epoch = string.sub(epoch, 1, 16)
local n = stored_evidence(e, '1', entry)
if n then return { 'committed', n, short_epoch } end
if f[5] or (f[8] and f[8] ~= '') then
  n = leave_unknown(e, 'in_doubt', '1', next, rule, bound, delay_ms, entry)
  return { 'unknown', n, short_epoch }
end
redis.call('HSET', k_effect, 'since', int(now), 'alive', alive_without(f[4], number))
redis.call('HDEL', k_effect, 'x' .. number, 'decision')
redis.call('ZREM', k_leases, effect_id)
if to == 'failed' then
  redis.call('HSET', k_effect, 'state', 'failed', 'proof', proof, 'code', code, 'bound', bound)
  give_back()
  redis.call('SREM', k_open, effect_id)
  count('pending', 'failed')
  tell(f[3], effect_id, 'failed')
  n = append('outcome', 'failed', proof, 'no_refusal', 'pending', 'failed', entry)
  return { 'failed', n, short_epoch }
end
local due = now + tonumber(delay_ms)
redis.call('HSET', k_effect, 'state', 'proposed', 'proof', proof, 'code', code)
redis.call('ZADD', k_lane, due, effect_id)
count('pending', 'proposed')
n = append('outcome', 'proposed', proof, 'no_refusal', 'pending', 'proposed', entry)
return { 'proposed', int(due), n, short_epoch }
