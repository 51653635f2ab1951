#!lua flags=allow-oom
--[[ witness: an executor that keeps marks says that it lives, or that it ends
KEYS   meta witnesses
ARGV   executor shown leaving
REPLY  seen at_ms | left | unshown epoch
]]
--- include: cell
--- include: witnesses
-- Who has not shown its marks in this epoch has to do so first: it may know more than the store.
if shown ~= string.sub(epoch, 1, 16) then return { 'unshown', epoch } end
-- One that was not seen for long is no witness any more: a new epoch does not wait for it.
for name, each in pairs(witnesses) do
  if not recent(each) then redis.call('HDEL', k_witnesses, name) end
end
if leaving == '1' then
  redis.call('HDEL', k_witnesses, executor)
  return { 'left' }
end
local mark = witnesses[executor] and witnesses[executor].mark or 'none'
redis.call('HSET', k_witnesses, executor, int(now) .. ' ' .. shown .. ' ' .. mark)
return { 'seen', int(now) }
