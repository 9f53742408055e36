"""The events that bring a late subscriber up to date. Pure.

The snapshot contains only events that were emitted before.
"""

from __future__ import annotations

from dataclasses import replace

from chain import events
from chain.events import Event


class Snapshot:
    """The latest events of the run, agents at work, plan, waiting lines, streaming replies and the open question."""

    def __init__(self) -> None:
        self._run: events.RunStarted | None = None
        self._agents: dict[str, events.AgentStarted] = {}
        self._plan: events.PlanChanged | None = None
        self._lines: dict[str, events.LineQueued] = {}
        self._replies: dict[str, list[events.TextDelta]] = {}
        """The pieces of the streaming replies, by agent."""
        self._questions: dict[str, events.Question] = {}

    def update(self, event: Event) -> None:
        """Update the snapshot with an emitted event."""
        match event:
            case events.TextDelta():
                self._replies.setdefault(event.agent, []).append(event)
            case events.ThinkingDelta() | events.ToolProgress():
                pass
            case events.Reply() | events.Retry() | events.IterationStarted():
                self._replies.pop(event.agent, None)
            case events.RunStarted():
                self._run = event
                self._lines.pop(event.id, None)
            case events.Result():
                self._run = None
                self._agents.clear()
                self._replies.clear()
            case events.AgentStarted():
                self._agents[event.name] = event
            case events.AgentEnded():
                self._agents.pop(event.name, None)
                self._replies.pop(event.name, None)
            case events.PlanChanged():
                self._plan = event
            case events.LineQueued():
                self._lines[event.id] = event
            case events.UserInterruption():
                for id in event.ids:
                    self._lines.pop(id, None)
            case events.Receipt(state="refused" | "unsent"):
                pass  # the line never waited; another waiting line may have its id
            case events.Receipt():
                self._lines.pop(event.id, None)
            case events.Question():
                self._questions[event.id] = event
            case events.Answer():
                self._questions.pop(event.id, None)
            case _:
                pass

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of the snapshot, with the pieces of each streaming reply joined."""
        replies = (replace(p[0], text="".join(each.text for each in p)) for p in self._replies.values())
        lines, questions = self._lines.values(), self._questions.values()
        found = (self._run, *self._agents.values(), self._plan, *lines, *replies, *questions)
        return tuple(event for event in found if event is not None)
