#!lua flags=allow-oom
--[[ ack_export: moves the watermark over what is synced in the log's files, and trims what lies long behind it
KEYS   meta log exporter
ARGV   owner fence size root new_size new_root watermark stream_id keep_ms
REPLY  acked trimmed | lost by | moved size root
]]
--- include: cell
local f = redis.call('HMGET', k_exporter, 'owner', 'fence', 'size', 'root', 'until')
if f[1] ~= owner or f[2] ~= fence or tonumber(f[5]) <= now then return { 'lost', f[1] or '' } end
if f[3] == new_size and f[4] == new_root then return { 'acked', '0' } end
if (f[3] or '0') ~= size or (f[4] or '') ~= root then return { 'moved', f[3] or '0', f[4] or '' } end
redis.call('HSET', k_exporter, 'size', new_size, 'root', new_root, 'n', watermark, 'id', stream_id)
-- The entry at the cursor stays, so that it can be read back after a reconnect.
local least = now - tonumber(keep_ms)
local upto = stream_id
if tonumber(string.match(stream_id, '^%d+')) > least then upto = int(math.max(0, least)) .. '-0' end
return { 'acked', int(redis.call('XTRIM', k_log, 'MINID', '=', upto)) }
