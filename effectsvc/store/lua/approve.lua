#!lua
--[[ approve: held -> proposed, or held until enough people have approved
KEYS   meta log effect lane held counts approvals
ARGV   effect_id args render policy approver requester needed entry
REPLY  approved due_ms n epoch | waiting count needed n epoch | mismatch what | self_approval | expired expires_ms | already state | taken state | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: outbox
local f = redis.call('HMGET', k_effect, 'state', 'args', 'render', 'agent', 'approving', 'notice', 'lane', 'rule')
local state = f[1]
if not state then return { 'gone' } end
local short_epoch = string.sub(epoch, 1, 16)
-- An approval is for exactly this: what was shown, under the policy that it was shown under (20 characters are 120 bits).
local this = string.sub(policy, 1, 20) .. ':' .. string.sub(args, 1, 20) .. ':' .. string.sub(render, 1, 20)
local mine = redis.call('SISMEMBER', k_approvals, approver) == 1 and f[5] == this
if state ~= 'held' then
  if mine and state ~= 'refused' then return { 'already', state } end
  return { 'taken', state }
end
if not has_tail(k_lane, f[7]) then return { 'wrong_keys', 'lane' } end
if f[2] ~= args then return { 'mismatch', 'args' } end
if f[3] and f[3] ~= render then return { 'mismatch', 'render' } end
if approver == requester or approver == f[4] then return { 'self_approval' } end
local expires = tonumber(redis.call('ZSCORE', k_held, effect_id) or '0')
if now >= expires then return { 'expired', int(expires) } end
local given = 0
if f[5] == this then given = redis.call('SCARD', k_approvals) end
if mine then return { 'waiting', int(given), needed, '0', short_epoch } end

if f[5] ~= this then redis.call('DEL', k_approvals) end
redis.call('SADD', k_approvals, approver)
redis.call('HSET', k_effect, 'approving', this)
given = given + 1
if given < tonumber(needed) then
  local n = append('approval', 'waiting', 'no_refusal', 'no_refusal', 'held', 'held', entry)
  return { 'waiting', int(given), needed, n, short_epoch }
end
redis.call('ZREM', k_held, effect_id)
redis.call('HDEL', k_effect, 'rule', 'layer')
redis.call('HSET', k_effect, 'state', 'proposed', 'since', int(now))
-- What was held in quarantine is let go on; that is no approval of the call.
if f[8] ~= 'quarantined' then redis.call('HSET', k_effect, 'approved', this, 'approved_until', int(expires)) end
enter_lane(now, f[7])
count('held', 'proposed')
tell(f[6], effect_id, 'proposed')
local n = append('approval', 'approved', 'no_refusal', 'no_refusal', 'held', 'proposed', entry)
return { 'approved', int(now), n, short_epoch }
