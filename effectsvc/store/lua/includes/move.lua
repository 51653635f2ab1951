-- The parts that every move of an effect shares: the counts by state, and the notice to whoever waits (a hint only).
local function count(from, to)
  if from == to then return end
  if from then redis.call('HINCRBY', k_counts, from, -1) end
  redis.call('HINCRBY', k_counts, to, 1)
end
local function tell(notice, id, state)
  if notice and notice ~= '' then
    redis.call('PUBLISH', string.sub(k_meta, 1, -5) .. 'notice:' .. notice, id .. ' ' .. state)
  end
end
local function has_tail(key, tail) return string.sub(key, -#tail - 1) == ':' .. tail end
