"""What users do while a chain works, each replayed with what they do at every possible moment of the run.

A scenario is a model that answers what it reads, tools, and what the user does. It is played once without the user,
which gives the number of moments; then with the user acting before the run, in the very step of each event, after each
event once everything stands still, and after the run. The invariants of SPEC section 2 hold after each, and ``outcome``
says what the user then has: the same whenever they act, where it does not depend on the moment.

Every scenario is also played over the wire, at fewer moments, with the strict double of the Messages API as the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import pytest
import trio
from double import Cut, Say, Status, Step, calls, nothing, text
from support import (
    ANOTHER_MODEL,
    DROP,
    EDIT,
    INTERRUPT,
    SKIPPED,
    Acts,
    Session,
    check_heard,
    check_invariants,
    check_silence,
    open_session,
    wait_quiet,
)
from support import settings as chain_settings
from support.examples import fewer, some
from support.models import cling, fail_reading, hang, steered, wait, watch
from support.wire import TOOLS as WIRE_TOOLS
from support.wire_bench import HANDLER, Bench, bench
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import event_json, events
from chain.errors import ModelError
from chain.messages import Message, Usage, block_from_json, to_json
from chain.model import Delta, Reply, Request

TOOLS = (*WIRE_TOOLS, hang, wait, watch, fail_reading, cling, steered)

# ----------------------------------------------------------------------------------------------- a model that answers


@dataclass
class Script:
    """Plays the steps of a task in turn; a message that has a word of ``answers`` in it is answered with that instead.

    A question that comes along with the task itself does not keep the model from it.
    """

    steps: list[Step]
    answers: Mapping[str, Step]
    played: int = 0

    def next(self, messages: Sequence[Mapping[str, Any]]) -> Step:
        said: list[str] = []
        for message in reversed(messages):
            if message["role"] == "assistant":
                break
            blocks = message["content"]
            said += [b["text"] for b in blocks if b["type"] == "text"] if isinstance(blocks, list) else [blocks]
        for word, step in self.answers.items():
            if any(word in t for t in said) and not (step is GOES_WELL and DOES_TASK in said):
                return step
        step = self.steps[self.played] if self.played < len(self.steps) else FINAL
        self.played += 1
        return step


@dataclass
class Player:
    """The model of a script, without a wire. Its name is in the ids of its calls."""

    script: Script
    name: str = "one"
    replies: int = 0

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        step = self.script.next([to_json(m) for m in request.messages])
        await trio.lowlevel.checkpoint()
        if isinstance(step, Status):
            raise ModelError(step.message, retryable=step.code != 400)
        say = step.reply if isinstance(step, Cut) else step
        assert isinstance(say, Say)
        self.replies += 1
        for block in say.blocks:
            whole = block.get("text", "")
            chunk = say.text_chunk or max(len(whole), 1)
            for at in range(0, len(whole), chunk):
                on_delta(Delta("text", whole[at : at + chunk]))
                await trio.sleep(say.delay_between)
                if isinstance(step, Cut):
                    raise ModelError("the stream broke off", retryable=True)
        blocks = [
            {**b, "id": f"{self.name}_{self.replies}_{n}"} if b["type"] == "tool_use" else b
            for n, b in enumerate(say.blocks)
        ]
        message = Message("assistant", tuple(block_from_json(b) for b in blocks))
        reason: Any = say.stop_reason or ("tool_use" if message.calls else "end_turn")
        return Reply(message, reason, Usage(1, 1))

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def aclose(self) -> None:
        """There is nothing to give up."""


# ------------------------------------------------------------------------------------------------------ what is played

ANSWER = "The final answer."
FINAL = text(ANSWER, text_chunk=6)
LOOK = calls(("look", {"at": "x"}), ("slow", {}), say="Let me look.", text_chunk=6)
THREE = calls(("slow", {}), ("slow", {"seconds": 2.0}), ("slow", {}))
WORK = [LOOK, THREE, FINAL]
GOES_WELL = text("It goes well.", text_chunk=6)
OTHER = text("I took the other way.", text_chunk=6)

DOES_TASK = "Do the task"

CANCELLED = {"cancelled", "cancelled_with_partial", "cancelled_during_synthesis"}


@dataclass
class Played:
    """What came of one replay. ``when`` is ``before``, ``during`` or ``after`` the run of the task."""

    session: Session
    when: str

    @property
    def states(self) -> dict[str, str]:
        """What became of each line, by its text."""
        return {r.text: r.state for r in self.session.chain.receipts}

    @property
    def runs(self) -> list[tuple[str, events.Result]]:
        """Each run's query and result."""
        queries = [e.query for e in self.session.of(events.RunStarted)]
        return list(zip(queries, self.session.of(events.Result), strict=True))

    @property
    def task(self) -> events.Result:
        """The result of the task's run."""
        return next(result for query, result in self.runs if query == DOES_TASK)

    @property
    def plan(self) -> list[tuple[str, str]]:
        return [(t.text, t.state) for t in self.session.chain.plan.tasks]

    @property
    def read(self) -> str:
        """Everything that the user's side of the conversation says."""
        return "\n".join(
            b["text"]
            for r in self.session.records
            if r["type"] == "message" and r["message"]["role"] == "user"
            for b in r["message"]["content"]
            if b["type"] == "text"
        )

    def was_delivered(self, line: str, message: str = "") -> None:
        """The line is in the conversation exactly once."""
        assert self.states[line] == "delivered"
        assert self.read.count(message or line) == 1


