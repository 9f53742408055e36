"""The double itself: what it has seen, what it answers, and the listener."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias

import trio

from . import acts as act
from .cache import Account, PromptCache, reuse
from .connection import Asked, Connection
from .continuity import Conversations, Tail
from .flat import Flat, flatten
from .rules import Body, Fault, Issued, Policy, check, check_count, check_headers
from .seen import Headers, Seen
from .steps import Cut, ErrorEvent, Garbage, Html, Raw, Reset, Say, Stall, Status, Step

Script: TypeAlias = Sequence[Step] | Step | Callable[[Body, int], Step]
"""The answers: one after the other; the same to every request; or chosen from the body and how many were chosen."""

MAX_BODY = 32 * 1024 * 1024
"""The longest request that the service takes: https://docs.anthropic.com/en/api/errors."""

_STREAMED = re.compile(rb'"stream":\s*true')


class RulesBroken(AssertionError):
    """Requests broke rules, or rules that were to be broken were not."""


class Double:
    """A Messages API on loopback, as seen by a test. ``serve`` makes one.

    ``requests`` are those for messages, ``lookups`` all others.
    """

    def __init__(
        self,
        script: Script,
        *,
        policy: Policy,
        tail: Tail,
        continuity: bool,
        cache: PromptCache,
        max_body: int,
        keep: bool,
        lean: bool,
    ) -> None:
        self.requests: list[Seen] = []
        self.lookups: list[Seen] = []
        self.open_connections = 0
        self.connections_made = 0
        self.url = ""
        self._script = script
        self._waiting = list(script) if isinstance(script, Sequence) else []
        self._played = 0
        self._policy = policy
        self._tail = tail
        self._conversations = Conversations(tail)
        self._continuity = continuity
        self._cache = cache
        self._issued = Issued()
        self._keep = keep
        self._lean = lean
        self._max_body = max_body
        self._expected: list[re.Pattern[str]] = []
        self._arrivals: dict[int, trio.Event] = {}
        self._connections: set[Connection] = set()
        self._listening = trio.CancelScope()
        self._closed = trio.Event()

    # ---- for tests

    async def request(self, n: int) -> Seen:
        """The n-th request for messages, from 1; waits until it has come."""
        if len(self.requests) < n:
            await self._arrivals.setdefault(n, trio.Event()).wait()
        return self.requests[n - 1]

    def add(self, *steps: Step) -> None:
        """More steps at the end of a script that is a sequence."""
        if not isinstance(self._script, Sequence):
            raise TypeError("only a script that is a sequence can be added to")
        self._waiting += steps

    @property
    def unplayed(self) -> int:
        """How many steps of the sequence are left."""
        return len(self._waiting)

    @property
    def accounts(self) -> list[Account]:
        """What the answered requests cost, in order."""
        return [r.account for r in self.requests if r.account is not None]

    @property
    def reuse(self) -> float:
        """The part of the repeatable input that was read from the cache."""
        return reuse(self.accounts)

    def expect_fault(self, pattern: str, times: int = 1) -> None:
        """So many requests are to break the rule whose message the pattern is found in (I7 included)."""
        self._expected += [re.compile(pattern)] * times

    def expect_new_conversation(self, times: int = 1) -> None:
        """So many coming requests may begin a conversation: of another session, or of a child agent."""
        self._conversations.expect_new(times)

    def expect_withdrawal(self) -> None:
        """A coming request may lack messages that the one before it had: after a refusal."""
        self._conversations.expect_withdrawal()

    def expect_new_run(self) -> None:
        """A coming request may have another system prompt and other tools."""
        self._conversations.expect_new_run()

    def instead(self, *steps: Step) -> None:
        """These steps instead of what is left of a sequence."""
        self._waiting.clear()
        self.add(*steps)

    def forget(self) -> None:
        """Forget the conversations, and what was announced of them: the next request begins one, as the first did."""
        self._conversations = Conversations(self._tail)

    def issue(self, *blocks: Mapping[str, Any]) -> None:
        """Take these blocks as said before: for conversations that did not begin with this double."""
        self._issued.remember(blocks)

    def check(self) -> None:
        """Raise ``RulesBroken`` for everything that was broken and not expected, or expected and not broken."""
        expected = [*self._expected]
        problems: list[str] = []
        for seen in (*self.requests, *self.lookups):
            for complaint in seen.complaints:
                met = next((e for e in expected if e.search(complaint)), None)
                if met is None:
                    problems.append(f"{seen.path} request {seen.number}: {complaint}")
                else:
                    expected.remove(met)
        problems += [f"no request broke the rule {e.pattern!r}, as was expected" for e in expected]
        if problems:
            raise RulesBroken("\n".join(problems))

    def report(self) -> dict[str, Any]:
        """Counts, for a double in a process of its own."""
        accounts = self.accounts
        return {
            "requests": len(self.requests),
            "connections": self.connections_made,
            "complaints": [c for r in self.requests for c in r.complaints],
            "cache_read": sum(a.cache_read for a in accounts),
            "cache_write": sum(a.cache_write for a in accounts),
            "input": sum(a.input for a in accounts),
            "repeatable": sum(a.repeatable for a in accounts),
            "reuse": self.reuse,
        }

    @asynccontextmanager
    async def refusing(self) -> AsyncIterator[None]:
        """Meanwhile nobody listens: connections are refused, and those that were open are closed."""
        port = int(self.url.rsplit(":", 1)[1])
        self._listening.cancel()
        await self._closed.wait()
        for connection in [*self._connections]:
            await connection.stream.aclose()
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self._nursery.start(self._listen, port)

    # ---- answering

    def answer(self, asked: Asked, connection: int) -> tuple[Iterable[act.Act], Callable[[bool], None]]:
        """What to do for a request. Sync: nothing comes between two requests."""
        path = asked.path.split("?")[0]
        seen = Seen(len(self.requests) + 1, path, Headers(asked.headers), {}, connection)
        if (asked.method, path) == ("POST", "/v1/messages"):
            self.requests.append(seen)
            done = self._messages(seen, asked)
            if (arrived := self._arrivals.pop(seen.number, None)) is not None:
                arrived.set()
        else:
            seen.number = len(self.lookups) + 1
            self.lookups.append(seen)
            done = self._lookup(seen, asked)
        if not self._keep:
            seen.body = {}

        def tell(finished: bool) -> None:
            complete = finished or isinstance(seen.step, Reset | Cut | Raw)
            (seen.finished if complete else seen.disconnected).set()

        return done, tell

    def _messages(self, seen: Seen, asked: Asked) -> Iterable[act.Act]:
        if self._lean and asked.body is not None:
            return self._play(seen, act.Facts(seen.number, _STREAMED.search(asked.body) is not None, "", {}))
        seen.fault = self._parse(seen, asked) or check(
            seen.body, seen.headers, issued=self._issued, policy=self._policy
        )
        if seen.fault is not None:
            return self._refusal(seen.fault, seen)
        blocks = flatten(seen.body)
        if self._continuity:
            seen.breach = self._conversations.follow(seen.body, blocks)
        facts = act.Facts(seen.number, seen.body.get("stream") is True, seen.body["model"], {})
        return self._play(seen, facts, blocks)

    def _play(self, seen: Seen, facts: act.Facts, blocks: list[Flat] | None = None) -> Iterable[act.Act]:
        step = seen.step = self._next(seen)
        reply = _reply(step)
        if reply is not None and blocks is not None:
            account = seen.account = self._cache.account(seen.body, blocks)
            usage = {
                "input_tokens": account.input,
                "cache_creation_input_tokens": account.cache_write,
                "cache_read_input_tokens": account.cache_read,
            }
            facts = replace(facts, usage=usage)
        elif not facts.usage:
            facts = replace(facts, usage={"input_tokens": 1})
        match step:
            case Say():
                step = replace(step, blocks=act.complete(step.blocks, seen.number))
                seen.reply = step.blocks
                self._issued.remember(step.blocks)
            case ErrorEvent() | Reset() | Cut() | Stall() | Garbage():
                seen.reply = act.complete(step.reply.blocks, seen.number)
                step = replace(step, reply=replace(step.reply, blocks=seen.reply))
                if isinstance(step, Garbage) and step.kind == "unknown_event":
                    self._issued.remember(seen.reply)
            case Status() | Html() | Raw():
                pass
        return act.acts(step, facts)

    def _next(self, seen: Seen) -> Step:
        n, self._played = self._played, self._played + 1
        if callable(self._script):
            try:
                return self._script(seen.body, n)
            except Exception as e:  # noqa: BLE001 - a test's own code: its mistake is told at the end, with the rest
                seen.breach = f"the script raised {e!r}"
                return Status(500, message=seen.breach)
        if not isinstance(self._script, Sequence):
            return self._script
        if not self._waiting:
            seen.breach = "the script has no step left for this request"
            return Status(500, message=seen.breach)
        return self._waiting.pop(0)

    def _lookup(self, seen: Seen, asked: Asked) -> Iterable[act.Act]:
        match asked.method, seen.path.strip("/").split("/"):
            case "GET", ["double", "report"]:
                return _ok(self.report(), seen)
            case "POST", ["v1", "messages", "count_tokens"]:
                seen.fault = self._parse(seen, asked) or check_count(seen.body, seen.headers, policy=self._policy)
                if seen.fault is None:
                    return _ok({"input_tokens": PromptCache().account(seen.body).total}, seen)
            case "GET", ["v1", "models"]:
                seen.fault = check_headers(seen.headers, policy=self._policy)
                if seen.fault is None:
                    return _ok(_page([*self._policy.models], self._policy.window), seen)
            case "GET", ["v1", "models", name]:
                seen.fault = check_headers(seen.headers, policy=self._policy)
                if seen.fault is None and name in self._policy.models:
                    return _ok(_model(name, self._policy.window), seen)
                seen.fault = seen.fault or Fault(404, "not_found_error", f"model: {name}")
            case _:
                seen.fault = Fault(404, "not_found_error", "Not found")
        return self._refusal(seen.fault, seen)

    def _parse(self, seen: Seen, asked: Asked) -> Fault | None:
        """Fill in the body, unless it cannot be."""
        if fault := check_headers(seen.headers, policy=self._policy):
            return fault
        if asked.body is None:
            return Fault(413, "request_too_large", "Request exceeds the maximum allowed number of bytes.")
        try:
            body = json.loads(asked.body, parse_constant=_no_constant)
            # Half a surrogate pair is no text. Escaped it passes json, so it is looked for where one may be.
            if rb"\ud" in asked.body.lower():
                json.dumps(body, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as e:
            return Fault(400, "invalid_request_error", f"The request body is not valid JSON: {e}")
        if not isinstance(body, dict):
            return Fault(400, "invalid_request_error", "body: Input should be a valid dictionary")
        seen.body = body
        return None

    def _refusal(self, fault: Fault, seen: Seen) -> Iterable[act.Act]:
        facts = act.Facts(seen.number, False, "", {})
        return act.acts(Status(fault.status, fault.body(facts.request_id)), facts)

    # ---- listening

    async def _run(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        port = await nursery.start(self._listen, 0)
        self.url = f"http://127.0.0.1:{port}"

    async def _listen(self, port: int, task_status: trio.TaskStatus[int]) -> None:
        self._listening, self._closed = trio.CancelScope(), trio.Event()
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        with self._listening:
            task_status.started(listeners[0].socket.getsockname()[1])
            await trio.serve_listeners(self._connect, listeners, handler_nursery=self._nursery)
        self._closed.set()

    async def _connect(self, stream: trio.SocketStream) -> None:
        self.connections_made += 1
        self.open_connections += 1
        connection = Connection(stream, self.connections_made, self._max_body)
        self._connections.add(connection)
        try:
            await connection.serve(self.answer)
        finally:
            self._connections.discard(connection)
            self.open_connections -= 1


def _reply(step: Step) -> Say | None:
    """The reply that the step at least begins, so that the service has read the request."""
    match step:
        case Say():
            return step
        case ErrorEvent() | Garbage():
            return step.reply
        case Reset() | Cut() | Stall():
            return None if step.after is None else step.reply
        case Status() | Html() | Raw():
            return None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _ok(body: Mapping[str, Any], seen: Seen) -> Iterable[act.Act]:
    return act.acts(Status(200, body), act.Facts(seen.number, False, "", {}))


def _page(names: list[str], window: int) -> dict[str, Any]:
    return {"data": [_model(n, window) for n in names], "has_more": False, "first_id": names[0], "last_id": names[-1]}


def _model(name: str, window: int) -> dict[str, Any]:
    known = {"max_input_tokens": window} if window else {}
    return {
        "type": "model",
        "id": name,
        "display_name": name.replace("-", " ").title(),
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
        **known,
    }


@asynccontextmanager
async def serve(
    script: Script = (),
    *,
    policy: Policy | None = None,
    tail: Tail = None,
    continuity: bool = True,
    cache: PromptCache | None = None,
    max_body: int = MAX_BODY,
    keep: bool = True,
    lean: bool = False,
) -> AsyncIterator[Double]:
    """A double that listens on loopback; ``double.url`` is where.

    ``tail`` and ``continuity`` are about I7 (see ``continuity``; ``continuity=False`` does not check it). Without
    ``keep`` the bodies of requests are forgotten, for long runs. ``lean`` is for benchmarks: nothing is parsed,
    checked, accounted for or kept.

    At the end it raises ``RulesBroken`` if a request broke a rule and the test had not said so. An exception of the
    test's own is more important: it gets the complaints as a note.
    """
    double = Double(
        script,
        policy=policy or Policy(),
        tail=tail,
        continuity=continuity,
        cache=cache or PromptCache(),
        max_body=max_body,
        keep=keep and not lean,
        lean=lean,
    )
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        await double._run(nursery)
        # The test's exception leaves as it is, not in the nursery's group: tests catch what they raised.
        try:
            yield double
        except Exception as e:  # noqa: BLE001 - raised again below
            failure = e
        nursery.cancel_scope.cancel()
    try:
        double.check()
    except RulesBroken as broken:
        if failure is None:
            raise
        failure.add_note(f"the double says: {broken}")
    if failure is not None:
        raise failure
