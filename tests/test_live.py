"""The same handful of scenarios against any server that speaks the Messages API; off by default:

    CHAIN_LIVE_BASE_URL=http://127.0.0.1:8080 CHAIN_LIVE_MODEL=qwen3 python -m pytest -m live tests/test_live.py

``CHAIN_LIVE_KEY`` is the key, if the server wants one. What the model says does not matter, be it nonsense. It
matters that the server takes every request, that each run ends as a run may end, and that the record is sound.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from support import Session, check_invariants, open_session
from support import settings as chain_settings
from support.wire import TOOLS, model_at

from chain import events

live = pytest.mark.live

MAX_ITERATIONS = 6
ENDINGS = {"done", "max_iterations", "truncated", "empty", "refused", "context_full"}
"""How a run may end that nobody stopped. ``error`` only where the model's replies cannot be used, however often."""
STOPPED = {"cancelled", "cancelled_with_partial", "cancelled_during_synthesis"}

LINES = [
    "use fewer words",
    "!hurry",
    "todo: add write it down",
    "how is it going?",
    "context: it is late",
    "then: Say bye",
]
REQUEST_S = 300.0
"""A small machine needs minutes for a long prompt."""


@asynccontextmanager
async def session(**parameters: Any) -> AsyncIterator[Session]:
    url, name = os.environ.get("CHAIN_LIVE_BASE_URL", ""), os.environ.get("CHAIN_LIVE_MODEL", "")
    if not url or not name:
        pytest.fail("set CHAIN_LIVE_BASE_URL and CHAIN_LIVE_MODEL to the server to ask")
    key = os.environ.get("CHAIN_LIVE_KEY") or None
    model = model_at(url, model=name, key=key, max_tokens=200, service={"idle_timeout_s": REQUEST_S}, **parameters)
    use = chain_settings(max_iterations=MAX_ITERATIONS, timeout_s=4 * REQUEST_S)
    async with open_session(model, tools=TOOLS, use=use) as opened:
        yield opened
        await opened.chain.wait_idle()
        sound(opened)


def sound(session: Session) -> None:
    """The invariants hold, the journal can be read, and the server took every request."""
    check_invariants(session, max_iterations=MAX_ITERATIONS)
    assert session.records[0]["type"] == "session"
    assert len([r for r in session.records if r["type"] == "result"]) == len(session.of(events.Result))
    for error in session.of(events.Error):
        assert error.kind == "model"
        assert "refused the request" not in error.message, error.message
        assert "reply" in error.message, f"the server could not be asked: {error.message}"


def ended(result: events.Result, *allowed: str) -> None:
    assert result.status in {*ENDINGS, "error", *allowed}, result.status
    assert result.result.strip()


def once(
    session: Session, types: type[events.Event] | tuple[type[events.Event], ...], do: Callable[[], object]
) -> None:
    """Do something at the next event of these types."""
    wanted = True

    def listen(event: events.Event) -> None:
        nonlocal wanted
        if wanted and isinstance(event, types):
            wanted = False
            do()

    session.chain.listen(listen)


ASK_FOR_TOOLS = "Call the tool look three times, at a, b and c, one after the other. Then say what you saw."
FIRST_WORDS = (events.TextDelta, events.ThinkingDelta, events.ToolCall, events.Result)


@live
async def test_a_question_and_another_one() -> None:
    async with session() as opened:
        ended(await opened.run("Say hello in one word."))
        ended(await opened.run("And now in French."))
        assert opened.chain.state.usage.total_tokens >= 0


@live
async def test_tools() -> None:
    async with session() as opened:
        ended(await opened.run(ASK_FOR_TOOLS))
        ended(await opened.run("Call the tools fail and slow. Then say what they answered."))


@live
@pytest.mark.parametrize("line", LINES)
async def test_a_line_while_it_works(line: str) -> None:
    async with session() as opened:
        once(opened, FIRST_WORDS, lambda: opened.chain.submit(line) if opened.chain.is_running else None)
        ended(await opened.run(ASK_FOR_TOOLS))
        ended(await opened.run("Say bye."))


@live
async def test_many_lines_at_once() -> None:
    async with session() as opened:
        once(opened, events.IterationStarted, lambda: [opened.chain.submit(line) for line in LINES])
        ended(await opened.run(ASK_FOR_TOOLS))


@live
async def test_a_stop() -> None:
    async with session() as opened:
        once(opened, FIRST_WORDS, lambda: opened.chain.submit("stop") if opened.chain.is_running else None)
        ended(await opened.run("Tell a long story."), *STOPPED)
        ended(await opened.run("Say bye."))


@live
async def test_an_interrupt_before_the_reply_and_in_the_middle_of_it() -> None:
    async with session() as opened:
        for types in (events.IterationStarted, FIRST_WORDS, FIRST_WORDS):
            once(opened, types, opened.chain.interrupt)
            ended(await opened.run("Tell a long story."), "interrupted")
        ended(await opened.run("Say bye."))


@live
async def test_a_call_cancelled_after_a_moment() -> None:
    async with session() as opened:
        for _ in range(5):
            opened.chain.submit("Tell a long story.")
            with trio.move_on_after(0.3):
                await opened.chain.wait_idle()
            opened.chain.interrupt()
            await opened.chain.wait_idle()
            ended(opened.result, "interrupted")
        ended(await opened.run("Say bye."))


@live
async def test_two_agents_worth_of_sessions_at_once() -> None:
    async def one() -> None:
        async with session() as opened:
            ended(await opened.run(ASK_FOR_TOOLS))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        nursery.start_soon(one)
