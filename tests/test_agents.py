"""Two agents side by side: what is shared is shared, and what is an agent's own stays its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from support import MemoryFile
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.agent.executor import Executor
from chain.agent.questions import Questions
from chain.agent.spec import AgentContext, AgentSpec, Limits, Shared
from chain.agent.state import Run
from chain.interruption.prompt_file import PromptFile
from chain.journal.journal import Journal
from chain.journal.json import from_json
from chain.journal.records import Entry, Message
from chain.lines.inbox import Inbox
from chain.lines.parse import parse_line
from chain.lines.receipts import Accepted, Ledger
from chain.plan import Plan
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.session.projection import Projection
from chain.tools import plan_tools
from chain.tools.registry import Registry
from chain.tools.tool import ToolContext, tool

RULES = """
rules:
  - when: {user: ., step: 1}
    text: I begin.
    tools: [{name: wait, input: {}}, {name: plan_add_task, input: {task: "${query}"}}]
  - {when: {interruption: '(?P<said>.+)'}, text: "Heard: ${said}.", and: continue}
  - {text: That is all.}
"""


@dataclass
class House:
    """A journal, a ledger and a plan, and the agents that share them."""

    file: MemoryFile
    journal: Journal
    shared: Shared
    told: list[events.Event]
    gates: dict[str, trio.Event] = field(default_factory=dict)

    def agent(self, name: str, parent_id: str) -> Executor:
        gate = self.gates[name] = trio.Event()

        @tool
        async def wait(ctx: ToolContext) -> str:
            """Wait for the test."""
            await gate.wait()
            return f"{name} waited"

        registry = Registry.of([wait, *plan_tools.TOOLS])
        model = ScriptedModel.parse(RULES)
        spec = AgentSpec(name, parent_id, f"You are {name}.", model, registry, Limits(), PromptFile(None))
        inbox = Inbox(self.shared.ledger, agent=name)
        return Executor(AgentContext(spec, self.shared, inbox))

    def accept(self, text: str, agent: str) -> Accepted:
        return self.shared.ledger.accept(parse_line(text), agent)

    def of(self, agent: str, *types: type[events.Event]) -> list[Any]:
        return [event for event in self.told if event.agent == agent and isinstance(event, types)]

    @property
    def entries(self) -> list[Entry]:
        return [from_json(json.loads(row)) for row in self.file.data.splitlines()]


@asynccontextmanager
async def house() -> AsyncIterator[House]:
    file, told = MemoryFile(), list[events.Event]()
    journal = Journal(file)
    ledger, projection = Ledger(journal, told.append), Projection()
    journal.tells(projection.of, told.append)
    shared = Shared(journal, ledger, told.append, Plan(), Path("/"), Questions(journal))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        yield House(file, journal, shared, told)
        nursery.cancel_scope.cancel()


async def test_two_agents_share_a_journal_a_ledger_and_a_plan() -> None:
    async with house() as shared:
        one, other = shared.agent("main", "root"), shared.agent("explore", "call_7")
        async with trio.open_nursery() as nursery:
            for executor in (one, other):
                nursery.start_soon(executor.run, Run(shared.accept(f"Task of {executor.agent}", executor.agent)))
            await wait_all_tasks_blocked()
            # Each has its own channel, in which a line waits for the safe point of its own agent.
            for executor in (other, one):
                executor.inbox.put(parse_line(f"focus on {executor.agent}"))
            shared.gates["explore"].set()
            await wait_all_tasks_blocked()
            assert [i.target_agent for i in shared.of("explore", events.UserInterruption)] == ["explore"]
            assert shared.of("main", events.UserInterruption) == []
            assert [task.text for task in shared.shared.plan.tasks] == ["Task of explore"]
            shared.gates["main"].set()

        assert [task.text for task in shared.shared.plan.tasks] == ["Task of explore", "Task of main"]
        states = {receipt.id: (receipt.agent, receipt.state) for receipt in shared.shared.ledger.receipts}
        assert states == {
            "L1": ("main", "delivered"),
            "L2": ("explore", "delivered"),
            "L3": ("explore", "delivered"),
            "L4": ("main", "delivered"),
        }
        for executor, parent in ((one, "root"), (other, "call_7")):
            written = [
                (entry.record.message, entry.record.parent_id)
                for entry in shared.entries
                if isinstance(entry.record, Message) and entry.record.agent == executor.agent
            ]
            assert written == [(message, parent) for message in executor.conversation.messages]
            assert f"focus on {executor.agent}" in str(executor.conversation.messages)
            assert executor.conversation.state == "REPLIED"
        # The ids of tool calls are used once, whichever agent made them.
        ids = [call.id for e in (one, other) for message in e.conversation.messages for call in message.calls]
        assert len(set(ids)) == len(ids) == 4
        assert [entry.seq for entry in shared.entries] == list(range(1, len(shared.entries) + 1))