Outcome: TypeAlias = Callable[[Played], None]


@dataclass(frozen=True)
class Scenario:
    """``user`` is what the user does, all in one step; ``later`` a number of events after that; ``first`` is submitted
    before the task, with nothing running."""

    user: Sequence[str]
    outcome: Outcome
    steps: Sequence[Step] = field(default_factory=lambda: WORK)
    answers: Mapping[str, Step] = field(default_factory=dict)
    later: Mapping[int, str] = field(default_factory=dict)
    first: Sequence[str] = ()
    handler: str = ""
    max_iterations: int = 8
    inbox_size: int = 10
    interactive: bool = False
    withdraws: bool = False
    then: Callable[[Session], None] = lambda session: None
    """What the user does once all that is over."""


SCENARIOS: dict[str, Scenario] = {}


def scenario(*user: str, **options: Any) -> Callable[[Outcome], Outcome]:
    """A scenario, named after the function that says what comes of it."""

    def add(outcome: Outcome) -> Outcome:
        SCENARIOS[outcome.__name__.replace("_", " ")] = Scenario(user, outcome, **options)
        return outcome

    return add


def is_done(played: Played) -> None:
    """The task's run ended as if nobody had said anything."""
    assert (played.task.status, played.task.result) == ("done", ANSWER)


# ---- the plan

ADD = "todo: add verify the data"


@scenario(ADD)
def adds_a_task_while_a_tool_runs(played: Played) -> None:
    is_done(played)
    assert played.plan == [("verify the data", "PENDING")]
    if played.when == "during":
        played.was_delivered(ADD, "(Done: task 1 added: verify the data)")
    else:
        assert played.states[ADD] == "handled"


@scenario("!todo: add verify the data")
def adds_a_task_and_wants_it_done_at_once(played: Played) -> None:
    is_done(played)
    assert played.plan == [("verify the data", "PENDING")]


@scenario("todo: done 1", first=["todo: add one", "todo: add two"])
def ticks_off_a_task(played: Played) -> None:
    is_done(played)
    assert played.plan == [("one", "DONE"), ("two", "PENDING")]


@scenario("todo: done 9")
def ticks_off_a_task_that_does_not_exist(played: Played) -> None:
    is_done(played)
    assert played.plan == []
    if played.when == "during":
        played.was_delivered("todo: done 9", "(Not done: there is no task 9; the plan is empty)")


@scenario("todo: complete x")
def mistypes_a_plan_command(played: Played) -> None:
    is_done(played)
    assert played.states["todo: complete x"] == "refused"
    assert "complete x" not in played.read


# ---- a change of course

REDIRECT = "use the other file"


@scenario(REDIRECT, answers={REDIRECT: OTHER})
def changes_course(played: Played) -> None:
    played.was_delivered(REDIRECT)
    if played.when == "during":
        assert (played.task.status, played.task.result) == ("done", "I took the other way.")
    else:
        is_done(played)


