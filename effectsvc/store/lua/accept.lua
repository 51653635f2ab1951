#!lua flags=allow-oom
--[[ accept: the cell's epoch moves on; creates the cell only when told to
KEYS   meta log epochs switches
ARGV   cell stored found mark_epoch mark_n create bucket_count entry
REPLY  accepted epoch_no n | created n | already epoch_no n | cell_missing | moved stored found | behind n | frozen ids
]]
local found_now = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local m = redis.call('HMGET', k_meta, 'schema', 'epoch', 'epoch_no', 'n')
if m[1] and tonumber(m[1]) > 1 then return { 'schema_too_new', m[1] } end
if not m[1] and create ~= '1' then return { 'cell_missing' } end
if m[1] and m[2] == found_now then return { 'already', m[3], m[4] } end
if found ~= found_now or (m[1] and m[2] ~= stored) then return { 'moved', m[2] or '', found_now } end
--- include: clock
local epoch = found_now
--- include: log
if not m[1] then
  redis.call('HSET', k_meta, 'schema', '1', 'cell', cell, 'buckets', bucket_count, 'epoch', epoch, 'epoch_no', '1', 'n', '0', 'created', int(now), 'epoch_at', int(now))
  redis.call('HSET', k_epochs, string.sub(epoch, 1, 16), '1 0')
  return { 'created', append('epoch', 'created', 'no_refusal', 'no_refusal', '', string.sub(epoch, 1, 16), entry) }
end
-- The acceptor's mark must not be above what this store remembers.
local head = tonumber(m[4])
local frozen = redis.call('HGET', k_switches, 'cell')
if frozen and frozen ~= '' and create ~= '2' then return { 'frozen', frozen } end
if mark_n ~= '' and create ~= '2' then
  local known = redis.call('HGET', k_epochs, mark_epoch)
  if not known or tonumber(mark_n) > head then return { 'behind', m[4] } end
end
local number = int(tonumber(m[3]) + 1)
redis.call('HSET', k_meta, 'epoch', epoch, 'epoch_no', number, 'epoch_at', int(now))
redis.call('HSET', k_epochs, string.sub(epoch, 1, 16), number .. ' ' .. m[4])
local n = append('epoch', 'accepted', 'no_refusal', 'no_refusal', string.sub(stored, 1, 16), string.sub(epoch, 1, 16), entry)
return { 'accepted', number, n }
