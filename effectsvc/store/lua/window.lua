#!lua flags=allow-oom
--[[ window: reads, moves nothing; the ids that are due in a set, from an offset, by Redis time
KEYS   due
ARGV   offset limit
REPLY  window now_ms next_ms ids*
]]
--- include: clock
local ids = redis.call('ZRANGEBYSCORE', k_due, '-inf', now, 'LIMIT', offset, limit)
local next_ms = ''
if #ids == 0 then
  local first = redis.call('ZRANGE', k_due, 0, 0, 'WITHSCORES')
  if first[2] then next_ms = int(tonumber(first[2])) end
end
local reply = { 'window', int(now), next_ms }
for i = 1, #ids do reply[#reply + 1] = ids[i] end
return reply
