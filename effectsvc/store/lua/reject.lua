#!lua flags=allow-oom
--[[ reject: held -> refused; the same call is not judged anew
KEYS   meta log effect lane parked held counts open approvals run spent
ARGV   effect_id args entry
REPLY  refused n epoch | mismatch what | already state | taken state | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: give_back
--- include: withdraw
local f = redis.call('HMGET', k_effect, 'state', 'args', 'notice', 'rule', 'run', 'lane')
local state = f[1]
if not state then return { 'gone' } end
if state == 'refused' and f[4] == 'approval_rejected' then return { 'already', state } end
if state ~= 'held' then return { 'taken', state } end
if not has_tail(k_open, f[5]) or not has_tail(k_run, f[5]) then return { 'wrong_keys', 'run' } end
if not has_tail(k_lane, f[6]) then return { 'wrong_keys', 'lane' } end
if f[2] ~= args then return { 'mismatch', 'args' } end
redis.call('DEL', k_approvals)
local n = withdraw({ state = state, notice = f[3] }, 'refused', 'approval_rejected', '8:approval', 'approval', entry)
return { 'refused', n, string.sub(epoch, 1, 16) }
