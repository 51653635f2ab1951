#!lua flags=allow-oom
--[[ progress: pending -> pending; a part is begun or done, and from the first part on the effect is in doubt
KEYS   meta log effect parts
ARGV   effect_id token part phase ref entry
REPLY  noted parts n epoch | done attempt ref | already parts | stale state | gone
]]
--- include: cell
--- include: log
--- include: attempts
local f = redis.call('HMGET', k_effect, 'state', 'token', 'parts')
local state = f[1]
if not state then return { 'gone' } end
if f[2] ~= token then return { 'stale', state } end
-- An overrun attempt still says what it finished; it begins nothing.
if state ~= 'pending' and not (state == 'unknown' and phase == 'done') then return { 'stale', state } end
local number = attempt_of(token)
local known, by, how = string.match(redis.call('HGET', k_parts, part) or '', '^(%l+) (%d+) ?(.*)$')
if known == phase and by == number then return { 'already', f[3] } end
if known == 'done' then return { 'done', by, how } end
local done, begun = string.match(f[3] or '0/0', '^(%d+)/(%d+)$')
if not known then begun = begun + 1 end
if phase == 'done' then done = done + 1 end
local parts = int(done) .. '/' .. int(begun)
redis.call('HSET', k_parts, part, phase .. ' ' .. number .. ' ' .. ref)
redis.call('HSET', k_effect, 'parts', parts, 'doubt', '1')
local n = append('part', phase, 'no_refusal', 'no_refusal', state, state, entry)
return { 'noted', parts, n, string.sub(epoch, 1, 16) }