@scenario(f"!{REDIRECT}", answers={REDIRECT: OTHER}, steps=[THREE, FINAL])
def changes_course_in_mid_batch(played: Played) -> None:
    played.was_delivered(f"!{REDIRECT}", REDIRECT)
    if played.when != "during":
        is_done(played)
        return
    assert (played.task.status, played.task.result) == ("done", "I took the other way.")
    [entered] = played.session.of(events.UserInterruption)
    skipped = [e.name for e in played.session.of(events.ToolResult) if e.text == SKIPPED]
    assert list(entered.tools_skipped) == skipped
    assert (entered.point == "C") == bool(skipped)


@scenario("!one", "!two", answers={"one": OTHER, "two": OTHER})
def is_urgent_twice(played: Played) -> None:
    assert {played.states["!one"], played.states["!two"]} == {"delivered"}


@scenario("one", "two", "three", "!four", answers={"one": OTHER, "four": OTHER})
def types_a_burst_of_lines(played: Played) -> None:
    assert {played.states[t] for t in ("one", "two", "three", "!four")} == {"delivered"}
    if played.when == "during":
        [entered] = played.session.of(events.UserInterruption)
        assert entered.message == "one\n\ntwo\n\nthree\n\n!four"


@scenario(" stop", answers={"INTERRUPTION: stop": OTHER})
def says_stop_as_a_text(played: Played) -> None:
    assert played.states[" stop"] == "delivered"
    assert played.task.status == "done"


@scenario("x" * 100_001)
def pastes_far_too_much(played: Played) -> None:
    is_done(played)
    assert played.states["x" * 1_000] == "refused"


@scenario(REDIRECT, later={9: "and quickly"}, answers={REDIRECT: LOOK})
def changes_course_and_adds_to_it(played: Played) -> None:
    assert played.task.status == "done"
    assert {played.states[REDIRECT], played.states["and quickly"]} == {"delivered"}
    assert played.read.index(REDIRECT) < played.read.index("and quickly")


# ---- asides

ASKS = "how is it going?"


@scenario(ASKS, answers={ASKS: GOES_WELL})
def asks_how_it_goes_and_the_task_goes_on(played: Played) -> None:
    played.was_delivered(ASKS)
    is_done(played)
    answered = [q for q, r in played.runs if "It goes well." in r.replies]
    came_with_task = any(e.point == "A" for e in played.session.of(events.UserInterruption))
    assert answered == ([] if came_with_task else [DOES_TASK if played.when == "during" else ASKS])


@scenario(ASKS, later={12: "and now?"}, answers={ASKS: GOES_WELL, "and now?": GOES_WELL})
def asks_twice(played: Played) -> None:
    is_done(played)
    assert {played.states[ASKS], played.states["and now?"]} == {"delivered"}


@scenario(ASKS, REDIRECT, answers={REDIRECT: OTHER, ASKS: GOES_WELL})
def asks_and_changes_course(played: Played) -> None:
    assert {played.states[ASKS], played.states[REDIRECT]} == {"delivered"}
    if played.when == "during":
        assert played.task.result == "I took the other way."


@scenario(ASKS, handler="resume: false", answers={ASKS: GOES_WELL})
def asks_where_the_handler_does_not_come_back(played: Played) -> None:
    played.was_delivered(ASKS)
    assert played.task.status == "done"
    assert "Your reply was shown" not in played.read


@scenario(ASKS, handler=HANDLER, answers={ASKS: GOES_WELL})
def asks_where_the_handler_has_its_own_words(played: Played) -> None:
    is_done(played)
    tails = [r.tail for r in played.session.model.requests if r.tail]
    assert len(tails) == (played.when == "during")


@scenario("status", answers={"status": GOES_WELL})
def asks_for_the_status(played: Played) -> None:
    is_done(played)
    assert played.states["status"] == ("delivered" if played.when == "during" else "handled")


@scenario("context: the data is from May", "focus on prices", answers={"from May": OTHER, "focus": OTHER})
def sends_context_and_then_focuses(played: Played) -> None:
    played.was_delivered("context: the data is from May", "[USER ADDED] the data is from May")
    played.was_delivered("focus on prices")
    assert played.read.index("from May") < played.read.index("focus on")


@scenario("focus on prices", steps=[calls(("steered", {})), FINAL], answers={"focus on": LOOK})
def steers_a_running_tool(played: Played) -> None:
    is_done(played)
    played.was_delivered("focus on prices")
    heard = [e for e in played.session.of(events.ToolProgress) if e.text == "heard prices"]
    assert len(heard) <= (played.when == "during")


