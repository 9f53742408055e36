"""Scenarios in which a user acts while a chain works, replayed with the user acting at every moment of the run.

A scenario is a scripted model, and the lines and keys of the user. It is replayed once without the user to count the
events. Then it is replayed with the user acting before the run, in the step of each event, after each event once all
tasks are blocked, and after the run. Each replay checks the invariants of SPEC section 2, and then the scenario's
``outcome``.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pytest
import trio
from support.checks import check_session
from support.examples import sample_in_short_run
from support.models import TOOLS, RandomModel, Step
from support.sessions import SKIPPED, Session, call_at_event, make_settings, open_session, wait_quiet
from support.users import DROP, EDIT, INTERRUPT, ActingUser
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.events import Point
from chain.messages import Text, ToolCall
from chain.model import Delta, Reply, Request
from chain.session.exit_codes import INTERRUPTED_CODE


@dataclass
class Script(RandomModel):
    """A model that plays the steps of a task in turn.

    If a new message contains a key of ``answers``, the reply is the step for this key instead. A progress question in
    the same message as the task is not answered: the model does the task.
    """

    answers: Mapping[str, Step] = field(default_factory=dict)

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        steps, new_texts = self.steps, list[str]()
        for message in reversed(request.messages):
            if message.role == "assistant":
                break
            new_texts += [block.text for block in message.blocks if isinstance(block, Text)]
        for key, step in self.answers.items():
            if any(key in text for text in new_texts) and not (step is PROGRESS_REPLY and TASK in new_texts):
                self.steps = [step]
                break
        try:
            return await super().reply(request, on_delta)
        finally:
            self.steps = steps


def calls(*names: str, say: str = "") -> Step:
    """Return a reply that calls these tools, in this order."""
    texts = (Text(say),) if say else ()
    return Step((*texts, *(ToolCall(f"{n}", name, {}) for n, name in enumerate(names))))


def text(text: str, **options: Any) -> Step:
    """Return a reply with this text."""
    return Step((Text(text),), **options)


ANSWER = "The final answer."
FINAL = text(ANSWER)
LOOK = calls("look", "slow", say="Let me look.")
THREE_CALLS = calls("slow", "slow", "slow")
LOOK_THEN_WORK = [LOOK, THREE_CALLS, FINAL]
PROGRESS_REPLY = text("It goes well.")
REDIRECTED = text("I took the other way.")
EMPTY_REPLY = Step(())

TASK = "Do the task"

CANCELLED = {"cancelled", "cancelled_with_partial", "cancelled_during_synthesis"}


@dataclass
class Played:
    """A session that was replayed."""

    session: Session
    when: str = ""
    """When the user acted: before, during or after the task's run."""

    @property
    def states(self) -> dict[str, str]:
        """The state of each line, by its text."""
        return {r.text: r.state for r in self.session.chain.lines.receipts}

    @property
    def runs(self) -> list[tuple[str, events.Result]]:
        """The query and the result of each run."""
        queries = [e.query for e in self.session.of(events.RunStarted)]
        return list(zip(queries, self.session.of(events.Result), strict=True))

    @property
    def task(self) -> events.Result:
        """The result of the task's run."""
        return next(result for query, result in self.runs if query == TASK)

    @property
    def plan(self) -> list[tuple[str, str]]:
        return [(t.text, t.state) for t in self.session.chain.plan.tasks]

    @property
    def user_text(self) -> str:
        """The text of all user messages of the conversation."""
        return "\n".join(
            b["text"]
            for r in self.session.records
            if r["type"] == "message" and r["message"]["role"] == "user"
            for b in r["message"]["content"]
            if b["type"] == "text"
        )

    def check_delivered(self, line: str, message: str = "") -> None:
        """Check that the line was delivered, and that its ``message`` is in the conversation exactly once."""
        assert self.states[line] == "delivered"
        assert self.user_text.count(message or line) == 1


Outcome: TypeAlias = Callable[[Played], None]


@dataclass(frozen=True)
class Scenario:
    """The user's actions, all in one step, with the steps and answers of ``Script``, and a check of the result."""

    user: Sequence[str]
    outcome: Outcome
    steps: Sequence[Step] = field(default_factory=lambda: LOOK_THEN_WORK)
    answers: Mapping[str, Step] = field(default_factory=dict)


NEVER = -2
"""A moment without an event. The user acts after the run."""

SCENARIOS: dict[str, Scenario] = {}


