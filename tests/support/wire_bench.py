"""One double and one client for many sessions, since it takes longer to build a client than to run a session."""

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


def _may_have_body(request: Request, body: Mapping[str, Any]) -> bool:
    """Return whether a body has the first text, the number of blocks and the tail of a request."""
    blocks = [block for message in body["messages"] for block in _blocks(message["content"])]
    count = sum(len(message.blocks) for message in request.messages) + len(request.tail)
    tail = [block.get("text") for block in blocks[len(blocks) - len(request.tail) :]]
    return (blocks[0].get("text"), len(blocks), tail) == (request.messages[0].text, count, list(request.tail))


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
        """Return the next step of the script, or the final answer after the end of a list."""
        if callable(self._script):
            return self._script(body)
        return self._script.pop(0) if self._script else FINAL

    def tail(self, body: Mapping[str, Any]) -> int | None:
        """Return the number of blocks in the tail of the latest request that may have this body, if there is one.

        Agents send requests at the same time, so the latest request may have another body.
        """
        if self._session is None:
            return None
        requests = (r for r in reversed(self.session.model.requests) if _may_have_body(r, body))
        return next((len(request.tail) for request in requests), None)

    @asynccontextmanager
    async def open(self, script: BenchScript, **options: Any) -> AsyncIterator[Session]:
        """Yield a session with this script. ``options`` are those of ``open_session``."""
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
async def open_bench(
    clock: MockClock,
    *,
    max_connections: int = 1,
    policy: Policy | None = None,
    continuity: bool = True,
    **parameters: Any,
) -> AsyncIterator[Bench]:
    """Yield a bench. ``policy`` and ``continuity`` are those of the double.

    At the end, check that at most ``max_connections`` are open: the number of requests that agents send at once.
    """
    bench: Bench | None = None
    async with serve(
        lambda body, n: bench.answer(body) if bench else FINAL,
        tail=lambda body: bench.tail(body) if bench else None,
        policy=policy,
        continuity=continuity,
    ) as double:
        model = model_at(double.url, thinking=THINKING, **parameters)
        await model.reply(Request("", (user_text("Hello"),)), lambda delta: None)  # connects before time passes
        close, model.aclose = model.aclose, trio.lowlevel.checkpoint  # type: ignore[method-assign] # sessions close it
        bench = Bench(double, model)
        clock.autojump_threshold = 0
        yield bench
        assert double.open_connections <= max_connections
        await close()
