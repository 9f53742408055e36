"""The double itself: what it has seen, what it answers, and the listener."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, TypeAlias

import trio

from .cache import Account, PromptCache, reuse
from .connection import Asked, Connection
from .continuity import Conversations, Tail
from .flat import flatten
from .models import MODELS
from .playing import play
from .rules import Body, Fault, Issued, Policy, check, check_headers
from .steps import Block, Broken, Say, Status, Step
from .stream import Facts, complete, error_body

Script: TypeAlias = Sequence[Step] | Step | Callable[[Body, int], Step]
"""The answers: one after the other; the same to every request; or chosen from the body and how many were chosen."""


class RulesBroken(AssertionError):
    """Requests broke rules, or rules that were to be broken were not."""


@dataclass(slots=True, eq=False)
class Seen:
    """One request and what became of it. Names of headers are in lower case.

    ``number`` counts from 1 over the requests for messages. ``fault`` is the rule of the API that it broke, ``breach``
    what it broke beside those: I7, or a script that has no step left. ``reply`` are the blocks that it was answered
    with, with their ids.
    """

    number: int
    path: str
    headers: Mapping[str, str]
    body: Body = field(default_factory=dict)
    fault: Fault | None = None
    breach: str | None = None
    reply: tuple[Block, ...] = ()
    account: Account | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the body."""
        return list(self.body.get("messages", []))

    @property
    def complaints(self) -> list[str]:
        """What is wrong with the request, if anything."""
        return [c for c in (self.fault and self.fault.message, self.breach) if c]