def scenario(*user: str, **options: Any) -> Callable[[Outcome], Outcome]:
    """Add a scenario. The decorated function names it, and checks its result."""

    def add(outcome: Outcome) -> Outcome:
        SCENARIOS[outcome.__name__.replace("_", " ")] = Scenario(user, outcome, **options)
        return outcome

    return add


def check_done(played: Played) -> None:
    """Check that the task's run ended as if the user had done nothing."""
    assert (played.task.status, played.task.result) == ("done", ANSWER)


ADD = "todo: add verify the data"


@scenario(ADD)
def adds_a_task_while_a_tool_runs(played: Played) -> None:
    check_done(played)
    assert played.plan == [("verify the data", "PENDING")]
    if played.when == "during":
        played.check_delivered(ADD, "(Done: task 1 added: verify the data)")
    else:
        assert played.states[ADD] == "handled"


REDIRECT = "use the other file"


@scenario(REDIRECT, answers={REDIRECT: REDIRECTED})
def changes_course(played: Played) -> None:
    played.check_delivered(REDIRECT)
    if played.when == "during":
        assert (played.task.status, played.task.result) == ("done", "I took the other way.")
    else:
        check_done(played)


@scenario(f"!{REDIRECT}", answers={REDIRECT: REDIRECTED}, steps=[THREE_CALLS, FINAL])
def changes_course_in_a_batch_of_calls(played: Played) -> None:
    played.check_delivered(f"!{REDIRECT}", REDIRECT)
    if played.when != "during":
        check_done(played)
        return
    assert (played.task.status, played.task.result) == ("done", "I took the other way.")
    [interruption] = played.session.of(events.UserInterruption)
    skipped = [e.name for e in played.session.of(events.ToolResult) if e.text == SKIPPED]
    assert list(interruption.tools_skipped) == skipped
    assert (interruption.point == Point.BEFORE_TOOL) == bool(skipped)


@scenario("one", "two", "three", "!four", answers={"one": REDIRECTED, "four": REDIRECTED})
def types_a_burst_of_lines(played: Played) -> None:
    assert {played.states[t] for t in ("one", "two", "three", "!four")} == {"delivered"}
    if played.when == "during":
        [interruption] = played.session.of(events.UserInterruption)
        assert interruption.message == "one\n\ntwo\n\nthree\n\n!four"


PROGRESS_QUESTION = "how is it going?"


@scenario(PROGRESS_QUESTION, answers={PROGRESS_QUESTION: PROGRESS_REPLY})
def asks_how_it_goes_and_the_task_continues(played: Played) -> None:
    played.check_delivered(PROGRESS_QUESTION)
    check_done(played)
    # A question that came with the task gets no reply of its own.
    runs_with_reply = [query for query, result in played.runs if "It goes well." in result.replies]
    came_with_task = any(e.point == Point.BEFORE_FIRST_CALL for e in played.session.of(events.UserInterruption))
    assert runs_with_reply == ([] if came_with_task else [TASK if played.when == "during" else PROGRESS_QUESTION])


@scenario("focus on prices", steps=[calls("steered"), FINAL], answers={"focus on": LOOK})
def steers_a_running_tool(played: Played) -> None:
    check_done(played)
    played.check_delivered("focus on prices")
    received = [e for e in played.session.of(events.ToolProgress) if e.text == "heard prices"]
    assert len(received) <= (1 if played.when == "during" else 0)


@scenario("then: one", "then: two")
def queues_two_runs_with_then(played: Played) -> None:
    check_done(played)
    queries = [query for query, _ in played.runs]
    assert queries == (["one", "two", TASK] if played.when == "before" else [TASK, "one", "two"])
    assert {played.states["then: one"], played.states["then: two"]} == {"delivered"}


def check_stopped(played: Played, line: str = "stop") -> None:
    """Check that ``line`` stopped the run, and that the result contains the partial results."""
    if played.when != "during":
        assert line not in played.states
        assert played.task.status == "done"
        return
    task = played.task
    assert played.states[line] == "handled"
    assert (task.status in CANCELLED, task.partial, task.termination_reason) == (True, True, "user_cancelled")
    results = [e.text for e in played.session.of(events.ToolResult) if not e.is_error]
    assert list(task.partial_results) == results
    assert task.status != "cancelled" or not results
    assert played.user_text.endswith("[The user stopped the run here]")


LONG = text("A long answer that takes its time to come.", delay_s=0.5)


