-- Halts a run once; `digest` names it in the set that the sweep reads. Answers the entry's n, or nil when it was halted before.
-- Needs log.
local function halt(digest, reason, actor, bytes)
  if redis.call('HSETNX', k_run, 'halted', reason) == 0 then return nil end
  redis.call('HSET', k_run, 'halted_at', int(now), 'halted_by', actor)
  redis.call('ZADD', k_halted, now, digest)
  return append('halt', 'halted', reason, 'no_refusal', '', '', bytes)
end
