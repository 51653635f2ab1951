-- Rates as sliding windows of the store's clock: of each the newest calls are kept, as many as it admits.
-- `keys` holds their lists after `first` others; `rates` says calls and window (ms) of each. Needs clock.
-- How long until every rate admits one more call: of the last `calls` ones the oldest must have left its window.
local function rate_wait(keys, first)
  local wait, i = 0, first
  for calls, window in string.gmatch(rates, '(%d+) (%d+)') do
    i = i + 1
    local oldest = redis.call('LINDEX', keys[i], calls - 1)
    if oldest then wait = math.max(wait, oldest + window - now) end
  end
  return wait
end
local function charge_rates(keys, first)
  local i = first
  for calls, window in string.gmatch(rates, '(%d+) (%d+)') do
    i = i + 1
    redis.call('LPUSH', keys[i], int(now))
    redis.call('LTRIM', keys[i], 0, calls - 1)
    redis.call('PEXPIRE', keys[i], window)
  end
end
