#!lua flags=allow-oom
--[[ lift: ends the quarantine or the suspicion of a tool with these arguments; its deaths count from zero
KEYS   meta log suspects deaths
ARGV   subject entry
REPLY  lifted was n epoch | already
]]
--- include: cell
--- include: log
--- include: suspects
local was = suspicion(subject)
if not was then return { 'already' } end
redis.call('ZREM', k_suspects, subject)
redis.call('HDEL', k_deaths, subject)
local n = append('quarantine', 'lifted', was, 'no_refusal', '', '', entry)
return { 'lifted', was, n, string.sub(epoch, 1, 16) }
