#!lua flags=allow-oom
--[[ close_read: a read tool's outcome; its result answers a replay of the call for a while
KEYS   meta log read
ARGV   reader call_id rule result digest retain_ms entry
REPLY  closed n epoch | already
]]
--- include: cell
--- include: log
local known = {}
if call_id ~= '' then known = redis.call('HMGET', k_read, 'in:' .. reader, 'digest') end
if known[1] == 'closed' then return { 'already' } end
-- A claim that has expired since, or that another reader's result answers, is left as it is.
if known[1] then
  redis.call('HSET', k_read, 'in:' .. reader, 'closed')
  if digest ~= '' and not known[2] then
    redis.call('HSET', k_read, 'result', result, 'digest', digest)
    redis.call('PEXPIRE', k_read, retain_ms)
  end
end
local n = append('outcome', 'closed', rule, 'no_refusal', '', '', entry)
return { 'closed', n, string.sub(epoch, 1, 16) }
