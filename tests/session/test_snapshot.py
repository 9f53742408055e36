"""The snapshot brings a late subscriber up to date, so that it knows as much as one that saw all events."""

from __future__ import annotations

import random

import trio
from hypothesis import strategies as st
from support import INTERRUPT, LINES, Acts, Session, at, open_session, settings, sharded, wait_quiet
from support.agents import WAIT, Obedient, Waiters, delegate_twice, work
from support.crashes import reopened
from support.gates import THREE_TOOLS, Gates, begin, finish
from support.models import ASKING_TOOLS, RandomModel, Step, steps
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.events import Event
from chain.session.snapshot import Snapshot

_IN_SNAPSHOTS = (
    *(events.RunStarted, events.AgentStarted, events.PlanChanged, events.LineQueued, events.Question),
    *(events.TextDelta, events.Retry, events.Result),
)


def types(events_: tuple[Event, ...]) -> list[str]:
    return [event.type for event in events_]


async def test_failed_text_ends_with_its_run() -> None:
    model = "rules: [{text: The answer., error: {message: broken, retryable: false, after: 4}}]"
    async with open_session(model) as session:
        shown: list[list[str]] = []
        at(session, events.TextDelta, lambda: shown.append(types(session.chain.snapshot)))
        await session.run("Do the task")
        assert shown == [["run_started", "text_delta"]]
        assert session.result.status == "error"
        assert session.chain.snapshot == ()


async def test_a_resumed_session_starts_with_plan_and_lines(autojump_clock: MockClock) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        assert session.chain.snapshot == ()
        session.chain.submit("todo: add x")
        await begin(session, gates, "a", "use A", "use B")
        session.chain.lines.drop("L3")
        data = session.file.data
        await finish(session, gates)
    async with reopened(data, THREE_TOOLS, tools=gates.tools) as again:
        [plan, line] = again.chain.snapshot
        assert isinstance(plan, events.PlanChanged)
        assert isinstance(line, events.LineQueued)
        assert ([task.text for task in plan.tasks], line.text, line.waiting) == (["x"], "use B", 1)


async def test_a_refused_line_with_a_waiting_lines_id_removes_nothing() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "a", "use B")
        before = session.chain.snapshot
        assert session.chain.submit("use C", id="L2", origin="json").what == "refused", "L2 waits already"
        session.chain.lines.mark_unsent("@done use D", "it never came", id="L2")
        assert session.chain.snapshot == before
        assert [event.id for event in before if isinstance(event, events.LineQueued)] == ["L2"]
        await finish(session, gates)


async def test_each_agent_stays_until_it_ends() -> None:
    waiters = Waiters()
    async with open_session(Obedient(), tools=[waiters.tool, delegate_twice], use=settings(agents=True)) as session:
        session.chain.submit(work([["delegate_twice", {"task": work([WAIT])}]]))
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


class _Follower:
    """A subscriber, and what it knows from a snapshot and the events after it."""

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
        use = settings(max_iterations=6)
        async with open_session(RandomModel(drawn), tools=ASKING_TOOLS, use=use) as session:
            await follow(session, lines)

    random.seed(0)  # the jitter of the retries
    trio.run(main, clock=MockClock(autojump_threshold=0))


async def follow(session: Session, lines: list[tuple[int, str]]) -> None:
    """Play a session, and check at each event that late subscribers know what the first one knows.

    ``lines`` are numbers of events and the lines sent in their step. A subscriber arrives at each of the first events,
    and at each event that a snapshot may contain.
    """
    first, late = _Follower(()), []

    def check(event: Event) -> None:
        first.update(event)
        for follower in late:
            follower.update(event)
            assert follower.knowledge == first.knowledge
        if isinstance(event, _IN_SNAPSHOTS) or len(late) < 5:
            late.append(_Follower(session.chain.snapshot))

    session.chain.listen(check)
    acts = Acts(session, lines)
    session.chain.listen(acts)
    session.chain.submit("Do the task")
    acts.at_once()
    await wait_quiet(session)
    assert late


def test_a_later_answer_closes_no_other_question() -> None:
    def question(id: str) -> events.Question:
        return events.Question(id=id, kind="choice", text="?", options=(), tool_call_id="c", name="ask_user")

    snapshot = Snapshot()
    snapshot.update(question("Q1"))
    snapshot.update(question("Q2"))
    snapshot.update(events.Answer(id="Q2", text="", decision="allowed", by="config"))
    assert [event.id for event in snapshot.events if isinstance(event, events.Question)] == ["Q1"]
