#!lua flags=allow-oom
--[[ beat: a worker process says that it lives, or that it ends; it hears whether it is to drain
KEYS   meta workers executors drains
ARGV   executor host begun_ms leaving about
REPLY  seen at_ms | drain at_ms actor reason | left
]]
--- include: cell
local FORGOTTEN_MS = 3600000 -- an hour: who looks after an incident still sees what has died in it
local function forget(name)
  redis.call('ZREM', k_workers, name)
  redis.call('HDEL', k_executors, name)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', k_workers, '-inf', now - FORGOTTEN_MS, 'LIMIT', 0, 100)) do forget(name) end
if leaving == '1' then
  forget(executor)
  redis.call('HDEL', k_drains, executor)
  return { 'left' }
end
redis.call('ZADD', k_workers, now, executor)
redis.call('HSET', k_executors, executor, about)
-- What its host was told counts only for who was there then: what is started later is meant to work.
local flags = redis.call('HMGET', k_drains, executor, 'host:' .. host)
for i, flag in ipairs(flags) do
  local at, actor, reason = string.match(flag or '', '^(%d+)\n(.*)\n(.*)$')
  if at and (i == 1 or tonumber(at) > tonumber(begun_ms)) then return { 'drain', at, actor, reason } end
end
return { 'seen', int(now) }
