"""The scripts that change sessions in Redis: each is one step, which is done whole or not at all.

Whoever writes a session holds it by a token, until a time on the server's clock: no other clock counts. What the holder
changes is changed only as long as the token is its own, so one that was merely slow can do no harm.

All keys have the tag ``{chain}``, so that they are in one hash slot. Those of a session::

    meta      a hash: workspace, size (of the inbox), token, until, batch, waiting (lines that wait in the journal),
              answers (until when somebody answers questions), is_worker (whether one holds it), goes_on (whether a run
              that is open is to be gone on with), takeovers (from workers that died, since a run came to its end),
              outlived (the token of the last worker that lost it and said that it lives),
              told_from (the event with which the last run began), init and run_init (the events that tell who runs it
              now, and who began that run), told (bytes of all events so far), summary (of the journal up to a record)
    lines     a stream: what was sent and the holder has not read yet
    journal   a stream: the records, as the rows of a file
    events    a stream: the latest events, for those who watch, each with the bytes told when it had been
    ids       a hash: what became of the lines that were sent, by their ids
    files     a hash: what is kept beside the journal, by digest

and those of all: ``sessions``, by the time of the last change; ``due``, by the time from which a worker is wanted;
``wake``, a list on which workers wait.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

TAG = "{chain}"
SESSIONS, DUE, WAKE = f"{TAG}:sessions", f"{TAG}:due", f"{TAG}:wake"

FORMAT = 1
"""Of the keys. Sessions of a later one are not touched."""
FAR_MS = 60_000
"""What is due later than that was put there before the server's clock was set back."""
MAX_WAITING_ROWS = 1_000
"""Rows that wait to be read, those among them that need no room in the inbox, such as stops."""
MAX_EVENT_BYTES = 2 * 1024 * 1024
"""Bytes of the latest events of a session that are there for whoever comes to watch."""

_PARTS = ("meta", "lines", "journal", "events", "ids", "files")


def key(id: str, part: str) -> str:
    """The key of a part of a session."""
    return f"{TAG}:{id}:{part}"


@lru_cache(maxsize=1_000)
def keys(id: str) -> tuple[str, ...]:
    """The keys that a script of a session gets: its own, then those of all."""
    return (*(key(id, part) for part in _PARTS), SESSIONS, DUE, WAKE)


@dataclass(frozen=True)
class LuaScript:
    """A script, and its name in the server's cache."""

    body: str

    @cached_property
    def text(self) -> str:
        """All of it."""
        return f"{_PRELUDE}\n{self.body}"

    @cached_property
    def sha(self) -> str:
        """Its digest."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_PRELUDE = f"""
local meta, lines, journal, events, ids, files, sessions, due, wake = unpack(KEYS)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function held_until()
  local of = redis.call('HMGET', meta, 'until', 'lease')
  local at, longest = tonumber(of[1] or '0'), now + (of[2] or 0)
  if of[2] and at > longest then -- the clock was set back, as by a failover: it is held for one lease from now
    redis.call('HSET', meta, 'until', longest)
    return longest
  end
  return at
end
local function is_due(id)
  local at = tonumber(redis.call('ZSCORE', due, id) or '-1')
  return at >= 0 and (at <= now or at > now + {FAR_MS})
end
local function has_lines()
  return redis.call('XLEN', lines) > 0 or tonumber(redis.call('HGET', meta, 'waiting') or '0') > 0
end
local function want_worker(id, at)
  if redis.call('ZADD', due, 'LT', 'CH', at, id) == 1 and at <= now then
    redis.call('LPUSH', wake, id); redis.call('LTRIM', wake, 0, 99)
  end
end
local function is_newer(format) return tonumber(format or redis.call('HGET', meta, 'format') or '0') > {FORMAT} end
"""

CREATE = LuaScript(f"""
-- id, workspace
if redis.call('EXISTS', meta) == 1 then return {{'there'}} end
redis.call('HSET', meta, 'workspace', ARGV[2], 'format', {FORMAT})
redis.call('ZADD', sessions, now, ARGV[1])
return {{'ok'}}
""")

CLAIM = LuaScript("""
-- id, token, lease in ms, whether a worker claims it, size of the inbox
if redis.call('EXISTS', meta) == 0 then redis.call('ZREM', due, ARGV[1]); return {'none'} end
if is_newer() then return {'newer'} end -- it is for workers of that version
if redis.call('HGET', meta, 'token') ~= ARGV[2] then -- else it was asked before, and the answer was lost
  if held_until() > now then return {'held'} end
  if ARGV[4] == '1' and not is_due(ARGV[1]) then return {'held'} end
  if redis.call('HEXISTS', meta, 'token') == 1 and redis.call('HGET', meta, 'is_worker') == '1' then
    redis.call('HSET', meta, 'goes_on', 1)
    redis.call('HINCRBY', meta, 'takeovers', 1)
  end
