-- Notes that a process died while an attempt ran. `died` is 'child' (nothing else ran in it: it counts) or 'process'
-- (others may have run in it: it counts where the attempt was begun under suspicion, `known_one`, and is else a suspicion,
-- no more). Answers whether it is quarantined now. Needs suspects, log.
local function note_death(died, known_one, tool, args, bytes)
  local subject = subject_of(tool, args)
  local ended = redis.call('ZRANGEBYSCORE', k_suspects, '-inf', int(now), 'LIMIT', 0, FORGOTTEN)
  for i = 1, #ended do
    redis.call('ZREM', k_suspects, ended[i])
    redis.call('HDEL', k_deaths, ended[i])
  end
  local known = suspicion(subject)
  if known == 'quarantined' then return true end
  if not known then redis.call('HDEL', k_deaths, subject) end
  if (died == 'child' or known_one) and redis.call('HINCRBY', k_deaths, subject, 1) >= DEATHS then
    redis.call('ZADD', k_suspects, '+inf', subject)
    append('quarantine', 'quarantined', 'process_died', 'no_refusal', '', '', bytes)
    return true
  end
  redis.call('ZADD', k_suspects, int(now + SUSPECTED_MS), subject)
  return false
end
