#!lua flags=allow-oom
--[[ leave_lane: a session's exit; an idle one stays while an effect is ready
KEYS   meta lane rerun lookup live
ARGV   session lane force
REPLY  left | stay ready
]]
--- include: cell
local ready = redis.call('ZCOUNT', k_lane, '-inf', now) + redis.call('ZCOUNT', k_rerun, '-inf', now)
  + redis.call('ZCOUNT', k_lookup, '-inf', now)
if ready > 0 and force ~= '1' then return { 'stay', int(ready) } end
redis.call('ZREM', k_live, session)
if ready > 0 then redis.call('PUBLISH', string.sub(k_meta, 1, -5) .. 'bell', lane) end
return { 'left' }
