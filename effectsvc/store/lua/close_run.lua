#!lua
--[[ close_run: nothing more is proposed in this run; its open effects go on; appends nothing
KEYS   meta run open
ARGV   run tenant
REPLY  closed open | conflict what | run_missing
]]
--- include: cell
--- include: move
if not has_tail(k_run, run) or not has_tail(k_open, run) then return { 'wrong_keys', 'run' } end
local home = redis.call('HGET', k_run, 'tenant')
if not home then return { 'run_missing' } end
if home ~= tenant then return { 'conflict', 'tenant' } end
redis.call('HSETNX', k_run, 'closed', int(now))
return { 'closed', int(redis.call('SCARD', k_open)) }
