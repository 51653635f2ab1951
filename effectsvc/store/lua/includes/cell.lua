-- The cell's schema and epoch, and Redis time. Binds: cell (schema, epoch, buckets), epoch, now (ms), int(x).
local cell = redis.call('HMGET', k_meta, 'schema', 'epoch', 'buckets')
if not cell[1] then return { 'cell_missing' } end
if tonumber(cell[1]) > 1 then return { 'schema_too_new', cell[1] } end
local epoch = cell[2]
local server = redis.call('INFO', 'replication')
if not string.find(server, 'master_replid:' .. epoch .. '\r', 1, true) then
  return { 'epoch', epoch, string.match(server, 'master_replid:(%x+)') }
end
--- include: clock
