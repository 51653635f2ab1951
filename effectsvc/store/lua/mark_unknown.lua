#!lua flags=allow-oom
--[[ mark_unknown: pending -> unknown
KEYS   meta log effect result leases unknown rerun lookup parked counts open suspects deaths compensated*
ARGV   effect_id token by reason over died next rule bound delay_ms entry
REPLY  unknown n epoch | committed n epoch | already state | stale state | lease_lives lease_end_ms | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: attempts
--- include: happened
--- include: doubt
--- include: suspects
--- include: deaths
local f = redis.call('HMGET', k_effect, 'state', 'token', 'notice', 'alive', 'tool', 'args', 'compensates', 'suspect')
if not f[1] then return { 'gone' } end
if f[2] ~= token then return { 'stale', f[1] } end
if f[1] ~= 'pending' then
  -- An overrun's lease that has ended: nobody renews it any more, so the sweep need not look again.
  if by == 'sweep' and tonumber(redis.call('ZSCORE', k_leases, effect_id) or '0') <= now then
    redis.call('ZREM', k_leases, effect_id)
  end
  return { 'already', f[1] }
end
-- The sweep may speak for an executor only after its lease; a worker speaks for itself.
if by == 'sweep' then
  local lease = tonumber(redis.call('ZSCORE', k_leases, effect_id) or '0')
  if lease > now and over ~= '1' then return { 'lease_lives', int(lease) } end
end
if f[7] and not compensated_declared(f[7]) then return { 'wrong_keys', 'compensated' } end
local e = { state = f[1], token = token, notice = f[3], alive = f[4], compensates = f[7] }
local quarantined = died ~= '' and note_death(died, f[8] == attempt_of(token), f[5], f[6], entry)
local n = stored_evidence(e, over, entry)
if n then return { 'committed', n, string.sub(epoch, 1, 16) } end
if quarantined then
  reason = 'quarantined'
  if next == 'rerun' then next = 'review' end
end
n = leave_unknown(e, reason, over, next, rule, bound, delay_ms, entry)
-- A lookup may end the doubt before that; but whether this tool may run on these arguments is for a person.
if quarantined then redis.call('HSET', k_effect, 'needs_review', '1') end
-- What the sweep speaks for has ended; a worker's overrun lives, and its lease with it.
if over ~= '1' and by == 'sweep' then redis.call('ZREM', k_leases, effect_id) end
return { 'unknown', n, string.sub(epoch, 1, 16) }
