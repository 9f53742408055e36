"""What each child did, to be shown whole. Pure.

A transcript holds a child's own events, and of its children those that a terminal shows of them. It is shown as if the
child were the main agent. What is kept is bounded: an agent may run for hours, and nobody reads back to its beginning.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from chain import events
from chain.events import Event
from chain.text.wording import MAIN, counted
from cli.show.children import Child, Children
from cli.show.live import LiveRenderer
from cli.show.text import flat, seconds

MAX_AGENTS = 64
"""Agents: as many as the shipped configuration keeps to be asked again, and those that run."""
MAX_EVENTS = 1_000
"""Events of an agent."""
MAX_CHARS = 200_000
"""Characters of all the texts of an agent."""
MAX_RUNNING = 10_000
"""Characters of one thought, of one tool's progress, and of a reply that is not complete."""
MAX_SHOWN = 1_000
"""Characters of an argument or a result of a tool, of which a row shows the beginning."""

_CUT = "[what was here before is not kept]\n"

_Running: TypeAlias = events.TextDelta | events.ThinkingDelta | events.ToolProgress


@dataclass(eq=False, slots=True)
class _Entry:
    """An event. ``is_own``: the agent's, not one of its children's; ``did`` is what a child had done by then."""

    event: Event
    is_own: bool
    did: Child | None = None
    size: int = 0
    is_void: bool = False
    pieces: list[str] = field(default_factory=list)
    is_cut: bool = False

    def add(self, text: str) -> None:
        """Add running text. Twice the bound is kept, so that not every piece has to be cut."""
        self.pieces.append(text)
        self.size += len(text)
        if self.size > 2 * MAX_RUNNING:
            self.pieces, self.is_cut = ["".join(self.pieces)[-MAX_RUNNING:]], True
            self.size = MAX_RUNNING

    def whole(self) -> Event:
        """The event, with all of a running text that is kept."""
        if not isinstance(self.event, _Running):
            return self.event
        return replace(self.event, text=(_CUT if self.is_cut else "") + "".join(self.pieces))


