"""Converts a chain's events to session updates of the protocol. Pure, except that it remembers earlier events.

The text of a child agent is sent as reasoning, since the child's answer is also the result of the call that started the
child. ``_meta.chain`` of a child's update names the child and that call.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from chain import events
from chain.session.event_json import to_json
from chain.text import phrases
from chain.text.wording import MAIN, ROOT
from cli.acp import shown_calls
from cli.acp.shown_calls import Content, as_title, locations_of, text_block, text_content

Update: TypeAlias = Mapping[str, Any]
Voice: TypeAlias = Literal["user_message_chunk", "agent_message_chunk", "agent_thought_chunk"]

MAX_SHOWN_OUTPUT = 4_000
"""The maximum number of characters of a running tool's output in an update."""

_TASK_STATES = {"PENDING": "pending", "DONE": "completed", "FAILED": "completed"}
_SHOWN_ELSEWHERE = frozenset({"done", "interrupted", "error", "empty", "context_full"})
"""Statuses of runs whose result is not sent as a message: the replies or the answer to the prompt contain it."""


@dataclass(slots=True)
class _AnnouncedCall:
    content: tuple[Content, ...] = ()
    progress: str = ""


@dataclass(slots=True)
class UpdateBuilder:
    """A converter of the events of one session. ``kinds`` has the kind of each tool, by the tool's name."""

    workspace: Path
    kinds: Mapping[str, str]
    _calls: dict[str, _AnnouncedCall] = field(default_factory=dict)
    _parents: dict[str, str] = field(default_factory=dict)
    """The id of the call that started each agent, by the agent's name."""
    _message_counts: Counter[str] = field(default_factory=Counter)
    """The number of finished messages of each agent."""
    _shown_pieces: list[str] = field(default_factory=list)
    """The pieces of the main agent's text since its last message."""
    _prompt_lines: set[str] = field(default_factory=set)
    """The ids of lines that the editor shows as its own prompts."""
    _window: int = 0
    _prefix: str = field(default_factory=lambda: secrets.token_hex(4))
    """The start of all message ids. It is random, so that ids differ from those of earlier processes."""

    def omit_query(self, line_id: str) -> None:
        """Omit the query of the run that this line starts, because the editor shows the line as its own prompt."""
        self._prompt_lines.add(line_id)

    def updates(self, event: events.Event, *, includes_errors: bool = True) -> Sequence[Update]:
        """Return the updates for an event. Omit the error of a failed run unless ``includes_errors``."""
        match event:
            case events.TextDelta(agent=agent, text=text):
                if agent == MAIN:
                    self._shown_pieces.append(text)
                return [self._chunk("agent_message_chunk" if agent == MAIN else "agent_thought_chunk", text, event)]
            case events.ThinkingDelta(text=text):
                return [self._chunk("agent_thought_chunk", text, event)]
            case events.Reply() | events.IterationStarted():
                self._end_messages(event.agent)
                return []
            case events.Retry(reason=reason, delay_s=delay):
                note = f"{reason}; retrying in {delay:.0f} s. Ignore the part of this reply shown so far."
                return [self._whole_message("agent_thought_chunk", note, event)]
            case events.UsageReport(agent="main", context_window=int(size)):
                self._window = size
                return [_window_usage(event.context_tokens, size)]
            case events.Compaction(agent="main", state="ended" | "failed"):
                is_filled = event.state == "ended" and self._window
                filled = [_window_usage(event.tokens_after, self._window)] if is_filled else []
                return [
                    self._whole_message("agent_thought_chunk", f"{phrases.describe_compaction(event)}.", event),
                    *filled,
                ]
            case events.RunStarted(id=id, query=text):
                self._end_messages(event.agent)
                is_shown = id in self._prompt_lines
                self._prompt_lines.discard(id)
                return [] if is_shown or not text else [self._whole_message("user_message_chunk", text, event)]
            case events.UserInterruption(message=text) if text:
                update = self._whole_message("user_message_chunk", text, event)
                fields = to_json(event)
                about = {name: fields[name] for name in ("ids", "point", "iteration", "waited_s", "tools_skipped")}
                return [{**update, "_meta": {"chain": {**self._agent_meta(event.agent), **about}}}]
            case events.Question():
                return [self._question_update(event)]
            case events.ToolCall():
                return [self._start_update(event)]
            case events.ToolProgress():
                return self._progress_updates(event)
            case events.ToolResult():
                return [self._end_update(event)]
            case events.AgentStarted(name=name, parent_id=parent, task=task):
                self._parents[name] = parent
                return [self._call_update(parent, event.agent, title=as_title(f"{name}: {task}"))]
            case events.PlanChanged(tasks=tasks):
                return [{"sessionUpdate": "plan", "entries": [_plan_entry(task) for task in tasks]}]
            case events.Result():
                return self._result_updates(event, includes_errors=includes_errors)
            case _:
                return []

    def message(self, text: str) -> Update:
        """Return the update that shows a text as a whole message of the main agent."""
        return self._whole_message("agent_message_chunk", text, events.TextDelta(text=text))

    def _chunk(self, voice: Voice, text: str, event: events.Event) -> Update:
        id = f"{self._prefix}-{event.agent}-{self._message_counts[event.agent]}-{voice}"
        return {"sessionUpdate": voice, "messageId": id, "content": text_block(text), **self._meta(event.agent)}

    def _end_messages(self, agent: str) -> None:
        self._message_counts[agent] += 1
        if agent == MAIN:
            self._shown_pieces.clear()

    def _whole_message(self, voice: Voice, text: str, event: events.Event) -> Update:
        self._end_messages(event.agent)
        update = self._chunk(voice, text, event)
        self._end_messages(event.agent)
        return update

    def _result_updates(self, event: events.Result, *, includes_errors: bool) -> Sequence[Update]:
        shown = "".join(self._shown_pieces).strip()
        self._end_messages(event.agent)
        is_error = event.status in ("error", "empty", "context_full")
        text = event.result.strip()
        if (event.status in _SHOWN_ELSEWHERE and not (is_error and includes_errors)) or text in event.replies:
            return []
        rest = text.removeprefix(shown).strip() if shown else text
        return [self.message(rest)] if rest else []

    def _question_update(self, event: events.Question) -> Update:
        """Return the update that shows the call that a question is about."""
        known = self._calls.get(event.tool_call_id)
        if event.kind == "choice" and known is not None:
            return self._call_update(event.tool_call_id, event.agent, title=as_title(event.text))
        call = self._calls.setdefault(event.tool_call_id, _AnnouncedCall())
        diff = event.diff
        call.content = shown_calls.preview_content(diff, event.preview, self.workspace)
        return self._call_update(
            event.tool_call_id,
            event.agent,
            is_new=known is None,
            title=as_title(event.text),
            kind=self._kind_of(event.name),
            status="pending" if known is None else "in_progress",
            content=list(call.content),
            locations=locations_of({} if diff is None else {"path": diff.path}, self.workspace),
        )

    def _start_update(self, event: events.ToolCall) -> Update:
        is_new = event.id not in self._calls
        self._calls.setdefault(event.id, _AnnouncedCall())
        return self._call_update(
            event.id,
            event.agent,
            is_new=is_new,
            status="in_progress",
            rawInput=to_json(event)["input"],
            **self._description(event.name, event.input),
        )

    def _progress_updates(self, event: events.ToolProgress) -> Sequence[Update]:
        call = self._calls.get(event.id)
        if call is None:
            return []
        separator = "" if not call.progress or call.progress.endswith("\n") else "\n"
        call.progress = (call.progress + separator + event.text)[-MAX_SHOWN_OUTPUT:]
        return [self._call_update(event.id, event.agent, content=[*call.content, text_content(call.progress)])]

    def _end_update(self, event: events.ToolResult) -> Update:
        call = self._calls.pop(event.id, None)
        result = text_content(event.text, is_markdown=self.kinds.get(event.name) == "delegate")
        return self._call_update(
            event.id,
            event.agent,
            is_new=call is None,
            status="failed" if event.is_error else "completed",
            content=[*(call.content if call else ()), *([result] if event.text.strip() else [])],
            **({} if call else self._description(event.name or "a tool", event.input)),
        )

    def _description(self, name: str, input: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of an update that describe a call before its result is known."""
        title = shown_calls.title_of(name, input)
        return {"title": title, "kind": self._kind_of(name), "locations": locations_of(input, self.workspace)}

    def _kind_of(self, name: str) -> str:
        kind = self.kinds.get(name, "other")
        return shown_calls.WIRE_KINDS.get(kind, kind)

    def _call_update(self, id: str, agent: str, *, is_new: bool = False, **fields: object) -> Update:
        kind = "tool_call" if is_new else "tool_call_update"
        return {"sessionUpdate": kind, "toolCallId": id, **fields, **self._meta(agent)}

    def _meta(self, agent: str) -> Mapping[str, Any]:
        about = self._agent_meta(agent)
        return {"_meta": {"chain": about}} if about else {}

    def _agent_meta(self, agent: str) -> Mapping[str, Any]:
        """Return the fields that name a child agent and the call that started it; none for the main agent."""
        if agent == MAIN:
            return {}
        parent = self._parents.get(agent, ROOT)
        return {"agent": agent, **({"parentToolCallId": parent} if parent != ROOT else {})}


def _window_usage(tokens: int, window: int) -> Update:
    return {"sessionUpdate": "usage_update", "used": tokens, "size": window}


def _plan_entry(task: events.TaskView) -> Mapping[str, Any]:
    failed = f" (failed{f': {task.reason}' if task.reason else ''})" if task.state == "FAILED" else ""
    return {"content": f"{task.text}{failed}", "priority": "medium", "status": _TASK_STATES[task.state]}
