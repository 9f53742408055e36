"""The server of the double: its listener, its answers, and the requests that it received."""

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
from .connection import Connection, HttpRequest
from .continuity import Conversations, Tail
from .flat import flatten
from .models import MODELS
from .playing import play
from .rules import Body, Fault, Issued, Policy, check, check_headers
from .steps import Block, Broken, Say, Status, Step
from .stream import Facts, complete, error_body

Script: TypeAlias = Sequence[Step] | Step | Callable[[Body, int], Step]
"""The steps in order, one step for all requests, or a function of the body and the number of earlier steps."""


class RulesBroken(AssertionError):
    """Requests broke rules, or did not break rules that were expected to be broken."""


@dataclass(slots=True, eq=False)
class Seen:
    """A request. Header names are in lower case, and ``number`` counts from 1.

    ``fault`` is the broken rule of the API. ``breach`` is any other problem: a conversation that did not only grow (I7,
    see ``continuity``), or the end of the script. ``reply`` contains the blocks of the answer.
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
        """The problems of the request."""
        return [c for c in (self.fault and self.fault.message, self.breach) if c]


class Double:
    """A Messages API on loopback. It is opened by ``serve``, which explains the options.

    ``requests`` are the requests for messages; ``lookups`` are all others.
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
        """The number of steps of the script that were not played yet."""
        return len(self._waiting)

    @property
    def accounts(self) -> list[Account]:
        """The accounts of the answered requests, in order."""
        return [r.account for r in self.requests if r.account is not None]

    @property
    def reuse(self) -> float:
        """The share of the repeatable input that was read from the cache, from 0 to 1."""
        return reuse(self.accounts)

    def expect_fault(self, pattern: str, times: int = 1) -> None:
        """Expect requests to break the rule whose message matches."""
        self._expected += [re.compile(pattern)] * times

    def expect_new_conversation(self) -> None:
        """Let a coming request start a conversation: of another session, or of a child agent."""
        self._conversations.expect_new()

    def expect_withdrawal(self) -> None:
        """Let a coming request lack messages of the one before it, as after a refusal."""
        self._conversations.expect_withdrawal()

    def forget(self) -> None:
        """Forget the conversations, so that the next request starts one."""
        self._conversations = Conversations(self._tail)

    def check(self) -> None:
        """Raise ``RulesBroken`` for rules that were broken and not expected, or expected and not broken."""
        expected = [*self._expected]
        problems: list[str] = []
        for seen in (*self.requests, *self.lookups):
            for complaint in seen.complaints:
                if (match := next((e for e in expected if e.search(complaint)), None)) is not None:
                    expected.remove(match)
                else:
                    problems.append(f"{seen.path} request {seen.number}: {complaint}")
        problems += [f"no request broke the rule {e.pattern!r}, as was expected" for e in expected]
        if problems:
            raise RulesBroken("\n".join(problems))

    @asynccontextmanager
    async def refusing(self) -> AsyncIterator[None]:
        """Refuse connections for the duration of the block, and close the open ones."""
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

    def answer(self, http: HttpRequest) -> Callable[[Connection], Awaitable[bool]]:
        """Decide how to answer a request. There is no await, so that requests are handled one by one."""
        path = http.path.split("?")[0]
        is_message = (http.method, path) == ("POST", "/v1/messages")
        same_kind = self.requests if is_message else self.lookups
        same_kind.append(seen := Seen(len(same_kind) + 1, path, http.headers))
        usage = {"input_tokens": 1}
        if not is_message:
            step = self._look_up(http, seen)
        elif self._lean:
            step = self._next(seen)
        else:
            seen.fault = _read_body(http, seen) or check(
                seen.body, seen.headers, issued=self._issued, policy=self._policy
            )
            step = _refusal(seen) if seen.fault else self._reply(seen, usage)
        step = self._completed(step, seen)
        if is_message and (arrived := self._arrivals.pop(seen.number, None)) is not None:
            arrived.set()
        facts = Facts(seen.number, str(seen.body.get("model")), usage)
        if not self._keep:
            seen.body = {}
        return partial(play, step, facts)

    def _reply(self, seen: Seen, usage: dict[str, int]) -> Step:
        """Return the next step for a valid request. Account for the request if its reply starts."""
        blocks = flatten(seen.body)
        if self._continuity:
            seen.breach = self._conversations.follow(seen.body, blocks)
        step = self._next(seen)
        if isinstance(step, Say) or (isinstance(step, Broken) and step.after is not None):
            account = seen.account = self._cache.account(seen.body, blocks)
            usage["input_tokens"] = account.input
            usage["cache_creation_input_tokens"] = account.cache_write
            usage["cache_read_input_tokens"] = account.cache_read
        return step

    def _next(self, seen: Seen) -> Step:
        n, self._played = self._played, self._played + 1
        if not isinstance(self._script, Sequence):
            try:
                return self._script(seen.body, n) if callable(self._script) else self._script
            except Exception as e:  # noqa: BLE001 - an error of the test, which is reported at the end
                seen.breach = f"the script raised {e!r}"
        elif self._waiting:
            return self._waiting.pop(0)
        else:
            seen.breach = "the script has no step left for this request"
        return Status(500, message=seen.breach)

    def _completed(self, step: Step, seen: Seen) -> Step:
        """Return the step with the missing ids and signatures of its blocks."""
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

    def _look_up(self, http: HttpRequest, seen: Seen) -> Step:
        if self._policy.lookup is not None:
            return self._policy.lookup(seen.path)
        seen.fault = check_headers(seen.headers, self._policy)
        match http.method, seen.path.strip("/").split("/"):
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
        return _refusal(seen)

    def _model(self, name: str) -> dict[str, Any]:
        limits = {"max_input_tokens": self._policy.window, "max_tokens": MODELS[name].max_tokens}
        about = {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}
        return {**about, **(limits if self._policy.window else {})}

    # ---- listening

    async def run(self, nursery: trio.Nursery) -> None:
        """Listen, with all tasks in this nursery."""
        self._nursery = nursery
        self.url = f"http://127.0.0.1:{await nursery.start(self._listen, 0)}"

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


