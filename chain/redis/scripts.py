"""The Lua scripts that change sessions in Redis. Each runs as one atomic step.

The holder of a session is the process that has claimed it. It has a token, and holds the session until a stored time on
the server's clock. Other clocks are not used. A script that changes a session for its holder checks the token first, so
a holder whose lease has ended changes nothing. If a script is sent again because its answer was lost, it writes
something again, since ``WAITAOF`` waits only for writes of its own connection.

All keys have the tag ``{chain}``, so that they are in one hash slot. If their content changes so that older versions
would misread it, the tag must change too. The keys of a session::

    meta      a hash: workspace, size (of the inbox), token, until, batch, waiting (lines in the inbox of the chain),
              answers (the time until which a watcher answers questions), is_worker (1 if the latest holder is a
              worker), goes_on (set if the next worker continues an open run), takeovers (the number of workers that
              died with the session since its last run ended), outlived (the token of the last worker that lost the
              session and reported that the worker is alive), told_from (the position of the event that began the last
              run), init and run_init (the latest init event, and that of the last run), told (bytes of all events so
              far), summary (of the journal up to a record)
    lines     a stream: rows that were sent and that the holder has not acted on yet
    journal   a stream: the records, as the rows of a file
    events    a stream: the latest events, each with the bytes of all events up to it
    ids       a hash: the latest status of each line that was sent, by its id
    files     a hash: attachments of the journal, by digest

The keys that all sessions share are ``sessions``, the ids by the time of the last change; ``due``, the ids by the time
from which the session needs a worker; and ``wake``, a list on which idle workers block.
"""

from __future__ import annotations

from functools import lru_cache

TAG = "{chain}"
SESSIONS, DUE, WAKE = f"{TAG}:sessions", f"{TAG}:due", f"{TAG}:wake"

DEFAULT_SIZE = 10
"""The size of the inbox, in lines, of a session that no chain has opened yet."""
MAX_WAITING_ROWS = 1_000
"""The maximum number of rows that wait for the holder of a session, including rows that need no room, such as stops."""
MAX_EVENT_BYTES = 2 * 1024 * 1024
"""The maximum number of bytes of events that are stored for watchers. The oldest events are removed first."""
RETRY_OPEN_MS = 30_000
"""The pause in milliseconds before a worker tries again to open a session that could not be opened."""
MAX_AHEAD_MS = 60_000
"""The maximum distance of a stored time into the future, in milliseconds: no lease or pause is longer.

A later time counts as past. It was stored before the server's clock was set back, for example in a failover.
"""

_PARTS = ("meta", "lines", "journal", "events", "ids", "files")


def key(id: str, part: str) -> str:
    """Return the Redis key of a part of a session, such as ``meta``."""
    return f"{TAG}:{id}:{part}"


@lru_cache(maxsize=1_000)
def keys(id: str) -> tuple[str, ...]:
    """Return the keys that a script gets: the keys of the session, then those that all sessions share."""
    return (*(key(id, part) for part in _PARTS), SESSIONS, DUE, WAKE)


_PRELUDE = f"""
local meta, lines, journal, events, ids, files, sessions, due, wake = unpack(KEYS)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function number(field) return tonumber(redis.call('HGET', meta, field) or '0') end
local function is_ahead(at) return at > now and at <= now + {MAX_AHEAD_MS} end
local function is_held() return is_ahead(number('until')) end
local function has_lines() return redis.call('XLEN', lines) > 0 or number('waiting') > 0 end
local function want_worker(id, at)
  if redis.call('ZADD', due, 'LT', 'CH', at, id) == 1 and at <= now then
    redis.call('LPUSH', wake, id); redis.call('LTRIM', wake, 0, 99)
  end
end
local function hold(id, ms) -- once the lease has ended, a worker is wanted if there is something to do
  redis.call('HSET', meta, 'until', now + ms)
  if number('is_worker') == 1 or has_lines() then redis.call('ZADD', due, now + ms, id)
  else redis.call('ZREM', due, id) end
end
"""


