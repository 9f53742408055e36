"""The invariants of SPEC section 2 on random models, tools, lines and interrupts; and models of all kinds, each with a
line that arrives at every moment of the run.

A moment is an event: everything that can be seen from outside happens at one, and a line that is sent in the very step
of an event is as close to it as a line can be. The random user acts at moments in time too.

An example is drawn from short tables, each with its plainest entry first: that is quick to draw, and what fails shrinks
to few and plain entries. ``CHAIN_TEST_PROFILE=long`` tries ten times as many.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
from hypothesis import strategies as st
from support import (
    ANOTHER_MODEL,
    DISK_ACTS,
    DROP,
    DROP_FIRST,
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
    open_session,
    sharded,
    wait_quiet,
)
from support import settings as chain_settings
from support.examples import counted, some
from support.models import ASKING_TOOLS, TOOLS, RandomModel, Step, asking_steps, steps
from trio.testing import MockClock

from chain import events
from chain.messages import Text, Thinking, ToolCall

# --------------------------------------------------------------------------------------------------- a random session

HANDLER = """
config: {max_tokens: 500, effort: low}
messages:
  - {role: user, content: "USER INTERRUPTION: ${message}"}
  - {role: system, content: "Deal with ${count} lines at ${point}, ${remaining} calls left."}
"""


RULES = """
rules:
  - {match: ^enough, action: stop}
  - {match: ^wait, action: urgent}
  - {match: ^note, resume: false}