end
redis.call('HSET', meta, 'token', ARGV[2], 'until', now + ARGV[3], 'lease', ARGV[3], 'batch', 0, 'size', ARGV[5],
  'is_worker', ARGV[4])
if ARGV[4] == '1' or has_lines() then redis.call('ZADD', due, now + ARGV[3], ARGV[1])
else redis.call('ZREM', due, ARGV[1]) end
local answers = tonumber(redis.call('HGET', meta, 'answers') or '0')
return {'ok', redis.call('HGET', meta, 'workspace') or '', math.max(answers - now, 0),
  redis.call('HEXISTS', meta, 'goes_on'), tonumber(redis.call('HGET', meta, 'takeovers') or '0')}
""")

OUTLIVE = LuaScript("""
-- id, token; from a worker that lost the session with this token and lives: a claim by another counts it as a death,
-- whether before or after this
if redis.call('EXISTS', meta) == 1 and redis.call('HGET', meta, 'outlived') ~= ARGV[2]
  and tonumber(redis.call('HGET', meta, 'takeovers') or '0') >= 0 then
  redis.call('HSET', meta, 'outlived', ARGV[2])
  redis.call('HINCRBY', meta, 'takeovers', -1)
end
return {'ok'}
""")

RENEW = LuaScript("""
-- id, token, lease in ms, whether a worker holds it
if redis.call('HGET', meta, 'token') ~= ARGV[2] then return {'fenced'} end
redis.call('HSET', meta, 'until', now + ARGV[3])
if ARGV[4] == '1' or has_lines() then redis.call('ZADD', due, now + ARGV[3], ARGV[1])
else redis.call('ZREM', due, ARGV[1]) end
return {'ok'}
""")

RELEASE = LuaScript("""
-- id, token, how: 'idle' only if no line is left to read, 'over' in any case, 'handed' to a worker that goes on at
-- once, else in how many ms a worker is wanted
local token = redis.call('HGET', meta, 'token')
if not token then -- it was asked before, and the answer was lost
  -- So that WAITAOF waits, which looks at what this connection changed. Somebody may have deleted it meanwhile.
  if redis.call('EXISTS', meta) == 1 then redis.call('HSET', meta, 'batch', 0) end
  return {'ok'}
end
if token ~= ARGV[2] then return {'fenced'} end
local left = redis.call('XLEN', lines)
if ARGV[3] == 'idle' and left > 0 then return {'more'} end
local told_from = redis.call('HGET', meta, 'told_from')
if told_from then redis.call('XTRIM', events, 'MINID', told_from) end -- who comes to watch begins with the last run
redis.call('HDEL', meta, 'token', 'until')
redis.call('ZREM', due, ARGV[1])
local is_done = ARGV[3] == 'idle' or ARGV[3] == 'over'
if is_done then redis.call('HDEL', meta, 'goes_on', 'takeovers') end
if ARGV[3] == 'handed' then redis.call('HSET', meta, 'goes_on', 1) end
if left > 0 or not is_done or (ARGV[3] == 'over' and has_lines()) then
  want_worker(ARGV[1], now + (tonumber(ARGV[3]) or 0))
end
return {'ok'}
""")

APPEND = LuaScript(f"""
-- id, token, number of the group, lines that wait in the journal or '', then what to do, each in three parts
if redis.call('HGET', meta, 'token') ~= ARGV[2] then return {{'fenced'}} end
local batch = tonumber(redis.call('HGET', meta, 'batch') or '0')
if batch == tonumber(ARGV[3]) then
  redis.call('HSET', meta, 'batch', ARGV[3]) -- as above, for WAITAOF
  return {{'ok'}}
