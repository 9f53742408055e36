"""The context of events: the data from earlier events that their rows need. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from chain import events
from chain.events import Event
from chain.text.wording import MAIN
from cli.show.child_agents import Child, Working, depth_of, self_and_ancestors


@dataclass(frozen=True, slots=True)
class Context:
    """The data from earlier events that the rows of one event need, in the view of one agent."""

    depth: int = 0
    """How many levels the event's agent is below the viewed agent; 0 for the viewed agent."""
    agent: str = ""
    """The agent's name to show before the event's text. Empty for the viewed agent, and if the text has the name."""
    last_tool: str = ""
    """At a delivery of lines: the last tool that was called in this iteration; empty if there was none."""
    parent: str = ""
    """At the start of an agent: its parent, the agent that started it. Empty if the parent is the viewed agent."""
    child: Child | None = None
    """At the end of an agent: the last state of this agent."""
    is_readdressed: bool = False
    """At a waiting line: whether the line waited for another agent before."""
    began: float | None = None
    """At the result of a run: the time when the run began; ``None`` if the tracker did not see that."""
    jobs: tuple[str, ...] = ()
    """At a delivery of lines: the texts of those lines that report the end of a job."""


class Contexts:
    """A tracker of a session's events, which computes the context of each event in the main agent's view."""

    def __init__(self) -> None:
        self.working: Working = {}
        self._last_tool: dict[str, str] = {}
        self._queued: dict[str, str] = {}
        """The agent that each waiting line waits for."""
        self._jobs: dict[str, str] = {}
        """The texts of the waiting lines that report the ends of jobs."""
        self._began: float | None = None

    def record(self, event: Event) -> Context:
        """Record the next event of the session, and return the context of this event."""
        working, depth = self.working, depth_of(self.working, event.agent)
        if event.agent in working:
            working[event.agent].update(event)
        own = Context() if event.agent == MAIN else Context(depth, event.agent)
        match event:
            case events.RunStarted():
                self._began = event.time
                working.clear()
            case events.IterationStarted():
                self._last_tool.pop(event.agent, None)
            case events.ToolCall():
                self._last_tool[event.agent] = event.name
            case events.LineQueued():
                before = self._queued.get(event.id, event.target_agent)
                self._queued[event.id] = event.target_agent
                if event.kind == "job":
                    self._jobs[event.id] = event.text
                return Context(own.depth, own.agent, is_readdressed=before != event.target_agent)
            case events.UserInterruption():
                for id in event.ids:
                    self._queued.pop(id, None)
                jobs = tuple(self._jobs.pop(id) for id in event.ids if id in self._jobs)
                return Context(own.depth, own.agent, self._last_tool.get(event.agent, ""), jobs=jobs)
            case events.UsageReport():
                cached = event.cache_read_tokens + event.cache_write_tokens
                for one in self_and_ancestors(working, event.agent):
                    one.tokens += event.input_tokens + event.output_tokens + cached
            case events.Receipt() if event.state != "queued":
                self._queued.pop(event.id, None)
            case events.AgentStarted():
                parent = working.get(event.agent)
                # It comes last, even if the end of an earlier agent of its name was not reported.
                working.pop(event.name, None)
                below = 1 if parent is None else parent.depth + 1
                working[event.name] = Child(event.name, event.agent, event.task, below, event.time)
                return Context(depth + 1, parent=own.agent)
            case events.AgentEnded():
                self._last_tool.pop(event.name, None)
                child = working.pop(event.name, None) or Child(event.name, event.agent, event.task, 1, event.time)
                return Context(depth + 1, event.name, child=child)
            case events.Result():
                began, self._began = self._began, None
                working.clear()
                return Context(began=began)
            case _:
                pass
        return own
