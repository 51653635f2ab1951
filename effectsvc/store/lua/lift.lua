#!lua flags=allow-oom
--[[ lift: ends the suspicion of a tool with these arguments, or (by a person) its quarantine; its deaths count from zero
KEYS   meta log suspects deaths
ARGV   subject by entry
REPLY  lifted was n epoch | already
]]
--- include: cell
--- include: log
--- include: suspects
local was = suspicion(subject)
-- A worker that saw it survive in a child process ends a suspicion; a quarantine is for a person.
if not was or (by ~= 'operator' and was == 'quarantined') then return { 'already' } end
redis.call('ZREM', k_suspects, subject)
redis.call('HDEL', k_deaths, subject)
local n = append('quarantine', 'lifted', by, 'no_refusal', '', '', entry)
return { 'lifted', was, n, string.sub(epoch, 1, 16) }