@scenario("skip docs", "stop", steps=[calls(("steered", {}), ("slow", {})), FINAL])
def skips_a_source_and_then_stops(played: Played) -> None:
    if played.when == "during":
        assert played.task.status in CANCELLED
        was_heard = any(e.text == "heard docs" for e in played.session.of(events.ToolProgress))
        assert played.states["skip docs"] == ("handled" if was_heard else "returned")


@scenario("skip docs", later={2: DROP}, steps=[calls(("steered", {}), ("slow", {})), FINAL])
def drops_a_line_that_a_tool_may_have_heard(played: Played) -> None:
    was_heard = any(e.text == "heard docs" for e in played.session.of(events.ToolProgress))
    assert played.states["skip docs"] in ({"delivered"} if was_heard else {"delivered", "dropped"})


@scenario("skip docs", later={2: INTERRUPT}, steps=[calls(("steered", {}), ("slow", {})), FINAL])
def interrupts_a_tool_that_may_have_heard_a_line(played: Played) -> None:
    was_heard = any(e.text == "heard docs" for e in played.session.of(events.ToolProgress))
    assert played.states["skip docs"] in ({"delivered", "handled"} if was_heard else {"delivered", "returned"})


# ---- what comes next


@scenario("then: one", "then: two")
def says_then_twice(played: Played) -> None:
    is_done(played)
    queries = [q for q, _ in played.runs]
    assert (
        queries
        == {
            "before": ["one", "two", DOES_TASK],
            "during": [DOES_TASK, "one", "two"],
            "after": [DOES_TASK, "one", "two"],
        }[played.when]
    )
    assert {played.states["then: one"], played.states["then: two"]} == {"delivered"}


@scenario("then: one", ASKS, answers={ASKS: GOES_WELL})
def says_then_and_asks(played: Played) -> None:
    is_done(played)
    assert {played.states["then: one"], played.states[ASKS]} == {"delivered"}


@scenario("then: one", "stop")
def says_then_and_stops(played: Played) -> None:
    if played.when == "during":
        assert played.states["then: one"] == "returned"
        assert [q for q, _ in played.runs] == [DOES_TASK]


# ---- stops


def was_stopped(played: Played, line: str = "stop") -> None:
    """The run was stopped, and what it had found is shown; no call follows, and all that was asked for is answered."""
    if played.when != "during":
        assert line not in played.states
        assert played.task.status == "done"
        return
    task = played.task
    assert played.states[line] == "handled"
    assert (task.status in CANCELLED, task.partial, task.termination_reason) == (True, True, "user_cancelled")
    found = [e.text for e in played.session.of(events.ToolResult) if not e.is_error]
    assert list(task.partial_results) == found
    assert task.status != "cancelled" or not found
    assert played.read.endswith("[The user stopped the run here]")


LONG = text("A long answer that takes its time to come.", text_chunk=4, delay_between=0.5)


@scenario("stop", steps=[LONG])
def stops_while_text_streams(played: Played) -> None:
    was_stopped(played)
    if played.when == "during":
        shown = "".join(e.text for e in played.session.of(events.TextDelta))
        assert played.task.replies == ((shown.strip(),) if shown else ())


@scenario("stop", steps=[LOOK, LONG])
def stops_while_the_findings_are_put_together(played: Played) -> None:
    was_stopped(played)


@scenario("stop", steps=[THREE, FINAL])
def stops_in_the_second_tool_of_three(played: Played) -> None:
    was_stopped(played)


@scenario("stop", steps=[calls(*[("watch", {})] * 3, ("slow", {})), FINAL])
def stops_in_a_batch_of_reading_tools(played: Played) -> None:
    was_stopped(played)


@scenario("Never mind!")
def says_never_mind(played: Played) -> None:
    was_stopped(played, "Never mind!")


@scenario("stop", "stop")
def stops_twice(played: Played) -> None:
    was_stopped(played)


@scenario("!at once", "stop")
def is_urgent_and_then_stops(played: Played) -> None:
    if played.when == "during":
        assert played.task.status in CANCELLED
        assert played.states["!at once"] == "returned"


@scenario("stop", "do something else")
def stops_and_types_at_once(played: Played) -> None:
    if played.when == "during":
        was_stopped(played)
        assert played.states["do something else"] == "returned"


