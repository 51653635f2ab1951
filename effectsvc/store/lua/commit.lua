#!lua flags=allow-oom
--[[ commit: pending, or unknown when it is the current attempt -> committed
KEYS   meta log effect result leases unknown rerun lookup parked counts open compensated*
ARGV   effect_id token result digest ref rule entry
REPLY  committed n epoch | already state digest | stale state | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: attempts
--- include: happened
local f = redis.call('HMGET', k_effect, 'state', 'token', 'notice', 'result', 'alive', 'compensates', 'doubt')
if not f[1] then return { 'gone' } end
if f[2] ~= token then return { 'stale', f[1] } end
if f[1] == 'committed' then return { 'already', f[1], f[4] } end
if f[1] ~= 'pending' and f[1] ~= 'unknown' then return { 'stale', f[1] } end
if f[6] and not compensated_declared(f[6]) then return { 'wrong_keys', 'compensated' } end
local number = attempt_of(token)
local is_first = f[1] == 'pending' and number == '1' and not f[7]
local n = happened({ state = f[1], notice = f[3], compensates = f[6], is_first = is_first }, 'outcome', rule, result, digest, ref, entry)
if not is_first then
  local left = alive_without(f[5], number)
  if left ~= '' then redis.call('HSET', k_effect, 'alive', left) end
  redis.call('HDEL', k_effect, 'suspect', 'x' .. number)
end
return { 'committed', n, string.sub(epoch, 1, 16) }
