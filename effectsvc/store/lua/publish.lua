#!lua
--[[ publish: a contract or the policy, by digest; or an operator's override
KEYS   meta log catalogue body
ARGV   kind name version digest body entry
REPLY  published n epoch | already | older version
]]
--- include: cell
--- include: log
local field = kind .. ':' .. name
local current = redis.call('HGET', k_catalogue, field)
local short_epoch = string.sub(epoch, 1, 16)
if current then
  local shown, known = string.match(current, '^(%d+) (%S+)$')
  if known == digest then return { 'already' } end
  if tonumber(shown) > tonumber(version) then
    redis.call('SET', k_body, body)
    return { 'older', shown }
  end
end
redis.call('SET', k_body, body)
redis.call('HSET', k_catalogue, field, version .. ' ' .. digest)
if kind == 'policy' then redis.call('HSET', k_meta, 'policy', digest) end
local n = append(kind == 'override' and 'override' or 'publish', kind, 'no_refusal', 'no_refusal', '', '', entry)
return { 'published', n, short_epoch }