def _script(body: str) -> str:
    return f"{_PRELUDE}\n{body}"


CREATE = _script("""
-- id, workspace
if redis.call('EXISTS', meta) == 1 then return {'exists'} end
redis.call('HSET', meta, 'workspace', ARGV[2])
redis.call('ZADD', sessions, now, ARGV[1])
return {'ok'}
""")

CLAIM = _script("""
-- id, token, lease in ms, 1 if a worker claims it
if redis.call('EXISTS', meta) == 0 then redis.call('ZREM', due, ARGV[1]); return {'none'} end
if redis.call('HGET', meta, 'token') ~= ARGV[2] then -- otherwise it was claimed before, and the answer was lost
  if is_held() then return {'held'} end
  if ARGV[4] == '1' then
    local at = redis.call('ZSCORE', due, ARGV[1])
    if not at or is_ahead(tonumber(at)) then return {'held'} end
  end
  if redis.call('HEXISTS', meta, 'token') == 1 and number('is_worker') == 1 then -- the worker did not release it
    redis.call('HSET', meta, 'goes_on', 1)
    redis.call('HINCRBY', meta, 'takeovers', 1)
  end
end
redis.call('HSET', meta, 'token', ARGV[2], 'batch', 0, 'is_worker', ARGV[4])
hold(ARGV[1], ARGV[3])
return {'ok', redis.call('HGET', meta, 'workspace') or '', math.max(number('answers') - now, 0),
  redis.call('HEXISTS', meta, 'goes_on'), number('takeovers')}
""")

OUTLIVE = _script("""
-- id, token of a worker that lost the session and is alive: a claim by another counts it as a death, before or after
if redis.call('EXISTS', meta) == 1 and redis.call('HGET', meta, 'outlived') ~= ARGV[2] and number('takeovers') >= 0 then
  redis.call('HSET', meta, 'outlived', ARGV[2])
  redis.call('HINCRBY', meta, 'takeovers', -1)
end
return {'ok'}
""")

RENEW = _script("""
-- id, token, lease in ms
if redis.call('HGET', meta, 'token') ~= ARGV[2] then return {'fenced'} end
hold(ARGV[1], ARGV[3])
return {'ok'}
""")

RELEASE = _script(f"""
-- id, token, mode: 'done', 'handed over' to a worker that continues the run, or 'retry' to open it later
local token = redis.call('HGET', meta, 'token')
if not token then return {{'ok'}} end -- it was released before, and the answer was lost
if token ~= ARGV[2] then return {{'fenced'}} end
local told_from = redis.call('HGET', meta, 'told_from')
if told_from then redis.call('XTRIM', events, 'MINID', told_from) end -- watchers begin with the last run
redis.call('HDEL', meta, 'token', 'until')
redis.call('ZREM', due, ARGV[1])
if ARGV[3] == 'done' then redis.call('HDEL', meta, 'goes_on', 'takeovers')
elseif ARGV[3] == 'handed over' then redis.call('HSET', meta, 'goes_on', 1) end
if ARGV[3] == 'retry' then want_worker(ARGV[1], now + {RETRY_OPEN_MS})
elseif ARGV[3] == 'handed over' or has_lines() then want_worker(ARGV[1], now) end
return {{'ok'}}
""")