class _Transcript:
    """What one agent did, the latest of it."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._open: dict[str, _Entry] = {}
        """Running text that may go on, by what it belongs to."""
        self._size = 0
        self._dropped = 0

    def add(self, event: Event, *, is_own: bool, did: Child | None = None) -> None:
        """Add an event, and drop the oldest that there is no room for."""
        if is_own and isinstance(event, _Running):
            self._run_on(event)
        else:
            if is_own:
                self._close(event)
            event = _trimmed(event)
            self._append(_Entry(event, is_own, did, _size_of(event)))
        while len(self._entries) > 1 and (len(self._entries) > MAX_EVENTS or self._size > MAX_CHARS):
            oldest = self._entries.popleft()
            self._size -= oldest.size
            self._dropped += not oldest.is_void
            self._open = {key: entry for key, entry in self._open.items() if entry is not oldest}

    def _append(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._size += entry.size

    def _run_on(self, event: _Running) -> None:
        key, text = _belongs_to(event), event.text
        entry = self._open.get(key)
        if entry is None:
            entry = self._open[key] = _Entry(event, is_own=True)
            self._append(entry)
        elif isinstance(event, events.ToolProgress) and not entry.pieces[-1].endswith("\n"):
            text = f"\n{text}"  # a report is a row of its own
        before = entry.size
        entry.add(text)
        self._size += entry.size - before

    def _close(self, event: Event) -> None:
        """End the running texts that go on no further; a reply that is whole, or asked again, replaces its pieces."""
        match event:
            case events.ToolResult():
                self._open.pop(_belongs_to(event), None)
            case events.Reply() | events.Retry():
                if (written := self._open.pop("text", None)) is not None:
                    self._size -= written.size
                    written.is_void, written.size, written.pieces = True, 0, []
                self._open.pop("thought", None)
            case events.IterationStarted() | events.AgentEnded():
                self._open.clear()
            case _:
                pass

    def rows(self, renderer: _AsMain) -> list[str]:
        """The rows of all that is kept."""
        rows = renderer.note_dropped(self._dropped)
        for entry in self._entries:
            if not entry.is_void:
                rows += renderer.entry(entry)
        return rows + (renderer.tail.split("\n") if renderer.tail else [])


class _AsMain(LiveRenderer):
    """Shows an agent as if it were the main one; its children have their places below it."""

    _has_child_rows = False

    def note_dropped(self, count: int) -> list[str]:
        return self._note("…", f"{counted(count, 'earlier event')} not kept", "dim") if count else []

    def entry(self, entry: _Entry) -> list[str]:
        event = entry.whole()
        if not entry.is_own:
            if entry.did is not None and isinstance(event, events.AgentEnded):
                self._children.restore(entry.did)
            elif entry.did is not None:
                self._last_tool[event.agent] = entry.did.last_tool
            return self.lines(event)
        match event:
            case events.AgentStarted():
                return self.lines(events.RunStarted(id="", query=event.task, time=event.time))
            case events.AgentEnded():
                return self._own_end(event, entry.did)
            case _:
                return self.lines(replace(event, agent=MAIN))

    def _own_end(self, event: events.AgentEnded, did: Child | None) -> list[str]:
        rows = self._end_flow()
        if did is None:
            return rows
        sign, style = self._outcome(event.status)
        return [*rows, self._line(sign, f"{did.summary(event)}, {seconds(event.time - did.since)}", style)]


class Transcripts:
    """What every agent below the main one did, as far back as it is kept."""

    def __init__(self) -> None:
        self._kept: dict[str, _Transcript] = {}
        self._children = Children()
        self._dropped = 0

    @property
    def names(self) -> list[str]:
        """The agents that something is kept of, the one started last at the end."""
        return list(self._kept)

    def update(self, event: Event) -> None:
        """Keep an event, if it is about a child."""
        match event:
            case events.AgentStarted():
                self._add_nested(event)
                self._children.start(event)
                self._of(event.name).add(event, is_own=True)
            case events.AgentEnded():
                did = self._children.end(event)
                if (own := self._kept.get(event.name)) is not None:
                    own.add(event, is_own=True, did=did)
                self._add_nested(event, did)
            case events.Init():
                # Another session, which counts its agents from one again.
                self._kept.clear()
                self._children.clear()
                self._dropped = 0
            case events.RunStarted() | events.Result():
                self._children.clear()
            case events.UsageReport():
                self._children.update(event)
            case _ if event.agent in self._kept:
                self._children.update(event)
                self._kept[event.agent].add(event, is_own=True)
                self._add_nested(event)
            case _:
                pass

    def rows(self, name: str, width: int, *, color: bool, ascii: bool) -> list[str]:
        """How an agent would look if it were the main one. Of one that is not known, a row that says so."""
        transcript = self._kept.get(name)
        if transcript is not None:
            return transcript.rows(_AsMain(color=color, ascii=ascii, width=width))
        only = f"; of {counted(self._dropped, 'older agent')} no more" if self._dropped else ""
        return [f"Nothing is kept of {flat(name)[:MAX_SHOWN]}{only}."]

    def _of(self, name: str) -> _Transcript:
        """The transcript of an agent that starts; it is now the latest, and the oldest one at rest may have to go."""
        found = self._kept[name] = self._kept.pop(name) if name in self._kept else _Transcript()
        if len(self._kept) > MAX_AGENTS:
            oldest = next((known for known in self._kept if known not in self._children), next(iter(self._kept)))
            del self._kept[oldest]
            self._dropped += 1
        return found

    def _add_nested(self, event: Event, did: Child | None = None) -> None:
        """Add an event to the transcripts of all agents above it, as far as they show it."""
        if isinstance(event, LiveRenderer.left_out):
            return
        above = list(self._children.with_parents(event.agent))
        if isinstance(event, events.AgentStarted | events.AgentEnded):
            for one in above[:1]:
                self._nest(one.name, replace(event, agent=MAIN), did)
        else:
            did = copy(above[0]) if above and isinstance(event, events.UserInterruption) else None
        for one in above[1:]:
            self._nest(one.name, event, did)

    def _nest(self, name: str, event: Event, did: Child | None) -> None:
        if name in self._kept:
            self._kept[name].add(event, is_own=False, did=did)


def _belongs_to(event: Event) -> str:
    match event:
        case events.ToolProgress() | events.ToolResult():
            return f"call {event.id}"
        case events.ThinkingDelta():
            return "thought"
        case _:
            return "text"


def _trimmed(event: Event) -> Event:
    """The event without what no row shows."""
    match event:
        case events.ToolCall():
            return replace(event, input={name: _argument(value) for name, value in event.input.items()})
        case events.ToolResult():
            return replace(event, text=event.text.strip()[:MAX_SHOWN])
        case _:
            return event


def _argument(value: object) -> object:
    if isinstance(value, str):
        return value[:MAX_SHOWN]
    written = json.dumps(value, ensure_ascii=False, default=str)
    return value if len(written) <= MAX_SHOWN else written[:MAX_SHOWN]


def _size_of(event: Event) -> int:
    """The characters of an event's texts."""
    return sum(_length(getattr(event, name)) for name in event.__dataclass_fields__)


def _length(value: Any) -> int:  # noqa: ANN401 - whatever a field holds
    if isinstance(value, str):
        return len(value)
    if isinstance(value, tuple):
        return sum(_length(part) for part in value)
    return sum(_length(part) for part in value.values()) if isinstance(value, Mapping) else 0
