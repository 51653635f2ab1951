#!lua flags=allow-oom
--[[ accept: marks are shown, and the cell's epoch moves on, frozen where one is forgotten; creates the cell only when told to
KEYS   meta log epochs switches freezes witnesses
ARGV   cell stored found rule marks executors patience_ms bucket_count entry
REPLY  accepted epoch_no n | created n | already epoch_no n | cell_missing | moved stored found | waiting missing waited_ms | lost mark_epoch mark_n start
]]
local found_now = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local m = redis.call('HMGET', k_meta, 'schema', 'epoch', 'epoch_no', 'n', 'met')
if m[1] and tonumber(m[1]) > 1 then return { 'schema_too_new', m[1] } end
if not m[1] and rule ~= 'create' then return { 'cell_missing' } end
if found ~= found_now or (m[1] and m[2] ~= stored and m[2] ~= found) then return { 'moved', m[2] or '', found_now } end
--- include: clock
local epoch = found_now
--- include: log
local new = string.sub(epoch, 1, 16)
if not m[1] then
  redis.call('HSET', k_meta, 'schema', '1', 'cell', cell, 'buckets', bucket_count, 'epoch', epoch, 'epoch_no', '1', 'n', '0', 'created', int(now), 'epoch_at', int(now))
  redis.call('HSET', k_epochs, new, '1 0')
  return { 'created', append('epoch', 'created', 'no_refusal', 'no_refusal', '', new, entry) }
end
local head = tonumber(m[4])
--- include: marks
--- include: witnesses

-- Who shows its marks, or the marks of those whose process has ended, is a witness that has spoken.
local in_force = m[2] == epoch
local speaks = ' ' .. executors .. ' '
local missing = {}
for name, each in pairs(witnesses) do
  if string.find(speaks, ' ' .. name .. ' ', 1, true) then
    local mark = lost or top_mark
    each.shown, each.mark = new, mark and (mark.epoch .. ' ' .. int(mark.n) .. (lost and ' lost' or '')) or 'none'
    if in_force then each.at = now end
    redis.call('HSET', k_witnesses, name, int(each.at) .. ' ' .. new .. ' ' .. each.mark)
  elseif each.shown ~= new and recent(each) then
    missing[#missing + 1] = name
  end
end
-- A cell that is frozen by the service stays so until its recovery.
local function latch(id, why)
  if redis.call('HGET', k_freezes, id) then return end
  local ids = redis.call('HGET', k_switches, 'cell')
  redis.call('HSET', k_switches, 'cell', ids and ids ~= '' and (ids .. ' ' .. id) or id)
  redis.call('HSET', k_freezes, id, 'cell\n' .. why)
end
local function answer_for(of, n)
  if n > answered(of) then redis.call('HSET', k_epochs, 'lost:' .. of, int(n)) end
end
-- A person answers for every mark that is known: these ones, and those that witnesses have shown.
local function answer_for_all()
  if lost then answer_for(lost.epoch, lost.n) end
  for _, each in pairs(witnesses) do
    local of, n = string.match(each.mark, '^(%x+) (%d+) lost$')
    if of then answer_for(of, tonumber(n)) end
  end
end
local function latch_lost() latch('rollback-' .. lost.epoch .. '-' .. int(lost.n), 'store_rollback') end
local old = string.sub(m[2], 1, 16)

if in_force then
  if rule == 'person' then
    answer_for_all()
    append('epoch', 'answered', 'person', 'no_refusal', old, new, entry)
  elseif lost then
    local before = redis.call('HGET', k_freezes, 'rollback-' .. lost.epoch .. '-' .. int(lost.n))
    latch_lost()
    if not before then append('freeze', 'frozen', 'store_rollback', '0.5:kill_switch', old, new, entry) end
    return { 'lost', lost.epoch, int(lost.n), int(end_of(lost.epoch)) }
  end
  return { 'already', m[3], m[4] }
end

local met_epoch, met = string.match(m[5] or '', '^(%x+) (%d+)$')
if met_epoch ~= new then
  met = int(now)
  redis.call('HSET', k_meta, 'met', new .. ' ' .. met)
end
local waited = math.max(0, now - tonumber(met))
if #missing > 0 and not lost and rule ~= 'person' and (patience_ms == '' or waited < tonumber(patience_ms)) then
  return { 'waiting', #missing .. '', int(waited) }
end
local number = int(tonumber(m[3]) + 1)
redis.call('HSET', k_meta, 'epoch', epoch, 'epoch_no', number, 'epoch_at', int(now))
redis.call('HDEL', k_meta, 'met')
redis.call('HSET', k_epochs, new, number .. ' ' .. m[4])
for name, each in pairs(witnesses) do
  if each.shown == new then redis.call('HSET', k_witnesses, name, int(now) .. ' ' .. new .. ' ' .. each.mark) end
end
if rule == 'person' then
  answer_for_all()
  latch('recovery-' .. number, 'store_recovery')
elseif lost then
  latch_lost()
  append('epoch', 'frozen', 'store_rollback', '0.5:kill_switch', old, new, entry)
  return { 'lost', lost.epoch, int(lost.n), int(end_of(lost.epoch)) }
end
local n = append('epoch', 'accepted', rule, 'no_refusal', old, new, entry)
return { 'accepted', number, n }
