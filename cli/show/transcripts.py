"""What each child did, to be shown whole. Pure.

A transcript holds a child's own events, and of its children those that a terminal shows of them. It is shown as if the
child were the main agent. What is kept is bounded: an agent may run for hours, and nobody reads back to its beginning.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, replace

from chain import events
from chain.events import Event, Piece
from chain.text.wording import counted
from cli.show.child_agents import with_parents
from cli.show.event_context import Context, Contexts
from cli.show.renderer import WORK_OF_CHILDREN, Renderer
from cli.show.text_rows import flat

MAX_AGENTS = 64
"""Agents: as many as the shipped configuration keeps to be asked again, and those that run."""
MAX_EVENTS = 1_000
"""Events of an agent."""
MAX_TRANSCRIPT = 200_000
"""Characters of all the events of an agent, written out."""
MAX_RUNNING = 10_000
"""Characters of one thought, of one tool's progress, and of a reply that is not complete."""
MAX_SHOWN_VALUE = 1_000
"""Characters of an argument or a result of a tool, of which a row shows the beginning."""

_CUT = "[what was here before is not kept]\n"


@dataclass(eq=False, slots=True)
class _TranscriptEntry:
    """An event, and its context in the view of the agent whose transcript it is. Running text grows in its event."""

    event: Event
    context: Context
    size: int = 0


class _Transcript:
    def __init__(self) -> None:
        self._entries: deque[_TranscriptEntry] = deque()
        self._open: dict[str, _TranscriptEntry] = {}
        """Running text that may go on, by its call or its type."""
        self._size = 0
        self._dropped = 0

    def add(self, event: Event, context: Context) -> None:
        if isinstance(event, Piece):
            self._run_on(event, context)
        else:
            if not context.depth:
                self._close(event)
            event = _trimmed(event)
            self._append(_TranscriptEntry(event, context, len(repr(event))))
        while len(self._entries) > 1 and (len(self._entries) > MAX_EVENTS or self._size > MAX_TRANSCRIPT):
            self._remove(self._entries[0])
            self._dropped += 1

    def _append(self, entry: _TranscriptEntry) -> None:
        self._entries.append(entry)
        self._size += entry.size

    def _remove(self, entry: _TranscriptEntry) -> None:
        self._entries.remove(entry)
        self._size -= entry.size
        self._open = {key: other for key, other in self._open.items() if other is not entry}

    def _run_on(self, event: Piece, context: Context) -> None:
        key = getattr(event, "id", event.type)
        entry = self._open.get(key)
        if entry is None:
            entry = self._open[key] = _TranscriptEntry(replace(event, text=""), context)
            self._append(entry)
        assert isinstance(entry.event, Piece)
        text = entry.event.text
        if text and isinstance(event, events.ToolProgress) and not text.endswith("\n"):
            text += "\n"  # a report is a row of its own
        text += event.text
        if len(text) > 2 * MAX_RUNNING:  # twice the bound, so that not every piece has to be cut
            text = _CUT + text[-MAX_RUNNING:]
        entry.event = replace(entry.event, text=text)
        self._size += len(text) - entry.size
        entry.size = len(text)

    def _close(self, event: Event) -> None:
        """End the running texts that go on no further; a reply that is whole, or asked again, replaces its pieces."""
        match event:
            case events.ToolResult():
                self._open.pop(event.id, None)
            case events.Reply() | events.Retry():
                if (written := self._open.get(events.TextDelta.type)) is not None:
                    self._remove(written)
                self._open.pop(events.ThinkingDelta.type, None)
            case events.IterationStarted() | events.AgentEnded():
                self._open.clear()
            case _:
                pass

    def rows(self, renderer: Renderer) -> list[str]:
        count = self._dropped
        rows = renderer.place.note("…", f"{counted(count, 'earlier event')} not kept", "dim") if count else []
        for entry in self._entries:
            rows += renderer.lines(entry.event, entry.context)
        return rows + renderer.rest()


class Transcripts:
    """What every agent below the main one did, as far back as it is kept."""

    def __init__(self) -> None:
        self.kept: dict[str, _Transcript] = {}
        """By the names of the agents, the one started last at the end."""
        self._contexts = Contexts()
        self._dropped = 0

    def update(self, event: Event) -> None:
        """Keep an event, if it is about a child."""
        context = self._contexts.of(event)
        match event:
            case events.AgentStarted():
                self._add_nested(event, context)
                start = events.RunStarted(id="", query=event.task, time=event.time)
                self._of(event.name).add(start, Context())
            case events.AgentEnded():
                if (own := self.kept.get(event.name)) is not None:
                    own.add(event, Context(child=context.child))
                self._add_nested(event, context)
            case _ if event.agent in self.kept and not isinstance(event, events.UsageReport):
                self.kept[event.agent].add(event, replace(context, depth=0, agent=""))
                self._add_nested(event, context)
            case _:
                pass

    def rows(self, name: str, width: int, *, color: bool, ascii: bool) -> list[str]:
        """How an agent would look if it were the main one. Of one that is not known, a row that says so."""
        transcript = self.kept.get(name)
        if transcript is not None:
            return transcript.rows(Renderer(color=color, ascii=ascii, width=width, streams=True, collapses=True))
        only = f"; of {counted(self._dropped, 'older agent')} no more" if self._dropped else ""
        return [f"Nothing is kept of {flat(name)[:MAX_SHOWN_VALUE]}{only}."]

    def _of(self, name: str) -> _Transcript:
        """The transcript of an agent that starts; it is now the latest, and the oldest one at rest may have to go."""
        found = self.kept[name] = self.kept.pop(name) if name in self.kept else _Transcript()
        if len(self.kept) > MAX_AGENTS:
            working = self._contexts.working
            oldest = next((known for known in self.kept if known not in working), next(iter(self.kept)))
            del self.kept[oldest]
            self._dropped += 1
        return found

    def _add_nested(self, event: Event, context: Context) -> None:
        """Add an event to the transcripts of all agents above it, as far as they show it."""
        if isinstance(event, WORK_OF_CHILDREN):
            return
        above = list(with_parents(self._contexts.working, event.agent))
        # The start and the end of an agent stand below the one that started it, other events below whose they are.
        is_below_itself = not isinstance(event, events.AgentStarted | events.AgentEnded)
        for depth, one in enumerate(above[is_below_itself:], 1):
            if one.name in self.kept:
                parent = context.parent if depth > 1 else ""
                self.kept[one.name].add(event, replace(context, depth=depth, parent=parent))


def _trimmed(event: Event) -> Event:
    """The event without what no row shows."""
    match event:
        case events.ToolCall():
            return replace(event, input={name: _argument(value) for name, value in event.input.items()})
        case events.ToolResult():
            input = {name: _argument(value) for name, value in event.input.items()}
            return replace(event, text=event.text.strip()[:MAX_SHOWN_VALUE], input=input)
        case _:
            return event


def _argument(value: object) -> object:
    if isinstance(value, str):
        return value[:MAX_SHOWN_VALUE]
    written = json.dumps(value, ensure_ascii=False, default=str)
    return value if len(written) <= MAX_SHOWN_VALUE else written[:MAX_SHOWN_VALUE]
