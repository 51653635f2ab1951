#!lua flags=allow-oom
--[[ freeze: adds one freeze id to a switch
KEYS   meta log switches freezes
ARGV   freeze_id scope target reason entry
REPLY  frozen ids n epoch | already ids | ended
]]
--- include: cell
--- include: log
local known = redis.call('HGET', k_freezes, freeze_id)
if known == 'ended' then return { 'ended' } end
local switch = scope
if scope ~= 'fleet' and scope ~= 'cell' then switch = scope .. ':' .. target end
local ids = redis.call('HGET', k_switches, switch) or ''
if known then return { 'already', ids } end
if ids ~= '' then ids = ids .. ' ' end
ids = ids .. freeze_id
redis.call('HSET', k_switches, switch, ids)
redis.call('HSET', k_freezes, freeze_id, switch .. '\n' .. reason)
local n = append('freeze', 'frozen', scope, '0.5:kill_switch', '', '', entry)
return { 'frozen', ids, n, string.sub(epoch, 1, 16) }
