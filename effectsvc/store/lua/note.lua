#!lua flags=allow-oom
--[[ note: any state stays; a person's note about the effect, whose text stands in the entry
KEYS   meta log effect
ARGV   effect_id note_id entry
REPLY  noted count n epoch | already n | full count | gone
]]
--- include: cell
--- include: log
local MOST = 50 -- notes of one effect: each is a field of the hash that every move reads, and a full server takes them too
local f = redis.call('HMGET', k_effect, 'state', 'notes', 'note:' .. note_id)
if not f[1] then return { 'gone' } end
if f[3] then return { 'already', f[3] } end
local count = tonumber(f[2] or '0')
if count >= MOST then return { 'full', int(count) } end
local n = append('note', 'noted', 'no_refusal', 'no_refusal', f[1], f[1], entry)
redis.call('HSET', k_effect, 'notes', int(count + 1), 'note:' .. note_id, n)
return { 'noted', int(count + 1), n, string.sub(epoch, 1, 16) }
