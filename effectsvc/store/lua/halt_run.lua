#!lua flags=allow-oom
--[[ halt_run: stops a run for good; its queued and held effects are left to the sweep
KEYS   meta log run open halted
ARGV   run tenant reason actor entry
REPLY  halted reason open n epoch | already reason open | conflict what | run_missing
]]
--- include: cell
--- include: log
--- include: move
--- include: halt
if not has_tail(k_run, run) or not has_tail(k_open, run) then return { 'wrong_keys', 'run' } end
local r = redis.call('HMGET', k_run, 'tenant', 'halted')
if not r[1] then return { 'run_missing' } end
if r[1] ~= tenant then return { 'conflict', 'tenant' } end
local open = int(redis.call('SCARD', k_open))
if r[2] then return { 'already', r[2], open } end
return { 'halted', reason, open, halt(run, reason, actor, entry), string.sub(epoch, 1, 16) }
