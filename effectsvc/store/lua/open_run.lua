#!lua
--[[ open_run: opens or joins a run
KEYS   meta run parent tenants log_keys
ARGV   run tenant run_id agent state deadline_ms parent log_key
REPLY  opened state halted deadline_ms ancestors log_key now_ms | joined state halted deadline_ms ancestors log_key now_ms | conflict what | wrong_cell cell | closed
]]
--- include: cell
--- include: move
if not has_tail(k_run, run) then return { 'wrong_keys', 'run' } end
local home = redis.call('HGET', k_tenants, tenant)
local here = string.match(k_meta, '^{(.-)}')
if home and home ~= here then return { 'wrong_cell', home } end
-- The tenant's key for digests in the log: the first candidate wins, and destroying it erases what it hid.
local function tenant_key()
  local key = redis.call('HGET', k_log_keys, tenant)
  if not key then
    redis.call('HSET', k_log_keys, tenant, log_key)
    key = log_key
  end
  return key
end
local r = redis.call('HMGET', k_run, 'tenant', 'run_id', 'parent', 'deadline', 'halted', 'ancestors', 'state', 'closed')
if r[1] then
  if r[1] ~= tenant or r[2] ~= run_id then return { 'conflict', 'tenant' } end
  if (r[3] or '') ~= parent then return { 'conflict', 'parent' } end
  if r[8] then return { 'closed' } end
  local deadline = r[4] or ''
  -- A deadline only moves nearer.
  if deadline_ms ~= '' then
    if deadline == '' or tonumber(deadline_ms) < tonumber(deadline) then
      deadline = deadline_ms
      redis.call('HSET', k_run, 'deadline', deadline)
    elseif tonumber(deadline_ms) > tonumber(deadline) then
      return { 'conflict', 'deadline' }
    end
  end
  return { 'joined', r[7] or '', r[5] or '', deadline, r[6] or '', tenant_key(), int(now) }
end
local ancestors = ''
if parent ~= '' then
  local p = redis.call('HMGET', k_parent, 'tenant', 'ancestors')
  if p[1] ~= tenant or not has_tail(k_parent, parent) then return { 'conflict', 'parent' } end
  ancestors = parent
  local depth = 1
  for each in string.gmatch(p[2] or '', '%S+') do
    depth = depth + 1
    if depth > 8 then return { 'conflict', 'depth' } end
    ancestors = ancestors .. ' ' .. each
  end
end
if not home then redis.call('HSET', k_tenants, tenant, here) end
redis.call('HSET', k_run, 'tenant', tenant, 'run_id', run_id, 'agent', agent, 'state', state, 'deadline', deadline_ms,
  'parent', parent, 'ancestors', ancestors, 'opened', int(now), 'opened_n', redis.call('HGET', k_meta, 'n'))
return { 'opened', state, '', deadline_ms, ancestors, tenant_key(), int(now) }
