-- Appends one entry to the cell's stream with the cell's counter. The entry's bytes are the caller's, never touched here;
-- what only the script knows stands beside them as flat fields.
local function append(kind, answer, rule, layer, from, to, bytes)
  local n = int(redis.call('HINCRBY', k_meta, 'n', 1))
  redis.call('XADD', k_log, '*', 'n', n, 'epoch', string.sub(epoch, 1, 16), 'type', kind, 'op', OP,
    'answer', answer, 'rule', rule, 'layer', layer, 'from', from, 'to', to, 'e', bytes)
  return n
end
