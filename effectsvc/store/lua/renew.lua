#!lua flags=allow-oom
--[[ renew: pending, unknown -> the same; the lease of an attempt that lives
KEYS   meta effect leases
ARGV   effect_id token lease_ms
REPLY  renewed lease_end_ms | stale state | gone
]]
--- include: cell
--- include: attempts
local f = redis.call('HMGET', k_effect, 'state', 'token', 'alive')
if not f[1] then return { 'gone' } end
if f[2] ~= token or (f[1] ~= 'pending' and f[1] ~= 'unknown') then return { 'stale', f[1] } end
if alive_without(f[3], attempt_of(token)) == (f[3] or '') then return { 'stale', f[1] } end
local lease_end = now + tonumber(lease_ms)
redis.call('ZADD', k_leases, lease_end, effect_id)
return { 'renewed', int(lease_end) }
