"""A snapshot brings a late subscriber up to date: it knows as much as one that received all events."""

from __future__ import annotations

import random

import trio
from hypothesis import strategies as st
from support.agents import WAIT, ObedientModel, Waiters, delegate_twice, task_of
from support.crashes import reopen
from support.examples import sharded
from support.gates import THREE_TOOLS, Gates, finish_run, start_run
from support.models import ASKING_TOOLS, RandomModel, Step, steps
from support.sessions import Session, call_at_event, make_settings, open_session, wait_quiet
from support.users import INTERRUPT, LINES, ActingUser
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.events import Event
from chain.session.snapshot import Snapshot

_IN_SNAPSHOTS = (
    *(events.RunStarted, events.AgentStarted, events.PlanChanged, events.LineQueued, events.Question),
    *(events.TextDelta, events.Retry, events.Result),
)


async def test_failed_text_is_dropped_with_its_run() -> None:
    model = "rules: [{text: The answer., error: {message: broken, retryable: false, after: 4}}]"
    async with open_session(model) as session:
        snapshots: list[tuple[Event, ...]] = []
        call_at_event(session, events.TextDelta, lambda: snapshots.append(session.chain.snapshot))
        await session.run("Do the task")
        [during_text] = snapshots
        assert [event.type for event in during_text] == ["run_started", "text_delta"]
        assert session.result.status == "error"
        assert session.chain.snapshot == ()


async def test_the_snapshot_after_resuming_has_plan_and_lines(autojump_clock: MockClock) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        assert session.chain.snapshot == ()
        session.chain.submit("todo: add x")
        await start_run(session, gates, "a", "use A", "use B")  # the run waits at gate "a"
        session.chain.lines.drop("L3")  # use A
        data = session.file.data
        await finish_run(session, gates)
    async with reopen(data, THREE_TOOLS, tools=gates.tools) as again:
        [plan, line] = again.chain.snapshot
        assert isinstance(plan, events.PlanChanged)
        assert isinstance(line, events.LineQueued)
        assert [task.text for task in plan.tasks] == ["x"]
        assert (line.text, line.waiting) == ("use B", 1)


async def test_a_repeated_id_removes_no_waiting_line() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await start_run(session, gates, "a", "use B")
        before = session.chain.snapshot
        assert session.chain.submit("use C", id="L2", origin="json").what == "refused", "L2 is use B, which waits"
        session.chain.lines.mark_unsent("@done use D", "not sent", id="L2")
        assert session.chain.snapshot == before
        assert [event.id for event in before if isinstance(event, events.LineQueued)] == ["L2"]
        await finish_run(session, gates)


async def test_the_snapshot_has_agents_until_they_end() -> None:
    waiters = Waiters()
    async with open_session(
        ObedientModel(), tools=[waiters.tool, delegate_twice], settings=make_settings(agents=True)
    ) as session:
        session.chain.submit(task_of([["delegate_twice", {"task": task_of([WAIT])}]]))
        await wait_all_tasks_blocked()
        assert agents_in_snapshot(session) == ["agent-1", "agent-2"]
        waiters.release("agent-2")
        await wait_all_tasks_blocked()
        assert agents_in_snapshot(session) == ["agent-1"]
        waiters.release("agent-1")
        await session.chain.wait_idle()
        assert agents_in_snapshot(session) == []


def agents_in_snapshot(session: Session) -> list[str]:
    return sorted(event.name for event in session.chain.snapshot if isinstance(event, events.AgentStarted))


class _Subscriber:
    """What a subscriber knows from a snapshot and the events after it."""

    def __init__(self, snapshot: tuple[Event, ...]) -> None:
        self.run: object = None
        self.lines: dict[str, str] = {}
        self.agents: dict[str, str] = {}
        self.plan: tuple[object, ...] = ()
        self.question: str = ""
        self.text = ""
        for event in snapshot:
            self.update(event)

    def update(self, event: Event) -> None:
        match event:
            case events.RunStarted(id=id, query=query):
                self.run = (id, query)
                self.lines.pop(id, None)
            case events.Result():
                self.run, self.text = None, ""
            case events.TextDelta(text=text):
                self.text += text
            case events.Reply() | events.Retry():
                self.text = ""
            case events.AgentStarted(name=name, parent_id=call):
                self.agents[name] = call
            case events.AgentEnded(name=name):
                self.agents.pop(name)
            case events.LineQueued(id=id, target_agent=agent):
                self.lines[id] = agent
            case events.UserInterruption(ids=ids):
                for id in ids:
                    self.lines.pop(id, None)
            case events.Receipt(id=id, state=state) if state not in ("refused", "unsent"):
                self.lines.pop(id, None)
            case events.PlanChanged(tasks=tasks):
                self.plan = tasks
            case events.Question(id=id):
                self.question = id
            case events.Answer():
                self.question = ""
            case _:
                pass

    @property
    def knowledge(self) -> tuple[object, ...]:
        return self.run, self.lines, self.agents, self.plan, self.question, self.text


@sharded(
    100,
    st.lists(steps, max_size=5),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([*LINES, INTERRUPT])), max_size=5),
)
def test_a_late_subscriber_knows_as_much_as_others(drawn: list[Step], lines: list[tuple[int, str]]) -> None:
    async def main() -> None:
        settings = make_settings(max_iterations=6)
        async with open_session(RandomModel(drawn), tools=ASKING_TOOLS, settings=settings) as session:
            await follow(session, lines)

    random.seed(0)  # for the random pauses before retries
    trio.run(main, clock=MockClock(autojump_threshold=0))


async def follow(session: Session, lines: list[tuple[int, str]]) -> None:
    """Play a session, and check at each event that late subscribers know what the first one knows.

    ``lines`` are lines by the numbers of the events in whose step they are sent. A subscriber is added at each of the
    first five events, and at each event that a snapshot may contain.
    """
    first, late_subscribers = _Subscriber(()), []

    def check(event: Event) -> None:
        first.update(event)
        for late in late_subscribers:
            late.update(event)
            assert late.knowledge == first.knowledge
        if isinstance(event, _IN_SNAPSHOTS) or len(late_subscribers) < 5:
            late_subscribers.append(_Subscriber(session.chain.snapshot))

    session.chain.listen(check)
    acts = ActingUser(session, lines)
    session.chain.listen(acts)
    session.chain.submit("Do the task")
    acts.perform_first()
    await wait_quiet(session)
    assert late_subscribers


def test_an_answer_closes_no_earlier_question() -> None:
    def question(id: str) -> events.Question:
        return events.Question(id=id, kind="choice", text="?", options=(), tool_call_id="c", name="ask_user")

    snapshot = Snapshot()
    snapshot.update(question("Q1"))
    snapshot.update(question("Q2"))
    snapshot.update(events.Answer(id="Q2", text="", decision="allowed", by="config"))
    assert [event.id for event in snapshot.events if isinstance(event, events.Question)] == ["Q1"]
