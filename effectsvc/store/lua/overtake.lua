#!lua flags=allow-oom
--[[ overtake: held, proposed -> cancelled, because its run is halted, its deadline has passed, or it is too old
KEYS   meta log effect run lane rerun lookup parked held counts open spent above*
ARGV   effect_id why age_ms next delay_ms entry
REPLY  cancelled n epoch | unknown n epoch | running | standing state | already state | gone
]]
--- include: cell
--- include: log
--- include: stops
--- include: move
--- include: give_back
--- include: withdraw
--- include: keep_unknown
local f = redis.call('HMGET', k_effect, 'state', 'run', 'lane', 'notice', 'reason', 'at')
local state = f[1]
if not state then return { 'gone' } end
if state == 'pending' then return { 'running' } end
-- In doubt and due again since: overtaken anew, or it would stand in the rerun set for ever.
local again = state == 'unknown' and (f[5] ~= why or redis.call('ZSCORE', k_rerun, effect_id))
if state ~= 'held' and state ~= 'proposed' and not again then return { 'already', state } end
if not has_tail(k_run, f[2]) or not has_tail(k_open, f[2]) then return { 'wrong_keys', 'run' } end
if not has_tail(k_lane, f[3]) then return { 'wrong_keys', 'lane' } end
-- The caller's word is not enough: what overtakes it is looked up here, on Redis time.
local record = load_run()
if not record then return { 'wrong_keys', 'run' } end
local layer = 'no_refusal'
if why == 'run_halted' then
  local stop, reason = run_stop(record, k_above)
  if stop == 'wrong_keys' then return { stop, reason } end
  if stop ~= 'halted' then return { 'standing', state } end
  layer = '0.7:run_halted'
elseif why == 'deadline_passed' then
  if (record.deadline or '') == '' or now <= tonumber(record.deadline) then return { 'standing', state } end
  layer = '9:deadline'
elseif now - tonumber(f[6]) <= tonumber(age_ms) then
  return { 'standing', state }
end
if state == 'unknown' then
  return { 'unknown', keep_unknown(why, next, delay_ms, 'cancel', why, layer, entry), string.sub(epoch, 1, 16) }
end
local n = withdraw({ state = state, notice = f[4] }, 'cancelled', why, layer, 'cancel', entry)
return { 'cancelled', n, string.sub(epoch, 1, 16) }