@scenario("stop", steps=[LONG])
def stops_while_text_streams(played: Played) -> None:
    check_stopped(played)
    if played.when == "during":
        shown = "".join(e.text for e in played.session.of(events.TextDelta))
        assert played.task.replies == ((shown.strip(),) if shown else ())


@scenario("stop", "do something else")
def stops_and_types_at_once(played: Played) -> None:
    if played.when == "during":
        check_stopped(played)
        assert played.states["do something else"] == "returned"


def check_interrupted(played: Played) -> None:
    """Check that the run was interrupted, and that the model is informed."""
    if played.when != "during":
        assert played.task.status == "done"
        return
    task = played.task
    assert (task.status, task.termination_reason) == ("interrupted", "user_interrupted")
    assert task.result == "Interrupted. Tell the chain what to do instead."
    assert "[The user interrupted the run here]" in played.user_text
    assert played.session.chain.runs.exit_code() == INTERRUPTED_CODE


@scenario(INTERRUPT, steps=[calls("cling", "look"), FINAL])
def interrupts_a_tool_that_clings(played: Played) -> None:
    check_interrupted(played)


@scenario(INTERRUPT, steps=[calls("watch", "wait", "fail_reading", "slow"), FINAL])
def interrupts_a_batch_of_reading_tools(played: Played) -> None:
    check_interrupted(played)


@scenario(INTERRUPT, REDIRECT)
def interrupts_and_types_at_once(played: Played) -> None:
    if played.when == "during":
        check_interrupted(played)
        assert played.states[REDIRECT] == "returned"


@scenario(REDIRECT, DROP)
def drops_a_line_that_waits(played: Played) -> None:
    check_done(played)
    if played.when == "during":
        assert played.states[REDIRECT] == "dropped"
        assert REDIRECT not in played.user_text


@scenario(REDIRECT, EDIT, answers={REDIRECT: REDIRECTED})
def edits_a_waiting_line(played: Played) -> None:
    edited = next((t for t in played.states if t.startswith(f"{REDIRECT} ‹")), None)  # EDIT appends a number
    assert (edited is not None) == (played.when == "during")
    if edited is not None:
        assert played.states[REDIRECT] == "dropped"
        played.check_delivered(edited)


@scenario(REDIRECT, steps=[LOOK, EMPTY_REPLY, FINAL], answers={REDIRECT: REDIRECTED})
def types_a_line_around_an_empty_reply(played: Played) -> None:
    played.check_delivered(REDIRECT)
    assert played.task.status == "done"


async def replay(scenario: Scenario, moment: int, *, is_settled: bool = False) -> Played:
    """Replay a scenario in which the user acts in the step of event ``moment``.

    If ``is_settled``, the user acts after this event, when all tasks are blocked. Moment -1 is before the run, and 0
    before its first step. If no event has this number, the user acts after the run.
    """
    async with open_session(Script(list(scenario.steps), answers=scenario.answers), tools=TOOLS) as session:
        user, due = ActingUser(session, (), also_idle=True), trio.Event()
        played = Played(session)

        def act() -> None:
            if not played.when:
                has_started = bool(session.of(events.RunStarted)) or session.chain.is_running
                played.when = "before" if not has_started else "during" if session.chain.is_running else "after"
                for action in scenario.user:
                    user.perform(action)

        async def act_when_settled() -> None:
            await due.wait()
            await wait_all_tasks_blocked()
            act()

        if moment == -1:
            act()
            await wait_quiet(session)
        call_at_event(session, events.Event, due.set if is_settled else act, moment)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(act_when_settled)
            session.chain.submit(TASK)
            if moment == 0:
                act()
            await wait_quiet(session)
            act()
            await wait_quiet(session)
            nursery.cancel_scope.cancel()
        check_session(session, make_settings().chain().max_iterations)
    return played


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_the_user_acts_at_every_moment(scenario: Scenario, autojump_clock: MockClock) -> None:
    undisturbed = await replay(replace(scenario, user=()), NEVER)
    last_moment = len(undisturbed.session.events) + 1  # without an event, so that the user acts after the run
    tested = set()
    for moment in sample_in_short_run(range(-1, last_moment + 1), every=8):
        for is_settled in (False, True) if moment > 0 else (False,):
            random.seed(0)  # the jitter of the retries
            try:
                played = await replay(scenario, moment, is_settled=is_settled)
                scenario.outcome(played)
            except Exception as error:
                error.add_note(f"at moment {moment}, {is_settled=}")
                raise
            tested.add(played.when)
    assert tested == {"before", "during", "after"}
