"""One double and one client for many sessions: building a client takes longer than a whole scenario."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from double import Double, Policy, Step, serve, text
from trio.testing import MockClock

from chain.messages import user_text
from chain.model import Reply, Request, Window
from chain.providers.anthropic.client import AnthropicModel

from .sessions import Session, open_session
from .wire import model_at

FINAL = text("The final answer.", text_chunk=4)

THINKING = {"type": "adaptive"}


BenchScript = list[Step] | Callable[[Mapping[str, Any]], Step]


def _may_be(request: Request, body: Mapping[str, Any]) -> bool:
    """Whether this may be the body of a request: it begins and ends with the same, and has as many blocks."""
    blocks = [block for message in body["messages"] for block in _blocks(message["content"])]
    count = sum(len(message.blocks) for message in request.messages) + len(request.tail)
    ends = [block.get("text") for block in blocks[len(blocks) - len(request.tail) :]]
    return (blocks[0].get("text"), len(blocks), ends) == (request.messages[0].text, count, list(request.tail))


def _blocks(content: Any) -> Any:
    return [{"text": content}] if isinstance(content, str) else content


@dataclass
class Kept:
    """The adapter, whose client outlives the sessions: building one takes longer than a whole scenario."""

    inner: AnthropicModel

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def window(self) -> Window | None:
        return self.inner.window

    async def reply(self, request: Request, on_delta: Any) -> Reply:
        return await self.inner.reply(request, on_delta)

    async def prepare(self) -> None:
        await self.inner.prepare()

    async def aclose(self) -> None:
        """Not yet."""


class Bench:
    """One double and one client for many sessions, one after the other."""

    def __init__(self, double: Double, model: AnthropicModel) -> None:
        self.double = double
        self.model = Kept(model)
        self._session: Session | None = None
        self._script: BenchScript = []

    @property
    def session(self) -> Session:
        """The session that is open."""
        assert self._session is not None
        return self._session

    def answer(self, body: Mapping[str, Any]) -> Step:
        """The next step of the script; a list that is at its end goes on with final answers."""
        if callable(self._script):
            return self._script(body)
        return self._script.pop(0) if self._script else FINAL

    def tail(self, body: Mapping[str, Any]) -> int | None:
        """How many blocks of the request that is under way are its tail.

        Agents ask at the same time, so it is the latest request that this may be the body of.
        """
        if self._session is None:
            return None
        made = (r for r in reversed(self.session.model.requests) if _may_be(r, body))
        return next((len(request.tail) for request in made), None)

    @asynccontextmanager
    async def open(self, script: BenchScript, **options: Any) -> AsyncIterator[Session]:
        """A session with this script; ``options`` are those of ``open_session``."""
        self.double.forget()
        self._script = list(script) if isinstance(script, list) else script
        async with open_session(self.model, **options) as session:
            self._session = session
            yield session


HANDLER = """
config: {max_tokens: 500}
messages:
  - {role: user, content: "USER INTERRUPTION: ${message}"}
  - {role: system, content: "Deal with ${count} lines at ${point}, ${remaining} calls left."}
"""


@asynccontextmanager
async def bench(
    clock: MockClock, *, at_once: int = 1, policy: Policy | None = None, continuity: bool = True, **parameters: Any
) -> AsyncIterator[Bench]:
    """A bench whose sessions make so many requests at the same time, and keep no more connections.

    ``policy`` and ``continuity`` are the double's.
    """
    found: list[Bench] = []
    async with serve(
        lambda body, n: found[0].answer(body) if found else FINAL,
        tail=lambda body: found[0].tail(body) if found else None,
        policy=policy,
        continuity=continuity,
    ) as double:
        adapter = model_at(double.url, thinking=THINKING, **parameters)
        await adapter.reply(Request("", (user_text("Hello"),)), lambda delta: None)  # while the clock stands still
        found.append(Bench(double, adapter))
        clock.autojump_threshold = 0
        yield found[0]
        assert double.open_connections <= at_once
        await adapter.aclose()
