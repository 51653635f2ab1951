-- Redis time is the only clock. Numbers leave Lua through int(), since tostring() rounds above 14 digits.
local function int(x) return string.format('%.0f', x) end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