end
if batch + 1 ~= tonumber(ARGV[3]) then return {{'fenced'}} end -- a group is missing, which was acknowledged
redis.call('HSET', meta, 'batch', ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', meta, 'waiting', ARGV[4]) end
local is_changed, told = false, nil
for i = 5, #ARGV, 3 do
  local what, one, other = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if what == 'row' then redis.call('XADD', journal, '*', 'r', one); is_changed = true
  elseif what == 'keep' then redis.call('HSETNX', files, one, other)
  elseif what == 'read' then redis.call('XDEL', lines, one)
  elseif what == 'size' then redis.call('HSET', meta, 'size', one)
  elseif what == 'ended' then redis.call('HDEL', meta, 'takeovers')
  elseif what == 'told' then
    told = redis.call('HINCRBY', meta, 'told', #one)
    local place = redis.call('XADD', events, '*', 'e', one, 'told', told)
    if other == 'init' then redis.call('HSET', meta, 'init', one)
    elseif other == 'run_started' then
      redis.call('HSET', meta, 'told_from', place, 'run_init', redis.call('HGET', meta, 'init') or '')
    end
  elseif redis.call('HEXISTS', ids, one) == 1 then redis.call('HSET', ids, one, other) end
end
if is_changed then redis.call('ZADD', sessions, now, ARGV[1]) end
local is_over = told ~= nil
while is_over do
  local first = redis.call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
  is_over = told - (first[2][4] or 0) > {MAX_EVENT_BYTES}
  if is_over then redis.call('XDEL', events, first[1]) end
end
return {{'ok'}}
""")

SUBMIT = LuaScript(f"""
-- id, id of the line, its row, whether it needs room, size of an inbox of which it is not known,
-- for how many ms its sender answers questions, if that is what it says, its type
local known = redis.call('HGET', ids, ARGV[2])
if known then
  redis.call('HSET', ids, ARGV[2], known) -- as above, for WAITAOF
  return {{'known', known}}
end
local of = redis.call('HMGET', meta, 'format', 'size', 'waiting')
if not of[1] then return {{'none'}} end
if is_newer(of[1]) then return {{'newer'}} end
local until_ = held_until()
if ARGV[6] ~= '' then
  local answers = math.max(now + ARGV[6], tonumber(redis.call('HGET', meta, 'answers') or '0'))
  redis.call('HSET', meta, 'answers', answers)
  if until_ <= now then return {{'queued'}} end
end
local unread = redis.call('XLEN', lines)
if unread >= {MAX_WAITING_ROWS} then return {{'full'}} end
if ARGV[4] == '1' then
  local room = tonumber(of[2] or ARGV[5]) - (of[3] or 0)
  if unread >= room then
    for _, entry in ipairs(redis.call('XRANGE', lines, '-', '+')) do
      if entry[2][4] == 'line' then room = room - 1 end
    end
    if room <= 0 then return {{'full'}} end
  end
end
redis.call('XADD', lines, '*', 'j', ARGV[3], 'type', ARGV[7])
if ARGV[6] == '' then redis.call('HSET', ids, ARGV[2], '{{"state":"queued"}}') end -- nobody asks that of a hello
want_worker(ARGV[1], math.max(until_, now))
return {{'queued'}}
""")

SUMMARIZE = LuaScript("""
-- id, the summary
if redis.call('EXISTS', meta) == 1 then redis.call('HSET', meta, 'summary', ARGV[2]) end
return {'ok'}
""")

DELETE = LuaScript("""
-- id, whether that is wanted only of one that nobody has changed since so many ms, or ''
if held_until() > now then return {'held'} end
if ARGV[2] ~= '' then
  local changed = tonumber(redis.call('ZSCORE', sessions, ARGV[1]) or '0')
  if changed > now - ARGV[2] or redis.call('ZSCORE', due, ARGV[1]) or is_newer() then return {'kept'} end
end
redis.call('DEL', meta, lines, journal, events, ids, files)
redis.call('ZREM', due, ARGV[1])
return {redis.call('ZREM', sessions, ARGV[1]) == 1 and 'ok' or 'none'}
""")

DUE_NOW = LuaScript(f"""
-- '', the first, how many
local found = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', ARGV[2], ARGV[3])
local left = math.max(ARGV[3] - #found - 1, 0)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '(' .. now + {FAR_MS}, '+inf', 'LIMIT', 0, left)) do
  table.insert(found, id)
end
return found
""")

OLD = LuaScript("return redis.call('ZRANGEBYSCORE', sessions, '-inf', now - ARGV[2], 'LIMIT', 0, ARGV[3])")