@scenario("stop", steps=[Cut(5, reply=FINAL), Status(529), FINAL])
def stops_while_the_service_is_unwell(played: Played) -> None:
    was_stopped(played)


# ---- interrupts


def was_interrupted(played: Played) -> None:
    """The run was cut short at once, and the next one works."""
    if played.when != "during":
        assert played.task.status == "done"
        return
    task = played.task
    assert (task.status, task.termination_reason) == ("interrupted", "user_interrupted")
    assert task.result == "Interrupted. Tell the chain what to do instead."
    assert "[The user interrupted the run here]" in played.read
    assert played.session.chain.exit_code() == 130


@scenario(INTERRUPT, steps=[LONG])
def interrupts_a_model_call(played: Played) -> None:
    was_interrupted(played)


@scenario(INTERRUPT, steps=[calls(("hang", {}), ("look", {})), FINAL])
def interrupts_a_hanging_tool(played: Played) -> None:
    was_interrupted(played)


@scenario(INTERRUPT, steps=[calls(("cling", {}), ("look", {})), FINAL])
def interrupts_a_tool_that_clings(played: Played) -> None:
    was_interrupted(played)


@scenario(INTERRUPT, steps=[calls(("watch", {}), ("wait", {}), ("fail_reading", {}), ("slow", {})), FINAL])
def interrupts_a_batch_of_reading_tools(played: Played) -> None:
    was_interrupted(played)


@scenario(INTERRUPT, steps=[Status(529), Cut(5, reply=FINAL), Status(529), FINAL])
def interrupts_in_the_retry_backoff(played: Played) -> None:
    was_interrupted(played)


@scenario(INTERRUPT, INTERRUPT)
def interrupts_twice(played: Played) -> None:
    was_interrupted(played)


@scenario(REDIRECT, INTERRUPT)
def types_a_line_and_interrupts(played: Played) -> None:
    if played.when == "during":
        was_interrupted(played)
        assert played.states[REDIRECT] == "returned"


@scenario(INTERRUPT, REDIRECT)
def interrupts_and_types_at_once(played: Played) -> None:
    if played.when == "during":
        was_interrupted(played)
        assert played.states[REDIRECT] == "returned"


@scenario("stop", INTERRUPT)
def stops_and_then_interrupts(played: Played) -> None:
    # Where the stop leaves nothing to cut short, it is the stop that ends the run.
    assert played.task.status in ({*CANCELLED, "interrupted"} if played.when == "during" else {"done"})


# ---- lines that wait


@scenario(REDIRECT, DROP)
def drops_a_line_that_waits(played: Played) -> None:
    is_done(played)
    if played.when == "during":
        assert played.states[REDIRECT] == "dropped"
        assert REDIRECT not in played.read


@scenario(REDIRECT, later={4: DROP}, answers={REDIRECT: OTHER})
def drops_a_line_a_little_later(played: Played) -> None:
    state = played.states[REDIRECT]
    assert state in ("delivered", "dropped")
    assert played.read.count(REDIRECT) == (state == "delivered")
    assert played.task.result == (ANSWER if state == "dropped" or played.when != "during" else "I took the other way.")


@scenario("!skip the rest", DROP, steps=[THREE, FINAL])
def drops_an_urgent_line(played: Played) -> None:
    is_done(played)
    if played.when == "during":
        assert played.states["!skip the rest"] == "dropped"
        assert SKIPPED not in [e.text for e in played.session.of(events.ToolResult)]


@scenario(REDIRECT, EDIT, answers={REDIRECT: OTHER})
def edits_a_waiting_line(played: Played) -> None:
    edited = next((t for t in played.states if t.startswith(f"{REDIRECT} ‹")), None)
    assert (edited is not None) == (played.when == "during")
    if edited is not None:
        assert played.states[REDIRECT] == "dropped"
        played.was_delivered(edited)


@scenario("one", "two", "three", "four", inbox_size=2, answers={"one": OTHER, "two": OTHER, "three": OTHER})
def fills_the_inbox(played: Played) -> None:
    refused = [t for t in ("one", "two", "three", "four") if played.states[t] == "refused"]
    assert refused == (["three", "four"] if played.when == "during" else ["four"])
    assert {s for t, s in played.states.items() if t not in refused} == {"delivered"}


