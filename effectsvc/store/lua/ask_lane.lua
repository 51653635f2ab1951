#!lua flags=allow-oom
--[[ ask_lane: decides whether one more session is asked for; a session's registration and the asking are leases
KEYS   meta lane rerun lookup live asked
ARGV   wanted job asked_ms
REPLY  asked ready | enough ready live asked | idle next_ms
]]
--- include: cell
redis.call('ZREMRANGEBYSCORE', k_live, '-inf', now)
redis.call('ZREMRANGEBYSCORE', k_asked, '-inf', now)
local ready = redis.call('ZCOUNT', k_lane, '-inf', now) + redis.call('ZCOUNT', k_rerun, '-inf', now)
  + redis.call('ZCOUNT', k_lookup, '-inf', now)
if ready == 0 then
  local next_ms = ''
  for _, queue in ipairs({ k_lane, k_rerun, k_lookup }) do
    local first = tonumber(redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2] or '')
    if first and (next_ms == '' or first < tonumber(next_ms)) then next_ms = int(first) end
  end
  return { 'idle', next_ms }
end
local live, asked = redis.call('ZCARD', k_live), redis.call('ZCARD', k_asked)
if live + asked >= tonumber(wanted) then return { 'enough', int(ready), int(live), int(asked) } end
redis.call('ZADD', k_asked, now + tonumber(asked_ms), job)
return { 'asked', int(ready) }
