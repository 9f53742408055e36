"""The parts of which an agent consists: its settings, its state, and the objects that all agents share.

Before ``AgentContext`` records a change of the conversation, it checks whether the change is allowed. After a record is
written, the journal applies the record to the state. So the conversation contains only recorded messages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from chain import events
from chain.agent.conversation import CallIds, Conversation
from chain.agent.history import AgentState
from chain.agent.questions import Questions
from chain.agent.refusals import apply_removal
from chain.agent.window import CompactionRules, WindowUsage, messages_after
from chain.config.retries import Retries
from chain.interruption.prompt import InterruptionPrompt
from chain.interruption.prompt_file import PromptFile
from chain.journal import records
from chain.journal.journal import Emit, Journal, RecordedEvents
from chain.lines.inbox import Inbox
from chain.lines.receipts import Ledger
from chain.messages import Message, Overrides, Usage
from chain.model import Delta, Model, Reply, Request, ToolSpec
from chain.plan import Plan
from chain.tools.calling import ToolLimits
from chain.tools.file_versions import KnownFileVersions
from chain.tools.registry import Registry
from chain.tools.tool import Jobs


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run.

    ``timeout_s`` is in seconds, and infinity means no time limit. The budgets ``max_tokens`` and ``max_cost_usd`` are
    ``None`` if there is no limit.
    """

    max_iterations: int = 100
    timeout_s: float = math.inf
    retries: Retries = field(default_factory=Retries)
    max_tokens: int | None = None
    max_cost_usd: float | None = None

    def exceeded_budget(self, usage: Usage) -> str:
        """Return a sentence about the budget that ``usage`` has used up, or an empty string if no budget is used up."""
        if self.max_tokens is not None and usage.total_tokens >= self.max_tokens:
            return f"Stopped: the run has used {usage.total_tokens:,} tokens, and its budget is {self.max_tokens:,}."
        if self.max_cost_usd is not None and usage.cost_usd is not None and usage.cost_usd >= self.max_cost_usd:
            return f"Stopped: the run has cost ${usage.cost_usd:.2f}, and its budget is ${self.max_cost_usd:.2f}."
        return ""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The settings of one agent. ``parent_id`` is the id of the tool call that started it, or ``root``.

    ``instructions`` are the project's instructions, which are sent after the ``system`` prompt. ``effort`` is the
    effort that the user chose. If it is empty, the effort in the model's definition applies.
    """

    name: str
    parent_id: str
    system: str
    model: Model
    registry: Registry
    limits: Limits
    prompts: PromptFile
    compaction: CompactionRules = field(default_factory=CompactionRules)
    instructions: str = ""
    effort: str = ""

    def with_effort(self, overrides: Overrides) -> Overrides:
        """Return ``overrides`` with the user's effort. If ``overrides`` already sets an effort, return it unchanged."""
        return replace(overrides, effort=self.effort) if self.effort and overrides.effort is None else overrides

    @property
    def whole_system(self) -> str:
        """The system prompt of requests: ``system``, followed by ``instructions``."""
        return "\n\n".join(filter(None, [self.system, self.instructions]))

    def with_context(self, context: str) -> AgentSpec:
        """Return a copy of the settings in which ``context`` is appended to the ``system`` prompt."""
        return replace(self, system="\n\n".join(filter(None, [self.system, context])))

    def offered_tools(self, left_out: Collection[str]) -> list[ToolSpec]:
        """Return the specs of the tools that requests offer to the model: all except those named in ``left_out``."""
        return [ToolSpec(t.name, t.description, t.input_schema) for t in self.registry if t.name not in left_out]


def tools_text(tools: Iterable[ToolSpec]) -> str:
    """Return the specs of the tools as JSON text. Records contain the digest of this text."""
    specs = [{"name": t.name, "description": t.description, "input_schema": t.input_schema} for t in tools]
    return json.dumps(specs, default=str)


Ask: TypeAlias = Callable[[Request, Callable[[Delta], None]], Awaitable[Reply]]
"""A function that sends a request to a model and returns the reply, as ``Model.reply`` does."""