"""
BY_RULE = ["enough of this ‹›", "wait, use the third one ‹›", "note that it is late ‹›?"]
"""Lines that a rule makes something else, where these rules hold."""


@dataclass(frozen=True)
class Setting:
    """What a session is opened with."""

    max_iterations: int = 6
    inbox_size: int = 10
    interactive: bool = False
    handler: str = ""
    sync_s: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)


SETTINGS = [
    Setting(),
    Setting(interactive=True),
    Setting(max_iterations=2, handler=HANDLER),
    Setting(max_iterations=3, interactive=True, inbox_size=2),
    Setting(max_iterations=1),
    Setting(max_iterations=1, interactive=True, handler=HANDLER),
    Setting(inbox_size=1, handler=HANDLER, sync_s=0.3),
    Setting(max_iterations=4, inbox_size=2, interactive=True, handler=HANDLER, sync_s=1.5),
    Setting(more={"timeout_s": 4.0}),
    Setting(interactive=True, handler=HANDLER, more={"timeout_s": 2.0}),
    Setting(more={"budget_tokens": 5}),
    Setting(interactive=True, handler="resume: false", more={"max_attempts": 1}),
    Setting(inbox_size=1, handler=RULES),
    Setting(max_iterations=3, inbox_size=2, interactive=True, handler=RULES + HANDLER, sync_s=0.3),
]

DOES = [INTERRUPT, INTERRUPT, DROP, DROP_FIRST, EDIT, ANOTHER_MODEL]
whats = st.sampled_from([*LINES, *DOES, *LINES, *BY_RULE])
at_events = st.lists(st.tuples(st.integers(0, 60), whats), max_size=10)
seconds = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 3.25, 5.0])
at_times = st.lists(st.tuples(seconds, whats), max_size=6)
idly = st.sampled_from(["todo: add one ‹›", ANOTHER_MODEL, "todo: clear", "status", "stop"])
between = st.lists(idly, max_size=2)


async def drive(
    drawn: list[Step],
    at: list[tuple[int, str]],
    in_time: list[tuple[float, str]],
    then: list[str],
    setting: Setting,
    closes_after_s: float | None,
    file: MemoryFile,
) -> None:
    limit = setting.max_iterations
    use = chain_settings(max_iterations=limit, inbox_size=setting.inbox_size, handler=setting.handler, **setting.more)
    models = 0

    def another() -> RandomModel:
        nonlocal models
        models += 1
        return RandomModel(rest, f"other{models}")

    rest = list(drawn)
    async with open_session(
        RandomModel(rest),
        tools=TOOLS,
        use=use,
        interactive=setting.interactive,
        file=file,
    ) as session:
        chain = session.chain
        acts = Acts(session, at, also_idle=True, another=another)
        chain.listen(acts)
        async with trio.open_nursery() as nursery:
            chain.submit("Do the task")
            acts.at_once()
            nursery.start_soon(acts.in_time, in_time)
            await wait_quiet(session)
            check(session, limit)
            nursery.cancel_scope.cancel()
        for what in then:
            acts.do(what)
            await wait_quiet(session)
        if isinstance(file, FullDisk):
            file.room = math.inf
        # The next run works, whatever the last one went through.
        chain.submit("Do another task")
        if closes_after_s is None:
            await wait_quiet(session)
            check(session, limit)
        else:
            await trio.sleep(closes_after_s)
    check(session, limit)


def check(session: Session, limit: int) -> None:
    if not isinstance(session.file, FullDisk):
        check_invariants(session, max_iterations=limit)
    elif session.file.room == math.inf and session.of(events.Result)[-1].status != "error":
        check_full_disk(session)
    check_silence(session, session.interrupted_at)
    check_heard(session)


@sharded(
    3_000,
    st.lists(steps, max_size=8),
    at_events,
    at_times,
    between,
    st.sampled_from(SETTINGS),
    st.sampled_from([None, None, None, 0.0, 1.0]),
)
def test_the_invariants_hold_whatever_model_tools_and_user_do(
    drawn: list[Step],
    at: list[tuple[int, str]],
    in_time: list[tuple[float, str]],
    then: list[str],
    setting: Setting,
    closes_after_s: float | None,
) -> None:
    async def main() -> None:
        await drive(drawn, at, in_time, then, setting, closes_after_s, MemoryFile(setting.sync_s))

    random.seed(0)  # the jitter of the retries
    trio.run(main, clock=MockClock(autojump_threshold=0))


# ------------------------------------------------------------------------------------------------------- questions


replies = st.sampled_from(["y", "a", "n", "rather not", "y", "a", "2", "somewhere else", None])
ALLOWED = ["", "danger", "change_file(b*)", "dig(host0)"]


async def drive_questions(
    drawn: list[Step],
    answers: list[tuple[float, str | None]],
    at: list[tuple[int, str]],
    in_time: list[tuple[float, str]],
    setting: Setting,
    allow: str,
    stays_s: float | None,
    file: MemoryFile,
) -> None:
    limit = setting.max_iterations
    use = chain_settings(
        max_iterations=limit, inbox_size=setting.inbox_size, handler=setting.handler, allow=allow, **setting.more
    )
    tools = [*TOOLS, *ASKING_TOOLS]
    async with open_session(
        RandomModel(drawn), tools=tools, use=use, interactive=setting.interactive, file=file
    ) as session:
        chain = session.chain
        async with trio.open_nursery() as nursery:
            chain.listen(Replies(session, answers, nursery, isinstance(file, FullDisk)))
            acts = Acts(session, at)
            chain.listen(acts)
            with chain.answering() as answerer:
                chain.submit("Do the task")
                nursery.start_soon(acts.in_time, in_time)
                if stays_s is not None:
                    await trio.sleep(stays_s)
                    answerer.close()
                else:
                    # A question that nobody ever answers stands as long as somebody could.
                    with trio.move_on_after(1e6) as waited:
                        await wait_quiet(session)
                    assert waited.cancelled_caught <= (chain.questions.open_id is not None)
                    if isinstance(file, FullDisk):
                        file.room = math.inf
            await wait_quiet(session)
            nursery.cancel_scope.cancel()
        check(session, limit)
        if isinstance(file, FullDisk):
            file.room = math.inf
        chain.submit("Do another task")
        await wait_quiet(session)
    check(session, limit)


@sharded(
    2_000,
    st.lists(asking_steps, min_size=1, max_size=5),
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 2.0, 5.0, 5_000.0]), replies), max_size=8),
    at_events,
    at_times,
    st.sampled_from(SETTINGS),
    st.sampled_from(ALLOWED),
    st.sampled_from([None, None, 0.0, 1.0, 4.0]),
)
def test_the_invariants_hold_whatever_is_asked_and_answered(
    drawn: list[Step],
    answers: list[tuple[float, str | None]],
    at: list[tuple[int, str]],
    in_time: list[tuple[float, str]],
    setting: Setting,
    allow: str,
    stays_s: float | None,
) -> None:
    async def main() -> None:
        file = MemoryFile(setting.sync_s)
        await drive_questions(drawn, answers, at, in_time, setting, allow, stays_s, file)

    random.seed(0)
    trio.run(main, clock=MockClock(autojump_threshold=0))


disk_acts = st.sampled_from(DISK_ACTS)


@sharded(
    1_000,
    st.lists(steps, max_size=6),
    st.lists(st.tuples(st.integers(0, 40), st.one_of(disk_acts, whats)), max_size=12),
    st.lists(st.tuples(seconds, st.one_of(disk_acts, whats)), max_size=6),
    st.lists(st.one_of(disk_acts, idly, st.just("Do something else")), max_size=4),
    st.sampled_from(SETTINGS),
)
def test_what_is_promised_holds_though_the_disk_is_full_or_nearly_full(
    drawn: list[Step],
    at: list[tuple[int, str]],
    in_time: list[tuple[float, str]],
    then: list[str],
    setting: Setting,
) -> None:
    async def main() -> None:
        await drive(drawn, at, in_time, then, setting, None, FullDisk(setting.sync_s))

    random.seed(0)
    trio.run(main, clock=MockClock(autojump_threshold=0))


# ----------------------------------------------------------------- models of all kinds, and a line at every moment

LOOK = Step((Text("Let me look."), ToolCall("a", "look", {}), ToolCall("b", "slow", {})), delay_s=1)
FINAL = Step((Text("The final answer."),))

SCENARIOS: dict[str, list[Step]] = {
    "an answer without tools": [FINAL],
    "one round of tools": [LOOK, FINAL],
    "three rounds of tools": [LOOK, LOOK, Step((ToolCall("a", "plan_add_task", {"task": "x"}),)), FINAL],
    "a batch of read-only tools": [
        Step((*(ToolCall(i, "watch", {}) for i in "abc"), ToolCall("d", "slow", {}), ToolCall("e", "look", {}))),
        FINAL,
    ],
    "tools that fail": [
        Step((ToolCall("a", "fail", {}), ToolCall("b", "nothing", {}), ToolCall("c", "look", {}))),
        FINAL,
    ],
    "a tool that times out": [Step((ToolCall("a", "hang", {}), ToolCall("b", "look", {}))), FINAL],
    "a tool that clings": [Step((ToolCall("a", "cling", {}), ToolCall("b", "look", {}))), FINAL],
    "a stream that breaks twice": [Step((Text("Some text."),), failures=2, breaks_at=1), FINAL],
    "an error that ends the run": [LOOK, Step((Text("Some"),), failures=1, retryable=False)],
    "an empty reply": [LOOK, Step(()), FINAL],
    "a refusal": [LOOK, Step((Text("No."),), "refusal")],
    "a truncated reply": [LOOK, Step((Text("Some te"),), "max_tokens")],
    "a call that is cut off": [Step((ToolCall("a", "look", {}), ToolCall("b", "slow", {})), "max_tokens"), FINAL],
    "a full context": [LOOK, Step((Text("Some te"),), "model_context_window_exceeded")],
    "thinking before and between": [Step((Thinking("Hm.", "s"), Text("So."), ToolCall("a", "look", {}))), FINAL],
    "a steered tool": [Step((ToolCall("a", "steered", {}),)), FINAL],
    "the last iteration": [LOOK, LOOK, LOOK, LOOK],
}
LIMIT = {"the last iteration": 2}


async def events_of(name: str) -> int:
    """How many moments the scenario has when nobody says anything."""
    use = chain_settings(max_iterations=LIMIT.get(name, 6))
    async with open_session(RandomModel(list(SCENARIOS[name])), tools=TOOLS, use=use) as session:
        session.chain.submit("Do the task")
        await session.chain.wait_idle()
        return len(session.events)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "line", ["use the other file", "!at once", "todo: add x", "why?", "then: next", "stop", INTERRUPT]
)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_line_at_every_moment_of_the_scenario(name: str, line: str, autojump_clock: MockClock) -> None:
    count = await counted((events_of, name), lambda: events_of(name))
    limit = LIMIT.get(name, 6)
    for moment in some(range(count + 1), every=48):
        use = chain_settings(max_iterations=limit)
        async with open_session(RandomModel(list(SCENARIOS[name])), tools=TOOLS, use=use) as session:
            acts = Acts(session, [(moment, line)])
            session.chain.listen(acts)
            session.chain.submit("Do the task")
            acts.at_once()
            await session.chain.wait_idle()
            check(session, limit)
            assert session.of(events.Result)[0].iterations <= limit


@sharded(
    500,
    st.lists(asking_steps, min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 2.0]), replies), max_size=8),
    st.lists(st.tuples(st.integers(0, 40), st.one_of(disk_acts, whats)), max_size=10),
    st.lists(st.tuples(seconds, st.one_of(disk_acts, whats)), max_size=5),
    st.sampled_from(SETTINGS),
    st.sampled_from([None, 0.0, 2.0]),
)
def test_nobody_waits_for_ever_for_a_question_on_a_full_disk(
    drawn: list[Step],
    answers: list[tuple[float, str | None]],
    at: list[tuple[int, str]],
    in_time: list[tuple[float, str]],
    setting: Setting,
    stays_s: float | None,
) -> None:
    async def main() -> None:
        await drive_questions(drawn, answers, at, in_time, setting, "", stays_s, FullDisk(setting.sync_s))

    random.seed(0)
    trio.run(main, clock=MockClock(autojump_threshold=0))


# ------------------------------------------------------------------- questions, and what the user does at every moment

Answering = list[tuple[float, str | None]]

CHANGE, DIG = ToolCall("a", "change_file", {"path": "b"}), ToolCall("c", "dig", {})
WHICH = ToolCall("d", "ask_user_question", {"question": "Which?", "options": ["left", "right"]})
ASK = Step((Text("I ask."), CHANGE, ToolCall("b", "slow", {}), ToolCall("e", "danger", {})))

WITH_QUESTIONS: dict[str, tuple[list[Step], Answering]] = {
    "allowed": ([ASK, FINAL], [(1, "y"), (1, "y")]),
    "allowed, then refused": ([ASK, FINAL], [(0, "y"), (1, "not that")]),
    "always": ([Step((CHANGE, replace(CHANGE, id="f"), DIG)), FINAL], [(1, "a"), (0, "a"), (1, "y")]),
    "never answered": ([ASK, FINAL], [(1, "y"), (0, None)]),
    "a choice": ([Step((WHICH,)), LOOK, FINAL], [(1, "2")]),
    "choices side by side": ([Step((WHICH, replace(WHICH, id="g"), DIG)), FINAL], [(1, "1"), (1, "no idea"), (1, "n")]),
    "in the middle of the work": ([Step((DIG, ToolCall("h", "watch", {}))), FINAL], [(1, "y"), (1, "n")]),
}


async def play_questions(name: str, moment: int, line: str) -> int:
    """Play a scenario with something done at a moment; how many moments there were."""
    drawn, answers = WITH_QUESTIONS[name]
    async with open_session(RandomModel(list(drawn)), tools=[*TOOLS, *ASKING_TOOLS]) as session:
        async with trio.open_nursery() as nursery:
            with session.chain.answering():
                session.chain.listen(Replies(session, list(answers), nursery))
                acts = Acts(session, [(moment, line)])
                session.chain.listen(acts)
                session.chain.submit("Do the task")
                acts.at_once()
                with trio.move_on_after(1e6):
                    await wait_quiet(session)
            await wait_quiet(session)
        check(session, 20)
        return len(session.events)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "line", ["use the other file", "!at once", "!!now", "todo: add x", "why?", "then: next", "stop", INTERRUPT]
)
@pytest.mark.parametrize("name", WITH_QUESTIONS)
async def test_a_line_at_every_moment_of_a_question(name: str, line: str, autojump_clock: MockClock) -> None:
    count = await counted((play_questions, name), lambda: play_questions(name, -1, line))
    for moment in some(range(count + 1), every=48):
        await play_questions(name, moment, line)
