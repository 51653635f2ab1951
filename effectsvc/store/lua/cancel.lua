#!lua flags=allow-oom
--[[ cancel: held, proposed -> cancelled; in doubt it stays unknown, with the reason; one that comes first burns the effect id
KEYS   meta log effect lane rerun lookup parked held counts open tomb_effect run spent
ARGV   effect_id by tenant agent run tool args next delay_ms entry
REPLY  cancelled n epoch | unknown n epoch | running | not_proposer | retired what value | already state | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: give_back
--- include: withdraw
--- include: keep_unknown
local f = redis.call('HMGET', k_effect, 'state', 'tenant', 'agent', 'run', 'lane', 'notice', 'reason')
local state, rule = f[1], 'cancelled_by_' .. by
if not state then
  local tomb = redis.call('HGET', k_tomb_effect, 'e' .. effect_id)
  if tomb then return { 'retired', 'effect', tomb } end
  -- Only who knows what was to be proposed burns an id: the propose that comes later is compared with it.
  if by ~= 'proposer' or args == '' then return { 'gone' } end
  if not has_tail(k_open, run) then return { 'wrong_keys', 'run' } end
  redis.call('HSET', k_effect, 'state', 'cancelled', 'tool', tool, 'tenant', tenant, 'agent', agent, 'run', run, 'args', args,
    'rule', rule, 'layer', 'no_refusal', 'at', int(now), 'since', int(now))
  count(nil, 'cancelled')
  local n = append('cancel', 'cancelled', rule, 'no_refusal', '', 'cancelled', entry)
  return { 'cancelled', n, string.sub(epoch, 1, 16) }
end
if by == 'proposer' and (f[2] ~= tenant or f[3] ~= agent or f[4] ~= run) then return { 'not_proposer' } end
if state == 'pending' then return { 'running' } end
-- In doubt and due again since: withdrawn anew, or it would stand in the rerun set for ever.
local again = state == 'unknown' and (f[7] ~= rule or redis.call('ZSCORE', k_rerun, effect_id))
if state ~= 'held' and state ~= 'proposed' and not again then return { 'already', state } end
if not has_tail(k_open, f[4]) or not has_tail(k_run, f[4]) then return { 'wrong_keys', 'run' } end
if not has_tail(k_lane, f[5]) then return { 'wrong_keys', 'lane' } end
if state == 'unknown' then
  return { 'unknown', keep_unknown(rule, next, delay_ms, 'cancel', rule, 'no_refusal', entry), string.sub(epoch, 1, 16) }
end
local n = withdraw({ state = state, notice = f[6] }, 'cancelled', rule, 'no_refusal', 'cancel', entry)
return { 'cancelled', n, string.sub(epoch, 1, 16) }
