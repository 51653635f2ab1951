#!lua flags=allow-oom
--[[ retire: a final effect that is old and exported -> tombstones of its id and, where it happened, of its claims
KEYS   meta effect payload result parts approvals call intent counts exporter tomb_effect tomb_call tomb_intent joined*
ARGV   effect_id bucket_count since seen_n retain_ms
REPLY  retired state | not_exported watermark | not_due due_ms | stale state | gone | buckets count
]]
--- include: cell
--- include: move
if cell[3] ~= bucket_count then return { 'buckets', cell[3] } end
local f = redis.call('HMGET', k_effect, 'state', 'since', 'contradicted', 'alive', 'compensated')
local state = f[1]
if not state then return { 'gone' } end
local is_final = state == 'committed' or state == 'failed' or state == 'refused' or state == 'cancelled'
-- An attempt that may still act may still bring evidence; what is contradicted waits for a person.
if not is_final or f[2] ~= since or f[3] or (f[4] and f[4] ~= '') then return { 'stale', state } end
local due = tonumber(since) + tonumber(retain_ms)
if due > now then return { 'not_due', int(due) } end
-- All that was ever said of it has a counter of at most `seen_n`: the caller saw it final before it read that counter.
local watermark = tonumber(redis.call('HGET', k_exporter, 'n') or '0')
if watermark < tonumber(seen_n) then return { 'not_exported', int(watermark) } end
-- Calls that joined it have claims of their own; one that came since the caller looked is taken along the next time.
local known = {}
for i = 1, #k_joined do known['j' .. string.match(k_joined[i], '[^:]+$')] = true end
local fields = redis.call('HGETALL', k_effect)
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 1) == 'j' and not known[fields[i]] then return { 'stale', state } end
end

-- A tombstone stays for good, so it is short: one letter for what most are.
local holds = state == 'committed' and not f[5]
redis.call('HSET', k_tomb_effect, 'e' .. effect_id, state == 'committed' and 'c' or state)
if redis.call('GET', k_call) == effect_id then
  redis.call('DEL', k_call)
  if holds then redis.call('HSET', k_tomb_call, 'c' .. string.match(k_call, '[^:]+$'), 'c') end
end
if redis.call('GET', k_intent) == effect_id then
  redis.call('DEL', k_intent)
  if holds then redis.call('HSET', k_tomb_intent, 'i' .. string.match(k_intent, '[^:]+$'), 'c') end
end
for i = 1, #k_joined do
  if redis.call('GET', k_joined[i]) == effect_id then redis.call('DEL', k_joined[i]) end
end
redis.call('DEL', k_effect, k_payload, k_result, k_parts, k_approvals)
redis.call('HINCRBY', k_counts, state, -1)
return { 'retired', state }
