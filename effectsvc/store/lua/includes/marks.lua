-- What the marks that are shown say. Needs head, the log's counter now. Binds: top_mark (the highest, as text), lost (the
-- highest that this store does not remember: epoch, n), answered(epoch), for which n of an epoch a person has answered.
local begun, answers = {}, {}
local known_epochs = redis.call('HGETALL', k_epochs)
for i = 1, #known_epochs, 2 do
  local of = string.match(known_epochs[i], '^lost:(%x+)$')
  local number, start = string.match(known_epochs[i + 1], '^(%d+) ?(%d*)$')
  if of then
    answers[of] = tonumber(number)
  else
    begun[known_epochs[i]] = { number = tonumber(number), start = tonumber(start) }
  end
end
local function answered(of) return answers[of] or 0 end
-- Where an epoch ended: at the start of the one after it, whatever the head is now. 0 for one that this store never had.
local function end_of(of)
  if not begun[of] then return 0 end
  local after, ends = nil, head
  for _, each in pairs(begun) do
    if each.number > begun[of].number and (not after or each.number < after) then after, ends = each.number, each.start end
  end
  return ends
end
local top_mark, lost = nil, nil
for of, digits in string.gmatch(marks, '(%x+) (%d+)') do
  local n = tonumber(digits)
  if not top_mark or n > top_mark.n then top_mark = { epoch = of, n = n } end
  if n > math.max(end_of(of), answered(of)) and (not lost or n > lost.n) then lost = { epoch = of, n = n } end
end
