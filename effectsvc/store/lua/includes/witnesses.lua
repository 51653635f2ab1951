-- The executors that keep marks. Each field: when it was last seen, the epoch in which it has shown its marks, and a mark.
-- A witness is recent when it was seen so long before the newest sighting at most: the time in which a server was away
-- counts for nobody. Binds: witnesses (by executor), recent(witness).
local RECENT_MS, newest_sighting, witnesses = 30000, 0, {}
local told = redis.call('HGETALL', k_witnesses)
for i = 1, #told, 2 do
  local at, shown, mark = string.match(told[i + 1], '^(%d+) (%S+) (.*)$')
  witnesses[told[i]] = { at = tonumber(at), shown = shown, mark = mark }
  newest_sighting = math.max(newest_sighting, tonumber(at))
end
local function recent(witness) return newest_sighting - witness.at <= RECENT_MS end