@scenario("one", "two", DROP, "three", inbox_size=2, answers={"one": OTHER, "three": OTHER})
def makes_room_in_a_full_inbox(played: Played) -> None:
    if played.when == "during":
        assert [played.states[t] for t in ("one", "two", "three")] == ["delivered", "dropped", "delivered"]


# ---- at the edges of a run


@scenario(REDIRECT, answers={REDIRECT: OTHER}, steps=[FINAL])
def types_a_line_as_the_run_ends(played: Played) -> None:
    played.was_delivered(REDIRECT)
    assert played.task.status == "done"


@scenario(ASKS, max_iterations=2, answers={ASKS: GOES_WELL})
def asks_as_the_iterations_run_out(played: Played) -> None:
    assert (played.task.status, played.task.iterations) == ("max_iterations", 2)
    assert played.states[ASKS] in ("delivered", "returned")


@scenario(ASKS, max_iterations=2, interactive=True, answers={ASKS: GOES_WELL})
def asks_as_the_iterations_run_out_at_a_terminal(played: Played) -> None:
    assert played.task.status == "max_iterations"
    played.was_delivered(ASKS)


@scenario("!todo: add x", max_iterations=1, steps=[THREE])
def adds_a_task_in_the_last_iteration(played: Played) -> None:
    assert played.task.status == "max_iterations"
    # In the step in which the end is announced it is too late.
    state = played.states["!todo: add x"]
    assert state in ("handled", "delivered", "returned")
    assert played.plan == ([] if state == "returned" else [("x", "PENDING")])


@scenario(REDIRECT, steps=[LOOK, Status(400, message="No.")], answers={REDIRECT: OTHER})
def types_a_line_before_the_service_fails(played: Played) -> None:
    assert played.states[REDIRECT] in ("delivered", "returned")
    assert played.task.status in ("error", "done")


@scenario(REDIRECT, steps=[LOOK, text("Some te", stop_reason="max_tokens")], answers={REDIRECT: OTHER})
def types_a_line_before_the_answer_is_cut_off(played: Played) -> None:
    assert played.states[REDIRECT] in ("delivered", "returned")
    assert played.task.status in ("truncated", "done")


@scenario(REDIRECT, steps=[LOOK, nothing(), FINAL], answers={REDIRECT: OTHER})
def types_a_line_around_an_empty_reply(played: Played) -> None:
    played.was_delivered(REDIRECT)
    assert played.task.status == "done"


def try_again(session: Session) -> None:
    """Send again what a refusal gave back."""
    for receipt in session.chain.receipts:
        if receipt.state == "returned" and receipt.text == DOES_TASK:
            session.chain.submit("Do it another way")


@scenario(
    ASKS,
    steps=[LOOK, text("No.", stop_reason="refusal"), FINAL],
    answers={ASKS: GOES_WELL},
    withdraws=True,
    then=try_again,
)
def is_refused_and_tries_again(played: Played) -> None:
    assert played.task.status == "refused"
    assert played.states[DOES_TASK] in ("returned", "delivered")
    assert played.runs[-1][1].status in ("done", "refused")
    assert played.when == "after" or played.states[ASKS] in ("delivered", "returned")


@scenario(ANOTHER_MODEL)
def changes_the_model(played: Played) -> None:
    is_done(played)


# ---------------------------------------------------------------------------------------------------------- replaying


@dataclass
class User(Acts):
    """Does what a scenario says at event ``moment``: in its step, or once everything stands still after it."""

    play: Scenario = field(default_factory=lambda: SCENARIOS["changes the model"])
    moment: int = -1
    settled: bool = False
    when: str = ""
    later: dict[int, str] = field(default_factory=dict)
    due: trio.Event = field(default_factory=trio.Event)
    task_is_there: bool = False

    def __call__(self, event: events.Event) -> None:
        self.seen += 1
        if self.seen == self.moment:
            self.due.set()
            if not self.settled:
                self.act()
        elif self.seen in self.later:
            self.do(self.later.pop(self.seen))

    def act(self) -> None:
        if not self.when:
            self.when = "before" if not self.task_is_there else "during" if self.session.chain.is_running else "after"
            self.later = {self.seen + n: what for n, what in self.play.later.items()}
            for what in self.play.user:
                self.do(what)

    async def act_when_settled(self) -> None:
        await self.due.wait()
        await wait_all_tasks_blocked()
        self.act()

    async def finish(self) -> None:
        """Wait for the end of it all, and do then what is still to be done."""
        await wait_quiet(self.session)
        self.act()
        while self.later:
            await wait_quiet(self.session)
            if self.later:
                self.do(self.later.pop(min(self.later)))
        await wait_quiet(self.session)
        self.play.then(self.session)
        await wait_quiet(self.session)


