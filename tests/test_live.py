"""A few scenarios with a server that speaks the Messages API. They run only with ``-m live``:

    CHAIN_LIVE_BASE_URL=http://127.0.0.1:8080 CHAIN_LIVE_MODEL=qwen3 python -m pytest -m live tests/test_live.py

``CHAIN_LIVE_KEY`` is the key, if the server needs one. The texts of the model do not matter: the server must accept
every request, each run must end with a usual status, and the record must be sound.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from support.checks import check_invariants
from support.sessions import Session, make_settings, open_session
from support.wire import TOOLS, model_at

from chain import events

pytestmark = pytest.mark.live

MAX_ITERATIONS = 6
ENDINGS = {"done", "max_iterations", "truncated", "empty", "refused", "context_full", "error"}
"""The statuses of a run that was not stopped. ``error`` is allowed only if the model's replies cannot be used."""
STOPPED = {"cancelled", "cancelled_with_partial", "cancelled_during_synthesis"}
REQUEST_S = 300.0
"""A small machine needs minutes for a long prompt."""

LINES = [
    "use fewer words",
    "!hurry",
    "todo: add write it down",
    "how is it going?",
    "context: it is late",
    "then: Say bye",
]
ASK_FOR_TOOLS = "Call the tool look three times, at a, b and c, one after the other. Then say what you saw."
STORY = "Tell a long story."
FIRST_OUTPUT = (events.TextDelta, events.ThinkingDelta, events.ToolCall, events.Result)


@asynccontextmanager
async def open_live() -> AsyncIterator[Session]:
    """Open a session with the server, and check its record at the end."""
    url, name = os.environ.get("CHAIN_LIVE_BASE_URL", ""), os.environ.get("CHAIN_LIVE_MODEL", "")
    if not url or not name:
        pytest.fail("set CHAIN_LIVE_BASE_URL and CHAIN_LIVE_MODEL to the server to use")
    key = os.environ.get("CHAIN_LIVE_KEY") or None
    model = model_at(url, model=name, key=key, max_tokens=200, service={"idle_timeout_s": REQUEST_S})
    settings = make_settings(max_iterations=MAX_ITERATIONS, timeout_s=4 * REQUEST_S)
    async with open_session(model, tools=TOOLS, settings=settings) as session:
        yield session
        check_result(await session.run("Say bye."))
        await session.chain.wait_idle()
        check_invariants(session, max_iterations=MAX_ITERATIONS)
        assert session.records[0]["type"] == "session"
        recorded_results = [r for r in session.records if r["type"] == "result"]
        assert len(recorded_results) == len(session.of(events.Result))
        for error in session.of(events.Error):
            assert_unusable_reply(error)


def assert_unusable_reply(error: events.Error) -> None:
    """Check that the server was reached and accepted the request, and only its reply could not be used."""
    assert error.kind == "model"
    assert "refused the request" not in error.message, error.message
    assert "reply" in error.message, f"the server could not be reached: {error.message}"


def check_result(result: events.Result, *statuses: str) -> None:
    """Check that a result has a text, and a status of ``ENDINGS`` or one of these."""
    assert result.status in {*ENDINGS, *statuses}, result.status
    assert result.result.strip()


def at_next(session: Session, types: Any, act: Callable[[], object]) -> None:
    """Act at the next event of these types, if it comes during a run."""
    has_come = False

    def listen(event: events.Event) -> None:
        nonlocal has_come
        if not has_come and isinstance(event, types):
            has_come = True
            if session.chain.is_running:
                act()

    session.chain.listen(listen)


async def test_queries_with_and_without_tools() -> None:
    async with open_live() as session:
        for query in (
            "Say hello in one word.",
            ASK_FOR_TOOLS,
            "Call the tools fail and slow. Then say what they said.",
        ):
            check_result(await session.run(query))
        assert session.chain.state.usage.total_tokens >= 0  # 0 if the server reports no usage


@pytest.mark.parametrize("line", LINES)
async def test_a_line_during_a_run(line: str) -> None:
    async with open_live() as session:
        at_next(session, FIRST_OUTPUT, lambda: session.chain.submit(line))
        check_result(await session.run(ASK_FOR_TOOLS))


async def test_many_lines_at_once() -> None:
    async with open_live() as session:
        at_next(session, events.IterationStarted, lambda: [session.chain.submit(line) for line in LINES])
        check_result(await session.run(ASK_FOR_TOOLS))


async def test_a_stop_ends_the_run() -> None:
    async with open_live() as session:
        at_next(session, FIRST_OUTPUT, lambda: session.chain.submit("stop"))
        check_result(await session.run(STORY), *STOPPED)


async def test_an_interrupt_before_or_during_the_reply() -> None:
    async with open_live() as session:
        # During the output twice: the last run may follow an interrupted reply.
        for moment in (events.IterationStarted, FIRST_OUTPUT, FIRST_OUTPUT):
            at_next(session, moment, session.chain.interrupt)
            check_result(await session.run(STORY), "interrupted")


async def test_interrupts_after_0_3_seconds() -> None:
    async with open_live() as session:
        for _ in range(5):
            session.chain.submit(STORY)
            with trio.move_on_after(0.3):
                await session.chain.wait_idle()
            session.chain.interrupt()
            await session.chain.wait_idle()
            check_result(session.result, "interrupted")


async def test_two_sessions_at_once() -> None:
    async def run_session() -> None:
        async with open_live() as session:
            check_result(await session.run(ASK_FOR_TOOLS))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_session)
        nursery.start_soon(run_session)