Tracer: TypeAlias = Callable[[str, Model], Ask]
"""A function that returns an ``Ask`` for an agent's name and model, which calls the model and traces each call."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The objects that all agents of a session share."""

    journal: Journal
    ledger: Ledger
    emit: Emit
    plan: Plan
    workspace: Path
    questions: Questions
    tool_rules: ToolLimits
    call_ids: CallIds
    refused_tools: set[str]
    """The names of the tools that the service has refused. Requests omit them."""
    agents: Mapping[str, AgentState]
    """The states of the agents by name."""
    tracer: Tracer | None = None
    known_files: KnownFileVersions = field(default_factory=KnownFileVersions)
    jobs: Jobs = field(default_factory=Jobs)
    added_directories: Sequence[Path] = ()
    """The directories outside the workspace that tools may use, as real paths. Paths are never removed."""


@dataclass(eq=False)
class AgentContext:
    """One agent: its settings, inbox and state.

    Between two runs, ``spec`` may be replaced. Only records change ``state``.
    """

    spec: AgentSpec
    shared: Shared
    inbox: Inbox
    state: AgentState

    @property
    def name(self) -> str:
        """The agent's name, such as ``explore-1``."""
        return self.spec.name

    @property
    def conversation(self) -> Conversation:
        """The agent's messages."""
        return self.state.history.conversation

    @property
    def window_usage(self) -> WindowUsage:
        """The size of the conversation in tokens."""
        return self.state.history.window_usage

    def append(self, message: Message, *, is_cut: bool = False) -> RecordedEvents:
        """Record a message, which appends it to the conversation. Return the record's events, not yet emitted.

        ``is_cut``: the message is the displayed part of a reply that a ``now`` line cancelled. If the message is not
        allowed or cannot be recorded, change nothing and raise ``ConversationError`` or ``JournalError``.
        """
        return self.commit(records.Message(message, self.name, self.spec.parent_id, is_cut=is_cut))

    def commit(self, record: records.Message) -> RecordedEvents:
        """Record a message, which appends it to the conversation. Return the record's events, not yet emitted.

        If the message is not allowed or cannot be recorded, change nothing and raise ``ConversationError`` or
        ``JournalError``.
        """
        self.conversation.check(record.message)
        return self.shared.journal.record(record)

    def compact(self, record: records.Compacted) -> RecordedEvents:
        """Record a compaction, which applies it to the conversation. Return the record's events, not yet emitted.

        If the resulting conversation is invalid or the record cannot be written, change nothing and raise
        ``ConversationError`` or ``JournalError``.
        """
        Conversation(messages_after(self.conversation.messages, record))
        return self.shared.journal.record(record)

    def withdraw(self, line_ids: Sequence[str], reason: events.Status) -> None:
        """Remove the messages after the last reply without tool calls, and record the removal with the ``reason``.

        ``line_ids`` has the ids of the removed lines. Raise ``JournalError`` if the removal cannot be recorded.
        """
        count = self.conversation.withdrawable_count
        self.shared.journal.record(records.Withdrawn(count, self.name, reason, tuple(line_ids)))

    def remove(self, removed: records.Removed) -> None:
        """Record the removal of content that the service refuses: stubs replace parts of messages, tools are omitted.

        Do nothing if there is nothing left to remove. Raise ``JournalError`` if the removal cannot be recorded.
        """
        messages = self.conversation.messages
        has_tools = removed.what == "tools" and not self.shared.refused_tools.issuperset(removed.names)
        if has_tools or apply_removal(messages, removed) is not messages:
            self.shared.journal.emit_after_acks(self.shared.journal.record(removed).emit)

    def current_prompt(self, iteration: int) -> InterruptionPrompt:
        """Return the current handler prompt. If its file has an error, emit a notice and return the built-in prompt."""
        prompt, error = self.spec.prompts.current()
        if error is not None:
            why = f"{error.sentence}; the built-in handler prompt is used"
            notice = events.Notice(agent=self.name, iteration=iteration, message=why, file=error.file, line=error.line)
            self.shared.emit(notice)
        return prompt

    def check_prompt(self, iteration: int) -> None:
        """Emit a notice if the handler prompt's file has an error, so that the user sees it before an interruption."""
        if self.spec.prompts.path is not None:
            self.current_prompt(iteration)

    def emit_notice(self, iteration: int, message: str) -> None:
        """Emit a notice event of this agent with this message."""
        self.shared.emit(events.Notice(agent=self.name, iteration=iteration, message=message))
