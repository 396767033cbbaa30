-- The requests of a workload for wrk, and its figures in one line for the benchmark to read.
-- usage: wrk ... -s wrk.lua URL -- NAME

local list, count = {}, 0

local function rotate()
  count = count + 1
  return list[count % #list + 1]
end

local function get(path)
  return wrk.format("GET", path)
end

local workloads = {}

function workloads.close()
  wrk.headers["Connection"] = "close"
end

-- A third each: GET, POST with a length, and POST in chunks.
function workloads.mix()
  local path = "/mix?a=13&b=42"
  list = {get(path), wrk.format("POST", path, {["Content-Type"] = "text/plain"}, "20"),
          "POST " .. path .. " HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n" ..
          "Transfer-Encoding: chunked\r\n\r\n2\r\n20\r\n0\r\n\r\n"}
  request = rotate
end

-- Answers of 1 to 50 items.
function workloads.json()
  for _, each in ipairs({{1, 3}, {5, 7}, {10, 2}, {15, 5}, {25, 4}, {40, 8}, {50, 6}}) do
    list[#list + 1] = get("/json/" .. each[1] .. "?m=" .. each[2])
  end
  request = rotate
end

-- Steps of a prime meet all of the 100,000 rows.
function workloads.row()
  request = function()
    count = count + 7919
    return get("/row?id=" .. (count % 100000 + 1))
  end
end

function workloads.upload()
  wrk.method = "POST"
  wrk.body = string.rep("x", 2000000)
  wrk.headers["Content-Type"] = "application/octet-stream"
end

function init(words)
  local prepare = workloads[words[1]]
  if prepare then prepare() end
end

function done(summary, latency)
  local errors = summary.errors
  print(string.format("figures requests=%d duration_us=%d p50_us=%d p99_us=%d " ..
    "failures=%d hung_up=%d",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.write + errors.timeout + errors.status, errors.read))
end
