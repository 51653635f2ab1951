#!lua flags=allow-oom
--[[ drain: a worker process, or all on a host that were begun by now, are to end once their running calls have
KEYS   meta log drains
ARGV   target begun_ms actor reason entry
REPLY  draining at_ms n epoch | already at_ms
]]
--- include: cell
--- include: log
local KEPT_MS = 604800000 -- a week: longer than any call or pause of a process that has yet to hear of it
local told = string.match(redis.call('HGET', k_drains, target) or '', '^(%d+)\n')
if told and tonumber(told) > tonumber(begun_ms) then return { 'already', told } end
local flags = redis.call('HGETALL', k_drains)
for i = 1, #flags, 2 do
  if tonumber(string.match(flags[i + 1], '^%d+')) < now - KEPT_MS then redis.call('HDEL', k_drains, flags[i]) end
end
redis.call('HSET', k_drains, target, int(now) .. '\n' .. actor .. '\n' .. reason)
local n = append('drain', 'draining', 'operator', 'no_refusal', '', '', entry)
return { 'draining', int(now), n, string.sub(epoch, 1, 16) }