async def replay(session: Session, play: Scenario, moment: int, another: Callable[[], Any], *, settled: bool) -> Played:
    """Play a scenario. Moment -1 is before the run, 0 before its first step, 1 the first event; one that never comes is
    after the run."""
    user = User(session, (), True, another, play=play, moment=moment, settled=settled)
    for line in play.first:
        session.chain.submit(line)
        await session.chain.wait_idle()
    if moment == -1:
        user.act()
        await wait_quiet(session)
    session.chain.listen(user)
    async with trio.open_nursery() as nursery:
        if settled:
            nursery.start_soon(user.act_when_settled)
        session.chain.submit(DOES_TASK)
        user.task_is_there = True
        if moment == 0:
            user.act()
        await user.finish()
        nursery.cancel_scope.cancel()
    check_invariants(session, max_iterations=play.max_iterations, one_in=6)
    check_silence(session, session.interrupted_at)
    check_heard(session)
    return Played(session, user.when)


@contextmanager
def told(session: Session, moment: int, *, settled: bool) -> Iterator[None]:
    """Say in a failure when the user acted, and what happened."""
    try:
        yield
    except Exception as error:
        error.add_note(f"at moment {moment}{', settled' if settled else ''}:")
        for event in session.events:
            fields = {k: v for k, v in event_json.to_json(event).items() if k in SHOWN and v not in ("", None)}
            error.add_note(" ".join([event.type, *(f"{k}={v!r}" for k, v in fields.items())]))
        raise


SHOWN = ("iteration", "id", "state", "text", "name", "status", "query", "point", "message", "tool_calls")


def opened(play: Scenario) -> dict[str, Any]:
    """How the session of a scenario is opened."""
    use = chain_settings(max_iterations=play.max_iterations, inbox_size=play.inbox_size, handler=play.handler)
    return {"tools": TOOLS, "use": use, "interactive": play.interactive}


async def moments_of(play: Scenario) -> int:
    """How many moments the scenario has when the user does nothing."""
    async with open_session(Player(Script(list(play.steps), play.answers)), **opened(play)) as session:
        for line in (*play.first, DOES_TASK):
            session.chain.submit(line)
            await session.chain.wait_idle()
        return len(session.events)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_user_does_it_at_every_moment(name: str, autojump_clock: MockClock) -> None:
    random.seed(0)  # the jitter of the retries
    play = SCENARIOS[name]
    whens = set()
    for moment in some(range(-1, await moments_of(play) + 2), every=8):
        for settled in (False, True) if moment > 0 else (False,):
            script = Script(list(play.steps), play.answers)
            async with open_session(Player(script), **opened(play)) as session:
                with told(session, moment, settled=settled):
                    played = await replay(session, play, moment, partial(Player, script, "other"), settled=settled)
                    play.outcome(played)
            whens.add(played.when)
    assert whens == {"before", "during", "after"}


@pytest.mark.sampled
@pytest.mark.parametrize("name", some([*SCENARIOS], every=6))
async def test_the_service_takes_every_request_of_it(name: str, mock_clock: MockClock) -> None:
    random.seed(0)
    play = SCENARIOS[name]
    async with bench(mock_clock) as at:
        count = await moments_of(play)
        for n in range(WIRE_MOMENTS):
            moment, settled = -1 + (count + 2) * n // (WIRE_MOMENTS - 1), n % 2 == 1
            await over_the_wire(at, play, moment, settled=settled)
        assert [c for r in at.double.requests for c in r.complaints] == []


WIRE_MOMENTS = fewer(8, divided_by=4)


async def over_the_wire(at: Bench, play: Scenario, moment: int, *, settled: bool) -> None:
    script = Script(list(play.steps), play.answers)

    def answer(body: object) -> Step:
        return script.next([to_json(m) for m in at.session.model.requests[-1].messages])

    async with at.open(answer, **opened(play)) as session:
        if play.withdraws:
            at.double.expect_withdrawal()
        with told(session, moment, settled=settled):
            played = await replay(session, play, moment, lambda: at.model, settled=settled)
            play.outcome(played)
