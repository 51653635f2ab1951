-- The effect that a compensation undoes. k_compensated holds its state hash, its lane's rerun, lookup and parked sets, and
-- its run's open set; both functions need move and log.
local function compensated_declared(id)
  local key = k_compensated[1]
  if not key or not has_tail(key, id) then return false end
  local c = redis.call('HMGET', key, 'lane', 'run')
  return not c[1] or (has_tail(k_compensated[3], c[1]) and has_tail(k_compensated[5], c[2]))
end
-- The compensation happened: the occurrence is closed, and one that is unknown ends committed. The entry's bytes are the
-- compensation's own, which name both; its type says that the move is the other effect's.
local function close_compensated(id, bytes)
  local c = redis.call('HMGET', k_compensated[1], 'state', 'notice', 'compensated')
  if not c[1] or c[3] then return end
  redis.call('HSET', k_compensated[1], 'compensated', '1', 'compensated_by', effect_id)
  local to = c[1]
  if c[1] == 'unknown' then
    to = 'committed'
    redis.call('HDEL', k_compensated[1], 'decision', 'lane_reason', 'waiting_for', 'rerun', 'doubt', 'needs_review', 'reason',
      'absent_at', 'absent_of', 'probe_at', 'probe_until', 'bound')
    redis.call('HSET', k_compensated[1], 'state', to, 'since', int(now))
    redis.call('ZREM', k_leases, id)
    redis.call('ZREM', k_unknown, id)
    for i = 2, 4 do redis.call('ZREM', k_compensated[i], id) end
    redis.call('SREM', k_compensated[5], id)
    count('unknown', to)
    tell(c[2], id, to)
  end
  append('compensated', to, 'compensation', 'no_refusal', c[1], to, bytes)
end
