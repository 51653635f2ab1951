#!lua
--[[ join_lane: registers a session (a lease), and settles the request that it answers
KEYS   meta live asked
ARGV   session job lease_ms
REPLY  joined until_ms
]]
--- include: cell
redis.call('ZREM', k_asked, job)
redis.call('ZADD', k_live, now + tonumber(lease_ms), session)
return { 'joined', int(now + tonumber(lease_ms)) }
