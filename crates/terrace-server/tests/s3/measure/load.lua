-- Requests for wrk: the paths in a file one after the other, each thread from a place of its own; and the result as a line of JSON.
--
--   wrk ... -s load.lua URL -- PATHS [METHOD BODY_BYTES]

local threads = 0

function setup(thread)
    thread:set("number", threads)
    threads = threads + 1
end

function init(arguments)
    requests = {}
    local method = arguments[2] or "GET"
    local body = arguments[3] and string.rep("terrace.", tonumber(arguments[3]) / 8) or nil
    for path in io.lines(arguments[1]) do
        requests[#requests + 1] = wrk.format(method, path, nil, body)
    end
    at = number * 7919 % #requests
end

function request()
    at = at % #requests + 1
    return requests[at]
end

function done(summary, latency)
    local errors = summary.errors
    io.write(string.format(
        '{"requests": %d, "seconds": %.3f, "per_second": %.1f, "bytes": %d, "p50_us": %d, "p99_us": %d, "errors": %d}\n',
        summary.requests, summary.duration / 1e6, summary.requests / (summary.duration / 1e6), summary.bytes,
        latency:percentile(50), latency:percentile(99),
        errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
