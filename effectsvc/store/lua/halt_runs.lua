#!lua flags=allow-oom
--[[ halt_runs: stops all runs of a tenant, of an agent, or of both that were opened by then, for good; each at its next call
KEYS   meta log switches
ARGV   tenant agent opened_by_n reason actor entry
REPLY  halted opened_by_ms n epoch | already opened_by_ms
]]
--- include: cell
--- include: log
local whose = 'halt:' .. tenant .. '\n' .. agent
-- Runs that are opened after it was said are meant to work, and each before it is not, whatever a clock says: so the log's
-- counter tells which these are. The time is for people, and for runs of a version that noted no counter.
local by_n = math.min(tonumber(opened_by_n), tonumber(redis.call('HGET', k_meta, 'n')))
local before, at_ms = string.match(redis.call('HGET', k_switches, whose) or '', '^(%d+)\n(%d+)')
if before and tonumber(before) >= by_n then return { 'already', at_ms } end
redis.call('HSET', k_switches, whose, int(by_n) .. '\n' .. int(now) .. '\n' .. actor .. '\n' .. reason)
local n = append('halt_runs', 'halted', reason, 'no_refusal', '', '', entry)
return { 'halted', int(now), n, string.sub(epoch, 1, 16) }
