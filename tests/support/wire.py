"""Models and sessions over real sockets, with the strict double as their service.

These tests use trio's ``MockClock``. It stands still while the client is built and sends its first request, since both
happen in threads, for which the clock would not wait. After that, ``Wire.let_time_pass`` lets the clock jump.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2  # noqa: F401 - imported before the tests, since it is slow to import
from double import NEWER, Double, Policy, Script, serve, text
from trio.testing import MockClock, wait_all_tasks_blocked

from chain.config.load import Settings
from chain.config.provider import ModelCheck
from chain.providers.anthropic import checking
from chain.providers.anthropic.client import AnthropicModel
from chain.providers.anthropic.service import Parameters, Price, Service
from chain.tools.tool import Tool, ToolContext, tool

from .checks import check_invariants
from .clock import pass_time
from .sessions import Session, make_settings, open_session

KEY = "test-key"


@tool(read_only=True)
async def look(ctx: ToolContext, at: str = "") -> str:
    """Look at something."""
    return f"seen {at}"


@tool
async def slow(ctx: ToolContext, seconds: float = 1.0) -> str:
    """Take some time."""
    await pass_time(seconds)
    return f"took {seconds:g} s"


@tool
async def fail(ctx: ToolContext) -> str:
    """Fail."""
    raise ValueError("no")


TOOLS: tuple[Tool, ...] = (look, slow, fail)


def model_at(
    url: str,
    *,
    model: str = NEWER,
    key: str | None = KEY,
    price: Price | None = None,
    max_tokens: int = 1000,
    service: dict[str, Any] | None = None,
    **parameters: Any,
) -> AnthropicModel:
    """Return a model at an address. It requests its context window only if ``context_window`` is 0."""
    return AnthropicModel(
        Parameters(model, max_tokens, **{"context_window": 200_000, **parameters}),
        Service(api_key=key, base_url=url, **(service or {})),
        price,
    )


async def check(model: AnthropicModel) -> ModelCheck:
    """Check a model as ``chain check`` does."""
    return await checking.check(model._parameters, model._service)


@asynccontextmanager
async def open_model(
    script: Script = (), *, policy: Policy | None = None, path: str = "", user: str = "", **options: Any
) -> AsyncIterator[tuple[Double, AnthropicModel]]:
    """Yield the double with this script, and a model whose service it is. ``options`` are those of ``model_at``."""
    async with serve(script, policy=policy, continuity=False) as double:
        model = model_at(double.url.replace("//", f"//{user}") + path, **options)
        yield double, model
        await model.aclose()


@dataclass
class Wire:
    """A session and the double that is its service."""

    session: Session
    double: Double
    model: AnthropicModel

    def let_time_pass(self, clock: MockClock) -> None:
        """Let the clock jump whenever all tasks wait."""
        clock.autojump_threshold = 0

    def bodies(self) -> list[dict[str, Any]]:
        """Return the bodies of the requests so far."""
        return [dict(r.body) for r in self.double.requests]


@asynccontextmanager
async def open_wire(
    script: Script,
    *,
    settings: Settings | None = None,
    policy: Policy | None = None,
    max_iterations: int = 20,
    **model: Any,
) -> AsyncIterator[Wire]:
    """Yield a session whose service is the double with this script. At the end, check the invariants and the double.

    Unless the script is a function, a first run "Hello" comes before it, in which the client is built and connected.
    Without ``settings``, a model call is attempted four times.
    """
    whole = script if callable(script) else [text("Hello."), *(script if isinstance(script, list) else [script])]
    async with serve(whole, policy=policy) as double:
        adapter = model_at(double.url, **model)
        async with open_session(adapter, tools=TOOLS, settings=settings or make_settings(max_attempts=4)) as session:
            if not callable(script):
                assert (await session.run("Hello")).status == "done"
            yield Wire(session, double, adapter)
            check_invariants(session, max_iterations=max_iterations)
        await wait_all_tasks_blocked()
        assert double.open_connections == 0, "closing the chain closes its connections"