def _read_body(http: HttpRequest, seen: Seen) -> Fault | None:
    """Set the body of a request. Return a fault if it cannot be parsed."""
    if http.body is None:
        return Fault(413, "request_too_large", "Request exceeds the maximum allowed number of bytes.")
    try:
        body = json.loads(http.body, parse_constant=_refuse_constant)
        if rb"\ud" in http.body.lower():  # json accepts an escaped lone surrogate, which UTF-8 cannot encode
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as e:
        return Fault(400, "invalid_request_error", f"The request body is not valid JSON: {e}")
    if not isinstance(body, dict):
        return Fault(400, "invalid_request_error", "body: Input should be a valid dictionary")
    seen.body = body
    return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _refusal(seen: Seen) -> Step:
    assert seen.fault is not None
    return Status(seen.fault.status, error_body(seen.fault.kind, seen.fault.message, f"req_{seen.number:06d}"))


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
    """Serve a double on loopback, at ``double.url``, for the duration of the block.

    ``continuity``: check that each conversation only grows (I7). ``tail`` returns how many blocks at the end of a
    request may be missing from the next one. ``keep``: store the bodies of requests. ``lean`` is for benchmarks:
    requests are not parsed, checked or accounted for.

    At the end of the block, raise ``RulesBroken`` if a request broke a rule that the test did not expect to be broken.
    If the block raises an exception, that one is raised, with the complaints as a note.
    """
    double = Double(script, policy or Policy(), tail, continuity=continuity, keep=keep, lean=lean)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        await double.run(nursery)
        try:
            yield double
        except Exception as e:  # noqa: BLE001 - raised below, outside of the group of the nursery
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
