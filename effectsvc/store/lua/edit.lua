#!lua
--[[ edit: held -> held with a person's arguments; the claims move with them, and earlier approvals are void
KEYS   meta log effect payload old_intent intent old_target target held approvals tomb_intent look*
ARGV   effect_id was args render editor looks bucket_count payload entry
REPLY  edited occurrence n epoch | same_intent_taken effect_id state | target_busy effect_id state | look effect_id | retired what value | mismatch what | expired expires_ms | already state | taken state | buckets count | gone
]]
--- include: cell
--- include: log
if cell[3] ~= bucket_count then return { 'buckets', cell[3] } end
local f = redis.call('HMGET', k_effect, 'state', 'args', 'editor', 'occ', 'attempt')
local state = f[1]
if not state then return { 'gone' } end
if f[2] == args and f[3] == editor then return { 'already', state } end
if state ~= 'held' then return { 'taken', state } end
if f[2] ~= was then return { 'mismatch', 'args' } end
local expires = tonumber(redis.call('ZSCORE', k_held, effect_id) or '0')
if now >= expires then return { 'expired', int(expires) } end

-- The effect that a claim names; nil when its key is not declared.
local look, at = {}, 0
for id in string.gmatch(looks, '%S+') do
  at = at + 1
  look[id] = k_look[at]
end
local function found(id)
  if not look[id] then return nil end
  local x = redis.call('HMGET', look[id], 'state', 'contradicted', 'occ', 'proof', 'compensated')
  local free = ((x[1] == 'failed' or x[1] == 'refused' or x[1] == 'cancelled') and not x[2]) or x[5]
  -- A final state that late evidence contradicts is no knowledge: it is told as unknown.
  return { state = x[1], told = x[2] and 'unknown' or x[1], occ = tonumber(x[3] or '1'), proof = x[4], compensated = x[5], free = free }
end

local holder, occurrence = redis.call('GET', k_intent), tonumber(f[4])
if k_intent ~= k_old_intent then
  local buried = redis.call('HGET', k_tomb_intent, 'i' .. string.match(k_intent, '[^:]+$'))
  if buried then return { 'retired', 'intent', buried } end
  occurrence = 1
end
if holder and holder ~= effect_id then
  local x = found(holder)
  if not x then return { 'look', holder } end
  if x.state and not x.free then return { 'same_intent_taken', holder, x.told } end
  if x.state then
    occurrence = x.occ
    if x.compensated or (x.state == 'failed' and x.proof == 'rejected') then occurrence = occurrence + 1 end
  end
end
-- One open effect for each target of an exclusive tool, as for a proposal; another tool's target is named `none`.
local exclusive = string.sub(k_target, -5) ~= ':none'
local busy = exclusive and redis.call('GET', k_target)
if busy and busy ~= effect_id then
  local x = found(busy)
  if not x then return { 'look', busy } end
  if x.state and not x.free and x.told ~= 'committed' then return { 'target_busy', busy, x.told } end
end

if k_intent ~= k_old_intent and redis.call('GET', k_old_intent) == effect_id then redis.call('DEL', k_old_intent) end
redis.call('SET', k_intent, effect_id)
if k_target ~= k_old_target and redis.call('GET', k_old_target) == effect_id then redis.call('DEL', k_old_target) end
if exclusive then redis.call('SET', k_target, effect_id) end
redis.call('HSETNX', k_effect, 'args0', f[2])
-- One attempt number is burnt: who read the old arguments can no longer begin with them.
redis.call('HSET', k_effect, 'args', args, 'editor', editor, 'occ', int(occurrence), 'attempt', int(tonumber(f[5]) + 1))
redis.call('SET', k_payload, payload)
redis.call('DEL', k_approvals)
redis.call('HDEL', k_effect, 'approving', 'approved', 'approved_until', 'render')
if render ~= '' then redis.call('HSET', k_effect, 'render', render) end
local n = append('approval', 'edited', 'no_refusal', 'no_refusal', 'held', 'held', entry)
return { 'edited', int(occurrence), n, string.sub(epoch, 1, 16) }