APPEND = _script(f"""
-- id, token, number of the group, lines in the inbox of the chain or '', then changes, each of three parts
if redis.call('HGET', meta, 'token') ~= ARGV[2] then return {{'fenced'}} end
local batch = number('batch')
if batch == tonumber(ARGV[3]) then
  redis.call('HSET', meta, 'batch', ARGV[3]) -- written again for WAITAOF
  return {{'ok'}}
end
if batch + 1 ~= tonumber(ARGV[3]) then return {{'fenced'}} end -- the server has lost a group that it acknowledged
redis.call('HSET', meta, 'batch', ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', meta, 'waiting', ARGV[4]) end
local is_changed, told = false, nil
for i = 5, #ARGV, 3 do
  local what, one, other = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if what == 'row' then redis.call('XADD', journal, '*', 'r', one); is_changed = true
  elseif what == 'file' then redis.call('HSETNX', files, one, other)
  elseif what == 'read' then redis.call('XDEL', lines, one)
  elseif what == 'size' then redis.call('HSET', meta, 'size', one)
  elseif what == 'event' then
    told = redis.call('HINCRBY', meta, 'told', #one)
    local place = redis.call('XADD', events, '*', 'e', one, 'told', told)
    if other == 'init' then redis.call('HSET', meta, 'init', one)
    elseif other == 'run_started' then
      redis.call('HSET', meta, 'told_from', place, 'run_init', redis.call('HGET', meta, 'init') or '')
    elseif other == 'result' then redis.call('HDEL', meta, 'takeovers') end
  elseif redis.call('HEXISTS', ids, one) == 1 then redis.call('HSET', ids, one, other) end -- the status of a line
end
if is_changed then redis.call('ZADD', sessions, now, ARGV[1]) end
local is_over = told ~= nil
while is_over do
  local first = redis.call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
  is_over = told - first[2][4] > {MAX_EVENT_BYTES}
  if is_over then redis.call('XDEL', events, first[1]) end
end
return {{'ok'}}
""")

SUBMIT = _script(f"""
-- id, id of the row, the row, its type, 1 if it needs room, of a hello: for how many ms its sender answers questions
local known = redis.call('HGET', ids, ARGV[2])
if known then
  redis.call('HSET', ids, ARGV[2], known) -- written again for WAITAOF
  return {{'known', known}}
end
if redis.call('EXISTS', meta) == 0 then return {{'none'}} end
if ARGV[4] == 'hello' then
  redis.call('HSET', meta, 'answers', math.max(now + ARGV[6], number('answers')))
  if not is_held() then return {{'queued'}} end
end
if redis.call('XLEN', lines) >= {MAX_WAITING_ROWS} then return {{'full'}} end
if ARGV[5] == '1' then
  local room = tonumber(redis.call('HGET', meta, 'size') or {DEFAULT_SIZE}) - number('waiting')
  for _, entry in ipairs(redis.call('XRANGE', lines, '-', '+')) do
    if entry[2][4] == 'line' then room = room - 1 end
  end
  if room <= 0 then return {{'full'}} end
end
redis.call('XADD', lines, '*', 'j', ARGV[3], 'type', ARGV[4])
if ARGV[4] ~= 'hello' then redis.call('HSET', ids, ARGV[2], '{{"state":"queued"}}') end
want_worker(ARGV[1], is_held() and number('until') or now)
return {{'queued'}}
""")

SUMMARIZE = _script("""
-- id, the summary
if redis.call('EXISTS', meta) == 1 then redis.call('HSET', meta, 'summary', ARGV[2]) end
return {'ok'}
""")

DELETE = _script("""
-- id, '' or a number of ms: delete it only if it was not changed for so long, and no worker is wanted
if is_held() then return {'held'} end
if ARGV[2] ~= '' then
  local changed = tonumber(redis.call('ZSCORE', sessions, ARGV[1]) or '0')
  if changed > now - ARGV[2] or redis.call('ZSCORE', due, ARGV[1]) then return {'kept'} end
end
redis.call('DEL', meta, lines, journal, events, ids, files)
redis.call('ZREM', due, ARGV[1])
redis.call('ZREM', sessions, ARGV[1])
return {'ok'}
""")

DUE_NOW = _script(f"""
-- '', how many
local found = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, ARGV[2])
local ahead = redis.call('ZRANGEBYSCORE', due, now + {MAX_AHEAD_MS}, '+inf', 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ahead) do table.insert(found, id) end
return found
""")

OLD = _script("return redis.call('ZRANGEBYSCORE', sessions, '-inf', now - ARGV[2], 'LIMIT', 0, ARGV[3])")
