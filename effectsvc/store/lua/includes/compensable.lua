-- Whether an effect may be undone: it happened, or parts of it did and every attempt is over; and it is not undone yet, and
-- undoes nothing itself (what it undid may simply be proposed again). Answers nil, or the word for why not.
local function not_compensable(key, of)
  local c = redis.call('HMGET', key, 'state', 'tenant', 'alive', 'parts', 'compensated', 'compensates')
  if not c[1] or c[2] ~= of then return 'none' end
  if c[5] then return 'compensated' end
  if c[6] then return 'compensation' end
  if c[1] == 'committed' then return nil end
  local some = tonumber(string.match(c[4] or '', '^(%d+)/') or '0') > 0
  if c[1] == 'unknown' and some and (c[3] or '') == '' then return nil end
  return c[1]
end
