#!lua
--[[ set_run: the run's workflow state; appends nothing
KEYS   meta run
ARGV   run tenant state
REPLY  set state | conflict what | closed | run_missing
]]
--- include: cell
--- include: move
if not has_tail(k_run, run) then return { 'wrong_keys', 'run' } end
local r = redis.call('HMGET', k_run, 'tenant', 'closed')
if not r[1] then return { 'run_missing' } end
if r[1] ~= tenant then return { 'conflict', 'tenant' } end
if r[2] then return { 'closed' } end
redis.call('HSET', k_run, 'state', state)
return { 'set', state }
