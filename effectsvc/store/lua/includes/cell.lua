-- The cell's schema and epoch, and Redis time. Binds: cell (schema, epoch, buckets), epoch, now (ms), int(x).
local cell = redis.call('HMGET', k_meta, 'schema', 'epoch', 'buckets')
if not cell[1] then return { 'cell_missing' } end
if tonumber(cell[1]) > 1 then return { 'schema_too_new', cell[1] } end
local epoch = cell[2]
local replid = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
if replid ~= epoch then return { 'epoch', epoch, replid } end
--- include: clock
