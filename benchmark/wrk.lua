-- Nothing here runs while the load does.
--
-- Before it: a number after the address is the size of the body to be posted.
-- After it: prints one line of figures for the benchmark to read, latencies in
-- microseconds, beside wrk's own report for people.

function init(words)
  if words[1] then
    wrk.method = "POST"
    wrk.body = string.rep("x", tonumber(words[1]))
    wrk.headers["Content-Type"] = "application/octet-stream"
  end
end

local function percentile_us(latency, percent)
  return math.floor(latency:percentile(percent))
end

function done(summary, latency)
  local errors = summary.errors
  local figures = {
    {"requests", summary.requests}, {"duration_us", summary.duration},
    {"p50_us", percentile_us(latency, 50)}, {"p90_us", percentile_us(latency, 90)},
    {"p99_us", percentile_us(latency, 99)}, {"p999_us", percentile_us(latency, 99.9)},
    {"max_us", latency.max},
    {"connect_errors", errors.connect}, {"read_errors", errors.read},
    {"write_errors", errors.write}, {"timeouts", errors.timeout}, {"non_2xx", errors.status},
  }
  local words = {"ruler"}
  for _, figure in ipairs(figures) do
    words[#words + 1] = string.format("%s=%d", figure[1], figure[2])
  end
  print(table.concat(words, " "))
end
