"""What the rows of an event need of the events before it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from chain import events
from chain.events import Event
from chain.text.wording import MAIN
from cli.show.children import Child, Children


@dataclass(frozen=True, slots=True)
class Context:
    """What is known of an event beside itself.

    ``depth`` is how far below the agent whose view it is its rows stand, and ``agent`` whose they are: empty for that
    one itself, and where the text names it. ``last_tool`` ran before it in this iteration. ``parent`` started an agent,
    unless that is the one whose view it is, and ``child`` is what an agent that has ended did. ``is_moved``: a line
    waited for another agent before. ``began`` is when the run began that ended, ``is_repeated``: it was told already.
    """

    depth: int = 0
    agent: str = ""
    last_tool: str = ""
    parent: str = ""
    child: Child | None = None
    is_moved: bool = False
    began: float | None = None
    is_repeated: bool = False


class Contexts:
    """Follows the events of a session, and gives each its context in the main agent's view."""

    def __init__(self) -> None:
        self.children = Children()
        self._last_tool: dict[str, str] = {}
        self._queued: dict[str, str] = {}
        """The agent that each waiting line waits for."""
        self._began: float | None = None
        self._has_ended = False

    def of(self, event: Event) -> Context:
        """The context of the next event."""
        self.children.update(event)
        depth = self.children.depth(event.agent)
        own = Context(depth, "" if event.agent == MAIN else event.agent)
        match event:
            case events.Init():
                # Another session, which counts its lines and its agents from one again.
                self._queued.clear()
                self.children.clear()
            case events.RunStarted():
                self._began, self._has_ended = event.time, False
                self.children.clear()
            case events.IterationStarted():
                self._last_tool.pop(event.agent, None)
                self._has_ended = self._has_ended and event.agent != MAIN
            case events.ToolCall():
                self._last_tool[event.agent] = event.name
            case events.LineQueued():
                before = self._queued.get(event.id, event.target_agent)
                self._queued[event.id] = event.target_agent
                return Context(own.depth, own.agent, is_moved=before != event.target_agent)
            case events.UserInterruption():
                for id in event.ids:
                    self._queued.pop(id, None)
                return Context(own.depth, own.agent, self._last_tool.get(event.agent, ""))
            case events.Receipt() if event.state != "queued":
                self._queued.pop(event.id, None)
            case events.AgentStarted():
                self.children.start(event)
                return Context(depth + 1, parent=own.agent)
            case events.AgentEnded():
                self._last_tool.pop(event.name, None)
                return Context(depth + 1, event.name, child=self.children.end(event))
            case events.Result():
                # The last result may come twice, for its run and for the process.
                if self._has_ended:
                    return Context(is_repeated=True)
                began, self._began, self._has_ended = self._began, None, True
                self.children.clear()
                return Context(began=began)
            case _:
                pass
        return own
