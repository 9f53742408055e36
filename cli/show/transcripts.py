"""The transcript of each child agent, with the rows that a main agent would have. Pure.

Rows are made when the events arrive, for the terminal's width at that time. Only the latest rows are stored, since an
agent may run for hours.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from chain import events
from chain.events import Event
from chain.text.wording import pluralize
from cli.show.child_agents import self_and_ancestors
from cli.show.event_context import Context, Contexts
from cli.show.renderer import WORK_OF_CHILDREN, Renderer
from cli.show.text_rows import flat

MAX_AGENTS = 64
"""The maximum number of transcripts. By default this is enough for all running agents and those to ask again."""
MAX_ROWS = 1_000
"""The maximum number of stored rows of an agent."""
MAX_NAME = 200
"""The maximum number of characters that are shown of an unknown agent's name."""


class _Transcript:
    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._rows: deque[str] = deque(maxlen=MAX_ROWS)
        self._dropped = 0

    def add(self, event: Event, context: Context, width: int) -> None:
        self._renderer.resize(width)
        rows = self._renderer.rows(event, context)
        self._dropped += max(len(self._rows) + len(rows) - MAX_ROWS, 0)
        self._rows += rows

    @property
    def rows(self) -> list[str]:
        note = f"{pluralize(self._dropped, 'earlier row')} dropped"
        begin = self._renderer.place.note("…", note, "dim") if self._dropped else []
        return [*begin, *self._rows, *self._renderer.unsettled_rows()]


class Transcripts:
    """The stored transcripts of all child agents."""

    def __init__(self, *, color: bool, ascii: bool) -> None:
        self._color, self._ascii = color, ascii
        self.transcripts: dict[str, _Transcript] = {}
        """The transcripts by agent, in the order of their starts."""
        self._contexts = Contexts()
        self._dropped = 0

    def update(self, event: Event, width: int) -> None:
        """Add an event of a child to the transcripts of the child and of its ancestors. Ignore other events.

        The rows are made for a terminal ``width`` columns wide.
        """
        context = self._contexts.record(event)
        match event:
            case events.AgentStarted():
                self._add_nested(event, context, width)
                start = events.RunStarted(id="", query=event.task, time=event.time)
                self._open_transcript(event.name).add(start, Context(), width)
            case events.AgentEnded():
                if (own := self.transcripts.get(event.name)) is not None:
                    own.add(event, Context(child=context.child), width)
                self._add_nested(event, context, width)
            case _ if event.agent in self.transcripts:
                self.transcripts[event.agent].add(event, replace(context, depth=0, agent=""), width)
                self._add_nested(event, context, width)
            case _:
                pass

    def rows(self, name: str) -> list[str]:
        """Return an agent's transcript as rows; for an unknown agent, a row that says that there is none."""
        if (transcript := self.transcripts.get(name)) is not None:
            return transcript.rows
        dropped = f" (dropped: {pluralize(self._dropped, 'older agent')})" if self._dropped else ""
        return [f"There is no transcript of {flat(name)[:MAX_NAME]}{dropped}."]

    def _open_transcript(self, name: str) -> _Transcript:
        """Return the transcript of an agent that starts, which becomes the latest one. Create it if there is none.

        If there are too many transcripts, drop the oldest one of an idle agent, or the oldest one if all agents work.
        """
        found = self.transcripts.pop(name, None)
        if found is None:
            found = _Transcript(Renderer(color=self._color, ascii=self._ascii, streams=True, collapses=True))
        self.transcripts[name] = found
        if len(self.transcripts) > MAX_AGENTS:
            working = self._contexts.working
            oldest = next((known for known in self.transcripts if known not in working), next(iter(self.transcripts)))
            del self.transcripts[oldest]
            self._dropped += 1
        return found

    def _add_nested(self, event: Event, context: Context, width: int) -> None:
        """Add an event of an agent to the transcripts of its ancestors, unless it is of ``WORK_OF_CHILDREN``."""
        if isinstance(event, WORK_OF_CHILDREN):
            return
        above = list(self_and_ancestors(self._contexts.working, event.agent))
        # The start and the end of an agent belong to its parent, other events to the agent itself.
        is_below_itself = not isinstance(event, events.AgentStarted | events.AgentEnded)
        for depth, one in enumerate(above[is_below_itself:], 1):
            if one.name in self.transcripts:
                parent = context.parent if depth > 1 else ""
                self.transcripts[one.name].add(event, replace(context, depth=depth, parent=parent), width)
