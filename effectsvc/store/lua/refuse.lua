#!lua flags=allow-oom
--[[ refuse: proposed, held -> refused; in doubt it stays unknown, with the reason
KEYS   meta log effect run lane rerun lookup parked held counts open halted spent
ARGV   effect_id attempt rule layer halts next delay_ms entry
REPLY  refused n epoch | unknown n epoch | already state | taken state | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: halt
--- include: give_back
--- include: withdraw
--- include: keep_unknown
local f = redis.call('HMGET', k_effect, 'state', 'attempt', 'notice', 'run', 'lane', 'rule', 'reason')
local state = f[1]
if not state then return { 'gone' } end
if not has_tail(k_run, f[4]) or not has_tail(k_open, f[4]) then return { 'wrong_keys', 'run' } end
if state == 'refused' and f[6] == rule then return { 'already', state } end
-- Due again since (its parts were found, say): refused anew, or it would stand in the rerun set for ever.
if state == 'unknown' and f[7] == rule and not redis.call('ZSCORE', k_rerun, effect_id) then return { 'already', state } end
if state ~= 'proposed' and state ~= 'held' and state ~= 'unknown' then return { 'taken', state } end
if f[2] ~= attempt then return { 'taken', state } end
if not has_tail(k_lane, f[5]) then return { 'wrong_keys', 'lane' } end
local word, n = 'refused', nil
if state == 'unknown' then
  word, n = 'unknown', keep_unknown(rule, next, delay_ms, 'decision', rule, layer, entry)
else
  n = withdraw({ state = state, notice = f[3] }, 'refused', rule, layer, 'decision', entry)
end
if halts == '1' then n = halt(f[4], rule, '', entry) or n end
return { word, n, string.sub(epoch, 1, 16) }
