#!lua flags=allow-oom
--[[ thaw: ends one freeze id; a switch is open when no id is left in it
KEYS   meta log switches freezes
ARGV   freeze_id by entry
REPLY  thawed ids n epoch | already | recover_only
]]
--- include: cell
--- include: log
local known = redis.call('HGET', k_freezes, freeze_id)
if not known or known == 'ended' then return { 'already' } end
local switch, reason = string.match(known, '^([^\n]*)\n(.*)$')
-- What the service froze after the store lost its past is no operator's to lift: only recovery knows what is unknown now.
if switch == 'cell' and string.sub(reason, 1, 6) == 'store_' and by ~= 'recover' then return { 'recover_only' } end
local left = {}
for id in string.gmatch(redis.call('HGET', k_switches, switch) or '', '%S+') do
  if id ~= freeze_id then left[#left + 1] = id end
end
local ids = table.concat(left, ' ')
if ids == '' then redis.call('HDEL', k_switches, switch) else redis.call('HSET', k_switches, switch, ids) end
-- The id stays known as ended, so that a freeze that is sent again late does not come back.
redis.call('HSET', k_freezes, freeze_id, 'ended')
local n = append('thaw', 'thawed', by, '0.5:kill_switch', '', '', entry)
return { 'thawed', ids, n, string.sub(epoch, 1, 16) }
