#!lua flags=allow-oom
--[[ lease_export: takes or keeps the export of this cell; refused while another has it, and to a log that is behind
KEYS   meta exporter
ARGV   owner lease_ms size root again watermark
REPLY  leased fence until_ms size root watermark | held by until_ms | behind size root
]]
--- include: cell
local f = redis.call('HMGET', k_exporter, 'owner', 'fence', 'until', 'size', 'root', 'n')
local ends = tonumber(f[3] or '0')
if f[1] and f[1] ~= owner and ends > now then return { 'held', f[1], int(ends) } end
if again == '1' then
  -- A person's word: the log was mended and holds less than was confirmed; what is missing is exported again.
  redis.call('HSET', k_exporter, 'size', size, 'root', root, 'n', watermark)
  f[4], f[5], f[6] = size, root, watermark
end
-- Another log has confirmed more than this one holds, or other records: this one is an old copy.
local known = tonumber(f[4] or '0')
if known > tonumber(size) or (known == tonumber(size) and known > 0 and f[5] ~= root) then return { 'behind', f[4], f[5] } end
local fence = tonumber(f[2] or '0')
if f[1] ~= owner or ends <= now then fence = fence + 1 end
ends = now + tonumber(lease_ms)
redis.call('HSET', k_exporter, 'owner', owner, 'fence', int(fence), 'until', int(ends))
return { 'leased', int(fence), int(ends), int(known), f[5] or '', f[6] or '0' }
