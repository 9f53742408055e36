"""The context of an event that its rows need from earlier events. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from chain import events
from chain.events import Event
from chain.text.wording import MAIN
from cli.show.child_agents import Child, Working, depth_of, self_and_ancestors


@dataclass(frozen=True, slots=True)
class Context:
    """The context of an event, in the view of one agent.

    ``depth`` is the number of levels below that agent, and ``agent`` the name to show: empty for the viewed agent
    itself, and if the text has the name. ``last_tool`` ran before the event in this iteration. ``parent`` started an
    agent, unless it is the viewed one; ``child`` is the state of an agent that has ended. ``is_readdressed``: the line
    waited for another agent before. ``began`` is the start of the run that has ended. ``jobs`` are the texts of those
    delivered lines that report the ends of jobs.
    """

    depth: int = 0
    agent: str = ""
    last_tool: str = ""
    parent: str = ""
    child: Child | None = None
    is_readdressed: bool = False
    began: float | None = None
    jobs: tuple[str, ...] = ()


class Contexts:
    """The state that gives each event of a session its context, in the main agent's view."""

    def __init__(self) -> None:
        self.working: Working = {}
        self._last_tool: dict[str, str] = {}
        self._queued: dict[str, str] = {}
        """The agent that each waiting line waits for."""
        self._jobs: dict[str, str] = {}
        """The texts of the waiting lines that report the ends of jobs."""
        self._began: float | None = None

    def context_of(self, event: Event) -> Context:
        """Return the context of the next event."""
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
