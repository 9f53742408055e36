"""What an agent is made of: what is its own, and what it shares with the other agents of its session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from chain.agent.conversation import CallIds
from chain.agent.questions import Questions
from chain.interruption.file import PromptFile
from chain.journal.journal import Emit, Journal
from chain.lines.receipts import Ledger
from chain.messages import Usage
from chain.model import Model
from chain.plan import Plan
from chain.tools.calling import Rules
from chain.tools.registry import Registry
from chain.tools.seen import Seen


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a run. ``None`` is no bound; ``max_attempts`` counts the first attempt of a model call too."""

    max_iterations: int = 20
    timeout_s: float = 1800.0
    max_attempts: int = 4
    max_tokens: int | None = None
    max_cost_usd: float | None = None

    def spent(self, usage: Usage) -> str:
        """Which budget a run with this usage has used up, as a sentence; empty if none."""
        if self.max_tokens is not None and usage.total_tokens >= self.max_tokens:
            return f"Stopped: the run has used {usage.total_tokens:,} tokens, and its budget is {self.max_tokens:,}."
        if self.max_cost_usd is not None and usage.cost_usd is not None and usage.cost_usd >= self.max_cost_usd:
            return f"Stopped: the run has cost ${usage.cost_usd:.2f}, and its budget is ${self.max_cost_usd:.2f}."
        return ""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One agent: ``parent_id`` is the tool call that made it, or ``root``."""

    name: str
    parent_id: str
    system: str
    model: Model
    registry: Registry
    limits: Limits
    prompts: PromptFile


class TraceFile(Protocol):
    """The debug trace, as events name it."""

    @property
    def path(self) -> str | None:
        """The file of the run that is active, or of the last one."""
        ...

    def traced(self, agent: str, model: Model) -> Model:
        """The model, with its calls for this agent traced."""
        ...


@dataclass(frozen=True, slots=True)
class Shared:
    """What all agents of a session share.

    ``meanwhile`` stands for what others do while an agent waits for the disk before it asks its model: in a replay that
    is put in there.
    """

    journal: Journal
    ledger: Ledger
    emit: Emit
    plan: Plan
    workspace: Path
    questions: Questions
    tool_rules: Rules = field(default_factory=Rules)
    call_ids: CallIds = field(default_factory=CallIds)
    trace: TraceFile | None = None
    seen: Seen = field(default_factory=Seen)
    meanwhile: Callable[[str], Awaitable[None]] | None = None

    @property
    def trace_path(self) -> str | None:
        """The file of the debug trace, if there is one."""
        return None if self.trace is None else self.trace.path

    async def flush(self, agent: str) -> None:
        """Wait until all that an agent is about to tell its model is on the disk. Raises ``JournalError``."""
        if self.meanwhile is not None:
            await self.meanwhile(agent)
        await self.journal.flush()
