#!lua flags=allow-oom
--[[ halt_runs: stops all runs of a tenant, of an agent, or of both that were opened by then, for good; each at its next call
KEYS   meta log switches
ARGV   tenant agent opened_by_ms reason actor entry
REPLY  halted opened_by_ms n epoch | already opened_by_ms
]]
--- include: cell
--- include: log
local whose = 'halt:' .. tenant .. '\n' .. agent
-- Runs that are opened after it was said are meant to work, whatever a clock says.
local by_ms = math.min(tonumber(opened_by_ms), now)
local before = tonumber(string.match(redis.call('HGET', k_switches, whose) or '', '^%d+') or '-1')
if before >= by_ms then return { 'already', int(before) } end
redis.call('HSET', k_switches, whose, int(by_ms) .. '\n' .. actor .. '\n' .. reason)
local n = append('halt_runs', 'halted', reason, 'no_refusal', '', '', entry)
return { 'halted', int(by_ms), n, string.sub(epoch, 1, 16) }
