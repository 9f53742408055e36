"""What the tests of the Anthropic adapter share: a session whose model is the double, over real sockets.

The clock of these tests is trio's ``MockClock``. It stands still while the client is built and asks for the first time,
since both happen in threads, of which the clock knows nothing; ``Wire.let_time_pass`` then lets it jump.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2  # noqa: F401 - importing it takes long on a busy machine, which is no test's time
import trio
from double import NEWER, Double, Policy, Script, serve, text
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.config.load import Settings
from chain.config.provider import ModelCheck
from chain.providers.anthropic import checking
from chain.providers.anthropic.client import AnthropicModel
from chain.providers.anthropic.encoding import Parameters
from chain.providers.anthropic.service import Price, Service
from chain.tools.tool import Tool, ToolContext, tool

from .checks import check_invariants
from .clock import pass_time
from .sessions import Session, at, open_session
from .sessions import settings as chain_settings

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
    """A model at that address."""
    return AnthropicModel(
        # Its window is known, so that the service is asked for nothing else than replies.
        Parameters(model, max_tokens, **{"context_window": 200_000, **parameters}),
        Service(api_key=key, base_url=url, **(service or {})),
        price,
    )


async def check(model: AnthropicModel) -> ModelCheck:
    """What ``chain check`` says of a model."""
    return await checking.check(model._parameters, model._service)


@dataclass
class Wire:
    """A session and the double that it talks to."""

    session: Session
    double: Double
    model: AnthropicModel

    async def warm(self) -> None:
        """One ordinary run, so that the client is built and connected."""
        assert (await self.session.run("Hello")).status == "done"

    def let_time_pass(self, clock: MockClock) -> None:
        """From now on nobody waits for time."""
        clock.autojump_threshold = 0

    def next(self, *types: type[events.Event]) -> trio.Event:
        """Set at the next event of these types."""
        came = trio.Event()
        self.session.chain.listen(lambda e: came.set() if isinstance(e, types) else None)
        return came

    def on(self, type: type[events.Event], do: Callable[[], object], *, nth: int = 1) -> None:
        """Do something in the very step of the n-th event of that type from now on."""
        at(self.session, type, do, nth)

    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of the requests so far."""
        return [dict(r.body) for r in self.double.requests]


@asynccontextmanager
async def wired(
    script: Script,
    *,
    use: Settings | None = None,
    policy: Policy | None = None,
    max_iterations: int = 20,
    **model: Any,
) -> AsyncIterator[Wire]:
    """A session at a double with this script; a sequence is told after one reply that warms it up.

    A model is asked four times at most, unless ``use`` says otherwise, so that a fault that stays ends soon. At the end
    the invariants hold, and the double has seen nothing that the API would refuse.
    """
    whole = script if callable(script) else [text("Hello."), *(script if isinstance(script, list) else [script])]
    async with serve(whole, policy=policy) as double:
        adapter = model_at(double.url, **model)
        async with open_session(adapter, tools=TOOLS, use=use or chain_settings(max_attempts=4)) as session:
            wire = Wire(session, double, adapter)
            if not callable(script):
                await wire.warm()
            yield wire
            check_invariants(session, max_iterations=max_iterations)
        await wait_all_tasks_blocked()
        assert double.open_connections == 0, "closing the chain closes its connections"
