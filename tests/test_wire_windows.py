"""The invariants of SPEC section 2, and I10, on the wire: sessions with children, questions and lines of all kinds
against the strict double, which finds too long what goes beyond 20,000 tokens, by a count of its own.

``test_compaction_properties`` holds the same in one process, in windows of all sizes. ``CHAIN_TEST_PROFILE=long`` tries
ten times as many.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from typing import Any, get_args

import trio
from double import Cut, ErrorEvent, Policy, Say, Status, Step, calls, text, thinking
from hypothesis import strategies as st
from support import (
    COMPACT,
    DISK_ACTS,
    DROP,
    EDIT,
    INTERRUPT,
    LINES,
    Acts,
    FullDisk,
    MemoryFile,
    Replies,
    Session,
    check_full_disk,
    check_heard,
    check_invariants,
    check_silence,
    sharded,
    wait_quiet,
)
from support import settings as chain_settings
from support.examples import fewer
from support.models import ASKING_TOOLS
from support.small_window import ASKS, Summary
from support.wire import TOOLS
from support.wire_bench import HANDLER, Bench, bench
from support.wire_window import WINDOW, WireWindow, read
from trio.testing import MockClock

from chain import events

LIMIT = 8
AT_ONCE = fewer(5, divided_by=2)
"""Sessions of one client, which takes longer to build than a session to run."""

BIG: Step = calls(("read", {"length": 29_000}), say="I read.")
STEPS: list[Step] = [
    BIG,
    BIG,
    calls(("read", {"length": 12_000}), ("read", {"length": 12_000}), ("look", {}), text_chunk=4),
    calls(*[("read", {"length": 29_000})] * 3),
    thinking("Hm.", calls(("read", {"length": 20_000}), ("slow", {}), delay_between=0.1)),
    text("A long answer. " * 600),
    text("A short one."),
    text("Some te", stop_reason="max_tokens"),
    calls(("explore", {"task": "Look around"}), ("explore", {"task": "Look there"})),
    calls(("agent", {"task": "Do a part"})),
    calls(("agent_ask", {"agent": "explore-1", "question": "And now?"})),
    calls(("danger", {}), ("ask_user_question", {"question": "Which?", "options": ["left", "right"]})),
    calls(("fail", {}), ("plan_add_task", {"task": "from the model"}), ("nothing", {})),
    text("No.", stop_reason="refusal"),
    Say(()),
    Status(529),
    Cut(4, reply=BIG if isinstance(BIG, Say) else text("")),
    ErrorEvent(),
]

ACTS = [COMPACT, COMPACT, INTERRUPT, DROP, EDIT, "@1 use the other file ‹›", "@1 !!use it now ‹›"]
whats = st.sampled_from([*LINES, *ACTS, *LINES])


@dataclass(frozen=True)
class Drawn:
    """What happens in one session."""

    steps: list[Step]
    says: list[Summary]
    at: list[tuple[int, str]]
    answers: list[tuple[float, str | None]]
    is_full: bool
    is_interactive: bool


answers = st.tuples(st.sampled_from([0.0, 0.25, 2.0]), st.sampled_from(["y", "a", "n", "2", "rather not"]))
moments = st.integers(0, 120)
sessions = st.builds(
    lambda steps, says, at, disk, answers, is_interactive: Drawn(
        steps, says, [*at, *disk], answers, bool(disk), is_interactive
    ),
    st.lists(st.sampled_from(STEPS), min_size=2, max_size=12),
    st.lists(st.sampled_from(get_args(Summary)), max_size=4),
    st.lists(st.tuples(moments, whats), max_size=8),
    st.one_of(st.just([]), st.just([]), st.lists(st.tuples(moments, st.sampled_from(DISK_ACTS)), max_size=4)),
    st.lists(answers, max_size=4),
    st.booleans(),
)
services = st.sampled_from([(1.0, WINDOW), (1.3, WINDOW), (0.7, 0), (1.3, 0)])
"""How many tokens are counted where we estimate one, and what window is told."""


@sharded(100, st.lists(sessions, min_size=AT_ONCE, max_size=AT_ONCE), services)
def test_the_service_takes_every_request_of_conversations_that_outgrow_it(
    drawn: list[Drawn], service: tuple[float, int]
) -> None:
    clock, (counts, told) = MockClock(), service
    options: dict[str, Any] = {"policy": Policy(window=told), "continuity": False, "context_window": 0}

    async def main() -> None:
        async with bench(clock, at_once=4, **options) as one:
            for each in drawn:
                await play(one, each, WireWindow(list(each.steps), list(each.says), counts))

    random.seed(0)
    trio.run(main, clock=clock)


async def test_a_summary_is_asked_of_stubs_on_the_wire_too(mock_clock: MockClock) -> None:
    window = WireWindow([BIG, BIG], [], counts=1.3)
    async with bench(mock_clock, at_once=2, policy=Policy(window=0), continuity=False, context_window=0) as one:
        await play(one, Drawn([], [], [], [], False, False), window)
    assert (len(window.refused), window.summaries) == (1, 1)
    asked = next(r for r in one.double.requests if ASKS in json.dumps(r.messages[-1]))
    assert "characters removed to make room" in json.dumps(asked.messages)


async def play(one: Bench, drawn: Drawn, window: WireWindow) -> None:
    """One session of three runs. Its requests are held to the double's rules there, and to I7 and I10 here."""
    file = FullDisk() if drawn.is_full else MemoryFile()
    use = chain_settings(agents=True, max_iterations=LIMIT, handler=HANDLER, max_attempts=2)
    tools = [*TOOLS, *ASKING_TOOLS[:1], read]
    async with one.open(window, tools=tools, use=use, interactive=drawn.is_interactive, file=file) as session:
        chain = session.chain
        acts = Acts(session, drawn.at, also_idle=True)
        chain.listen(acts)
        async with trio.open_nursery() as nursery:
            chain.listen(Replies(session, [*drawn.answers, *[(1.0, "y")] * 40], nursery, drawn.is_full))
            with chain.answering():
                for query in "Do the task", "Do another", "And a third":
                    chain.submit(query)
                    acts.at_once()
                    await wait_quiet(session)
                    check(session)
                    if isinstance(file, FullDisk):
                        file.room = math.inf
            nursery.cancel_scope.cancel()
    check(session)
    assert len(window.refused) == len(set(window.refused)), "a request that was too long is not sent again"
    if not drawn.says and not drawn.is_full:
        ended = [e.status for e in session.of(events.Result, events.AgentEnded)]
        assert "context_full" not in ended, "a compaction would have helped"


def check(session: Session) -> None:
    if not isinstance(session.file, FullDisk):
        check_invariants(session, max_iterations=LIMIT)
    elif session.file.room == math.inf and session.of(events.Result)[-1].status != "error":
        check_full_disk(session)
    check_silence(session, session.interrupted_at)
    check_heard(session)
