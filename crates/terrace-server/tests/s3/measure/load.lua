-- Requests for wrk: the paths in a file one after the other, each thread from a place of its own; and the result as a line of JSON.
--
--   wrk ... -s load.lua URL -- PATHS [METHOD BODY_BYTES]
--
-- Bodies are random, and no two are alike: a server that compresses, or keeps equal blocks once, has to store all of each.

-- How many bodies there are before one comes again; a power of two, and the step between them is odd.
local BODIES = 1048576
local STEP = 4099

local threads = 0

function setup(thread)
    thread:set("number", threads)
    threads = threads + 1
end

function init(arguments)
    method = arguments[2] or "GET"
    length = arguments[3] and tonumber(arguments[3])
    if length then
        local random = assert(io.open("/dev/urandom", "rb"))
        bytes = random:read(length + BODIES)
        random:close()
        offset = 0
    end
    requests = {}
    for path in io.lines(arguments[1]) do
        requests[#requests + 1] = length and path or wrk.format(method, path)
    end
    at = number * 7919 % #requests
end

function request()
    at = at % #requests + 1
    if not length then
        return requests[at]
    end
    offset = (offset + STEP) % BODIES
    return wrk.format(method, requests[at], nil, bytes:sub(offset + 1, offset + length))
end

function done(summary, latency)
    local errors = summary.errors
    io.write(string.format(
        '{"requests": %d, "seconds": %.3f, "per_second": %.1f, "bytes": %d, "p50_us": %d, "p99_us": %d, "errors": %d}\n',
        summary.requests, summary.duration / 1e6, summary.requests / (summary.duration / 1e6), summary.bytes,
        latency:percentile(50), latency:percentile(99),
        errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
