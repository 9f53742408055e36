"""One double and one client for many sessions, since building a client takes longer than a session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
from double import Double, Policy, Step, serve, text
from trio.testing import MockClock

from chain.messages import user_text
from chain.model import Request
from chain.providers.anthropic.client import AnthropicModel

from .sessions import Session, open_session
from .wire import model_at

FINAL = text("The final answer.", text_chunk=4)

THINKING = {"type": "adaptive"}


BenchScript = list[Step] | Callable[[Mapping[str, Any]], Step]


def _may_be(request: Request, body: Mapping[str, Any]) -> bool:
    """Return whether this may be the body of a request: its start, its end and the number of blocks are the same."""
    blocks = [block for message in body["messages"] for block in _blocks(message["content"])]
    count = sum(len(message.blocks) for message in request.messages) + len(request.tail)
    ends = [block.get("text") for block in blocks[len(blocks) - len(request.tail) :]]
    return (blocks[0].get("text"), len(blocks), ends) == (request.messages[0].text, count, list(request.tail))


def _blocks(content: Any) -> Any:
    return [{"text": content}] if isinstance(content, str) else content


class Bench:
    """One double and one client for many sessions, one after the other."""

    def __init__(self, double: Double, model: AnthropicModel) -> None:
        self.double = double
        self.model = model
        self._session: Session | None = None
        self._script: BenchScript = []

    @property
    def session(self) -> Session:
        """The open session."""
        assert self._session is not None
        return self._session

    def answer(self, body: Mapping[str, Any]) -> Step:
        """Return the next step of the script; after the end of a list, final answers."""
        if callable(self._script):
            return self._script(body)
        return self._script.pop(0) if self._script else FINAL

    def tail(self, body: Mapping[str, Any]) -> int | None:
        """Return the number of blocks in the tail of a request.

        Agents send requests at the same time, so it is the latest one that this may be the body of.
        """
        if self._session is None:
            return None
        made = (r for r in reversed(self.session.model.requests) if _may_be(r, body))
        return next((len(request.tail) for request in made), None)

    @asynccontextmanager
    async def open(self, script: BenchScript, **options: Any) -> AsyncIterator[Session]:
        """Open a session with this script. ``options`` are those of ``open_session``."""
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
    """Open a bench whose sessions send up to ``at_once`` requests at the same time.

    ``policy`` and ``continuity`` are those of the double.
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
        close, adapter.aclose = adapter.aclose, trio.lowlevel.checkpoint  # type: ignore[method-assign] # for sessions
        found.append(Bench(double, adapter))
        clock.autojump_threshold = 0
        yield found[0]
        assert double.open_connections <= at_once
        await close()
