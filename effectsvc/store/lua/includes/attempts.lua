-- The attempts of an effect that are not known to be over: numbers in one field, an executor id beside each.
local function alive_without(alive, n)
  local left = {}
  for each in string.gmatch(alive or '', '%S+') do
    if each ~= n then left[#left + 1] = each end
  end
  return table.concat(left, ' ')
end
local function attempt_of(token) return string.match(token, ':(%d+):') or '' end