class Double:
    """A Messages API on loopback, as seen by a test. ``serve`` makes one.

    ``requests`` are those for messages, ``lookups`` all others.
    """

    def __init__(
        self, script: Script, policy: Policy, tail: Tail | None, *, continuity: bool, keep: bool, lean: bool
    ) -> None:
        self.requests: list[Seen] = []
        self.lookups: list[Seen] = []
        self.open_connections = 0
        self.url = ""
        self._script = script
        self._waiting = list(script) if isinstance(script, Sequence) else []
        self._played = 0
        self._policy = policy
        self._tail = tail
        self._conversations = Conversations(tail)
        self._continuity = continuity
        self._cache = PromptCache()
        self._issued = Issued()
        self._keep = keep
        self._lean = lean
        self._expected: list[re.Pattern[str]] = []
        self._arrivals: dict[int, trio.Event] = {}
        self._connections: set[Connection] = set()

    # ---- for tests

    async def request(self, n: int) -> Seen:
        """Wait for the n-th request for messages, from 1."""
        if len(self.requests) < n:
            await self._arrivals.setdefault(n, trio.Event()).wait()
        return self.requests[n - 1]

    def add(self, *steps: Step) -> None:
        """Add steps to the end of a script that is a sequence."""
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
        """Expect so many requests to break the rule whose message the pattern is found in (I7 included)."""
        self._expected += [re.compile(pattern)] * times

    def expect_new_conversation(self) -> None:
        """Let a coming request begin a conversation: of another session, or of a child agent."""
        self._conversations.expect_new()

    def expect_withdrawal(self) -> None:
        """Let a coming request lack messages that the one before it had: after a refusal."""
        self._conversations.expect_withdrawal()

    def forget(self) -> None:
        """Forget the conversations, and what was announced of them: the next request begins one, as the first did."""
        self._conversations = Conversations(self._tail)

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

    @asynccontextmanager
    async def refusing(self) -> AsyncIterator[None]:
        """Listen no more for the duration of the block: connections are refused, and open ones are closed."""
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

    def answer(self, asked: Asked) -> Callable[[Connection], Awaitable[bool]]:
        """Decide what to answer to a request. Sync: nothing comes between two requests."""
        path = asked.path.split("?")[0]
        is_message = (asked.method, path) == ("POST", "/v1/messages")
        others = self.requests if is_message else self.lookups
        seen = Seen(len(others) + 1, path, asked.headers)
        others.append(seen)
        usage = {"input_tokens": 1}
        if not is_message:
            step = self._look_up(asked, seen)
        elif self._lean:
            step = self._next(seen)
        else:
            rules = partial(check, headers=seen.headers, issued=self._issued, policy=self._policy)
            seen.fault = self._read(asked, seen) or rules(seen.body)
            step = self._refusal(seen) if seen.fault else self._reply(seen, usage)
        step = self._completed(step, seen)
        if is_message and (arrived := self._arrivals.pop(seen.number, None)) is not None:
            arrived.set()
        facts = Facts(seen.number, str(seen.body.get("model")), usage)
        if not self._keep:
            seen.body = {}
        return partial(play, step, facts)

    def _read(self, asked: Asked, seen: Seen) -> Fault | None:
        """Fill in the body, unless it cannot be."""
        if asked.body is None:
            return Fault(413, "request_too_large", "Request exceeds the maximum allowed number of bytes.")
        try:
            body = json.loads(asked.body, parse_constant=_refuse_constant)
            # Half a surrogate pair is no text. Escaped it passes json, so the text is encoded once more.
            if rb"\ud" in asked.body.lower():
                json.dumps(body, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as e:
            return Fault(400, "invalid_request_error", f"The request body is not valid JSON: {e}")
        if not isinstance(body, dict):
            return Fault(400, "invalid_request_error", "body: Input should be a valid dictionary")
        seen.body = body
        return None

    def _reply(self, seen: Seen, usage: dict[str, int]) -> Step:
        """The next step to a request that keeps the rules, which is accounted for if a reply at least begins."""
        blocks = flatten(seen.body)
        if self._continuity:
            seen.breach = self._conversations.follow(seen.body, blocks)
        step = self._next(seen)
        if isinstance(step, Say) or (isinstance(step, Broken) and step.after is not None):
            account = seen.account = self._cache.account(seen.body, blocks)
            usage |= {
                "input_tokens": account.input,
                "cache_creation_input_tokens": account.cache_write,
                "cache_read_input_tokens": account.cache_read,
            }
        return step

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

    def _completed(self, step: Step, seen: Seen) -> Step:
        """The step with the ids and signatures that its blocks lack."""
        match step:
            case Say():
                seen.reply = complete(step.blocks, seen.number)
                self._issued.remember(seen.reply)
                return replace(step, blocks=seen.reply)
            case Broken():
                seen.reply = complete(step.reply.blocks, seen.number)
                return replace(step, reply=replace(step.reply, blocks=seen.reply))
            case _:
                return step

    def _look_up(self, asked: Asked, seen: Seen) -> Step:
        seen.fault = check_headers(seen.headers, self._policy)
        match asked.method, seen.path.strip("/").split("/"):
            case _ if seen.fault is not None:
                pass
            case "GET", ["v1", "models"]:
                return Status(200, {"data": [self._model(name) for name in MODELS], "has_more": False})
            case "GET", ["v1", "models", name] if name in MODELS:
                return Status(200, self._model(name))
            case "GET", ["v1", "models", name]:
                seen.fault = Fault(404, "not_found_error", f"model: {name}")
            case _:
                seen.fault = Fault(404, "not_found_error", "Not found")
        return self._refusal(seen)

    def _model(self, name: str) -> dict[str, Any]:
        most = {"max_input_tokens": self._policy.window, "max_tokens": MODELS[name].max_tokens}
        known = most if self._policy.window else {}
        return {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z", **known}

    def _refusal(self, seen: Seen) -> Step:
        assert seen.fault is not None
        return Status(seen.fault.status, error_body(seen.fault.kind, seen.fault.message, f"req_{seen.number:06d}"))

    # ---- listening

    async def run(self, nursery: trio.Nursery) -> None:
        """Listen, with all tasks in this nursery."""
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
        self.open_connections += 1
        connection = Connection(stream)
        self._connections.add(connection)
        try:
            await connection.serve(self.answer)
        finally:
            self._connections.discard(connection)
            self.open_connections -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@asynccontextmanager
async def serve(
    script: Script = (),
    *,
    policy: Policy | None = None,
    tail: Tail | None = None,
    continuity: bool = True,
    keep: bool = True,
    lean: bool = False,
) -> AsyncIterator[Double]:
    """A double that listens on loopback; ``double.url`` is where.

    ``tail`` and ``continuity`` are about I7 (see ``continuity``; ``continuity=False`` does not check it). Without
    ``keep`` the bodies of requests are forgotten, for long runs. ``lean`` is for benchmarks: nothing is parsed,
    checked or accounted for.

    At the end it raises ``RulesBroken`` if a request broke a rule and the test had not said so. An exception of the
    test's own is more important: it gets the complaints as a note.
    """
    double = Double(script, policy or Policy(), tail, continuity=continuity, keep=keep, lean=lean)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        await double.run(nursery)
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
