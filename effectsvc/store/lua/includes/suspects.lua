-- Tools with their arguments that ran when a process died. `k_suspects`: until when such a one runs in child processes
-- only (inf: quarantined); `k_deaths`: how many processes died while it ran in a child, its own or the worker's.
local SUSPECTED_MS = 86400000 -- a day: longer than attempts and lookups of one effect commonly go on
local DEATHS = 3 -- one may be the machine's, two may be chance
local FORGOTTEN = 100 -- suspicions that have ended are forgotten with the next death, so many at a time
local function subject_of(tool, args) return tool .. ':' .. string.sub(args, 1, 22) end
-- Answers 'quarantined', 'suspected' or nil.
local function suspicion(subject)
  local ends = redis.call('ZSCORE', k_suspects, subject)
  if ends == 'inf' then return 'quarantined' end
  if ends and tonumber(ends) > now then return 'suspected' end
  return nil
end
