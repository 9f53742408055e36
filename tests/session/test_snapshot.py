"""The snapshot: a late subscriber gets the events with which the later ones make sense."""

from __future__ import annotations

import random

import trio
from hypothesis import strategies as st
from support import INTERRUPT, LINES, Acts, Session, at, open_session, settings, sharded, wait_quiet
from support.agents import WAIT, Obedient, Waiters, both, work
from support.crashes import reopened
from support.gates import THREE_TOOLS, Gates, begin, finish
from support.models import ASKING_TOOLS, RandomModel, Step, steps
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.events import Event
from chain.session.snapshot import Snapshot

_SHOWN = (
    *(events.RunStarted, events.AgentStarted, events.PlanChanged, events.LineQueued, events.Question),
    *(events.TextDelta, events.Retry, events.Result),
)


def types(events_: tuple[Event, ...]) -> list[str]:
    return [event.type for event in events_]


async def test_failed_text_ends_with_its_run() -> None:
    model = "rules: [{text: The answer., error: {message: broken, retryable: false, after: 4}}]"
    async with open_session(model) as session:
        shown: list[list[str]] = []
        at(session, events.TextDelta, lambda: shown.append(types(session.chain.standing)))
        await session.run("Do the task")
        assert shown == [["run_started", "text_delta"]]
        assert session.result.status == "error"
        assert session.chain.standing == ()


async def test_a_resumed_session_starts_with_plan_and_lines(autojump_clock: MockClock) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        assert session.chain.standing == ()
        session.chain.submit("todo: add x")
        await begin(session, gates, "a", "use A", "use B")
        session.chain.lines.drop("L3")
        data = session.file.data
        await finish(session, gates)
    async with reopened(data, THREE_TOOLS, tools=gates.tools) as again:
        [plan, line] = again.chain.standing
        assert isinstance(plan, events.PlanChanged)
        assert isinstance(line, events.LineQueued)
        assert ([task.text for task in plan.tasks], line.text, line.waiting) == (["x"], "use B", 1)


async def test_a_refusal_under_its_id_removes_no_line() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "a", "use B")
        before = session.chain.standing
        assert session.chain.submit("use C", id="L2", origin="json").what == "refused"
        session.chain.lines.mark_unsent("@done use D", "it never came", id="L2")
        assert session.chain.standing == before
        assert [event.id for event in before if isinstance(event, events.LineQueued)] == ["L2"]
        await finish(session, gates)


async def test_each_agent_stays_until_it_ends() -> None:
    waiters = Waiters()
    async with open_session(Obedient(), tools=[waiters.tool, both], use=settings(agents=True)) as session:
        session.chain.submit(work([["both", {"task": work([WAIT])}]]))
        await wait_all_tasks_blocked()
        assert standing_agents(session) == ["agent-1", "agent-2"]
        waiters.let_go("agent-2")
        await wait_all_tasks_blocked()
        assert standing_agents(session) == ["agent-1"]
        waiters.let_go("agent-1")
        await session.chain.wait_idle()
        assert standing_agents(session) == []


def standing_agents(session: Session) -> list[str]:
    return sorted(event.name for event in session.chain.standing if isinstance(event, events.AgentStarted))


class _Follower:
    """A subscriber, and the facts that it knows by the events since some moment."""

    def __init__(self, before: tuple[Event, ...]) -> None:
        self.run: object = None
        self.lines: dict[str, str] = {}
        self.agents: dict[str, str] = {}
        self.plan: tuple[object, ...] = ()
        self.question: str = ""
        self.text = ""
        for event in before:
            self.hear(event)

    def hear(self, event: Event) -> None:
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
    def knows(self) -> tuple[object, ...]:
        return self.run, self.lines, self.agents, self.plan, self.question, self.text


@sharded(
    100,
    st.lists(steps, max_size=5),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([*LINES, INTERRUPT])), max_size=5),
)
def test_a_late_subscriber_knows_as_much_as_others(drawn: list[Step], said: list[tuple[int, str]]) -> None:
    async def main() -> None:
        use = settings(max_iterations=6)
        async with open_session(RandomModel(drawn), tools=ASKING_TOOLS, use=use) as session:
            await follow(session, said)

    random.seed(0)  # the jitter of the retries
    trio.run(main, clock=MockClock(autojump_threshold=0))


async def follow(session: Session, said: list[tuple[int, str]]) -> None:
    """Play a session in which a subscriber arrives at every event."""
    first, late = _Follower(()), []

    def hear(event: Event) -> None:
        first.hear(event)
        for follower in late:
            follower.hear(event)
            assert follower.knows == first.knows
        if isinstance(event, _SHOWN) or len(late) < 5:
            late.append(_Follower(session.chain.standing))

    session.chain.listen(hear)
    acts = Acts(session, said)
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
