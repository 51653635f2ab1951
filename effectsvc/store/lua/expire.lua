#!lua flags=allow-oom
--[[ expire: held -> refused, once its time has passed undecided
KEYS   meta log effect lane parked held counts open approvals run spent
ARGV   effect_id entry
REPLY  refused n epoch | not_due due_ms | already state | taken state | gone
]]
--- include: cell
--- include: log
--- include: move
--- include: give_back
--- include: withdraw
local f = redis.call('HMGET', k_effect, 'state', 'notice', 'rule', 'run', 'lane')
local state = f[1]
if not state then return { 'gone' } end
if state == 'refused' and f[3] == 'approval_expired' then return { 'already', state } end
if state ~= 'held' then return { 'taken', state } end
if not has_tail(k_open, f[4]) or not has_tail(k_run, f[4]) then return { 'wrong_keys', 'run' } end
if not has_tail(k_lane, f[5]) then return { 'wrong_keys', 'lane' } end
local expires = tonumber(redis.call('ZSCORE', k_held, effect_id) or '0')
if now < expires then return { 'not_due', int(expires) } end
redis.call('DEL', k_approvals)
local n = withdraw({ state = state, notice = f[2] }, 'refused', 'approval_expired', '8:approval', 'approval', entry)
return { 'refused', n, string.sub(epoch, 1, 16) }
