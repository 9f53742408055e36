"""The guide through the demonstration: lines to try, and their effects. Pure.

Comments do not repeat the rows of events. They are shown only between the steps of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from chain import events
from chain.events import Event
from chain.text.wording import MAIN

Comment: TypeAlias = str | Sequence[tuple[str, str]]
"""A text, or the rows of a table with lines to type and their effects."""

TRIES: dict[str, tuple[str, str]] = {
    "todo": ("todo: add verify the SKU data", "puts a task on its plan"),
    "question": ("how far are you?", "is answered, and the task continues"),
    "urgent": ("!use the notes first", "skips the waiting tools: best while it reads"),
    "stop": ("stop", "ends it, with what it has found so far"),
}
"""Lines to type and their effects, by kind."""

INTRODUCTION = (
    "A demonstration: one task on a small product table in a temporary folder, offline, done by fixed rules. It takes "
    "about 20 seconds, and you are meant to interrupt it.",
)
INVITATION: tuple[Comment, ...] = (
    "While it works, type one of these lines, or anything else, and press Enter (/help has more):",
    tuple(TRIES.values()),
)
READING = f"It reads file after file now. A good moment for: {TRIES['urgent'][0]}"
AFTERWARDS = (
    "The prompt stays. Ask about the files: list the files, search SKU122, which file is the largest? Or have another "
    "product analysed: analyze SKU122. /context shows how full its window is. /quit ends.",
)
_EFFECTS = {
    "todo": "The task was put on the plan without asking the model, which was informed between two steps.",
    "question": "Your question waited for the current step to end. It is answered now, and then the task continues.",
    "urgent": "The running tool has finished, and the tools after it were skipped, so that your line is read now.",
    "urgent, none started": "All tools of that reply were skipped, so that your line is read now.",
    "early": "Your line was urgent, but there was no waiting tool to skip.",
    "now": "The current step was cancelled, and your line is read at once. The run continues.",
    "other": "Your line waited for the current step to end, and is read now. Nothing was cancelled.",
    "stop": "Stopped. A running tool could finish, nothing else was started, and the results so far are shown above.",
    "stop, nothing found": "Stopped. A running tool could finish, nothing else was started. There are no results.",
    "interrupted": "The current step was cancelled. The results so far stay in the conversation.",
}


class Tour:
    """The guide, which receives the events of a demonstration in order, and comments on them."""

    farewell = "The demonstration's folder is removed, and nothing is stored. To start: chain"

    def __init__(self) -> None:
        self._left = dict(TRIES)
        self._queued: dict[str, events.LineQueued] = {}
        self._runs = 0
        self._has_read = False
        self._has_ended = False
        self._has_run_tools = False
        """Whether a tool was started in this iteration."""

    def comments(self, event: Event) -> Sequence[Comment]:
        """Return the comments to show after this event; for most events there are none."""
        if event.agent != MAIN:
            return ()
        match event:
            case events.Init() if not self._runs:  # a session after the first one is the user's own
                return INTRODUCTION
            case events.RunStarted():
                self._runs += 1
                return INVITATION if self._runs == 1 else ()
            case events.IterationStarted():
                self._has_run_tools = False
            case events.ToolCall(name="read_file") if not self._has_read:
                self._has_read = self._has_run_tools = True
                return (READING,) if "urgent" in self._left else ()
            case events.ToolCall():
                self._has_run_tools = True
            case events.LineQueued():
                self._queued[event.id] = event
            case events.UserInterruption():
                return self._effects(event)
            case events.Result():
                return self._ending(event)
            case _:
                pass
        return ()

    def _effects(self, event: events.UserInterruption) -> Sequence[str]:
        """Return the comments on delivered lines: one if a line was urgent, otherwise one for each kind of line."""
        lines = [self._queued[id] for id in event.ids if id in self._queued]
        kinds = dict.fromkeys(line.kind if line.kind in ("todo", "question") else "other" for line in lines)
        is_urgent = any(line.urgency != "next" for line in lines)
        for way in (*kinds, "urgent") if is_urgent else kinds:
            self._left.pop(way, None)
        if event.point == events.Point.AT_ONCE:
            return (_EFFECTS["now"],)
        if is_urgent:
            skipping = "urgent" if self._has_run_tools else "urgent, none started"
            return (_EFFECTS[skipping if event.tools_skipped else "early"],)
        return [_EFFECTS[kind] for kind in kinds]

    def _ending(self, event: events.Result) -> Sequence[str]:
        rows: list[str] = []
        if event.status.startswith("cancelled"):
            self._left.pop("stop", None)
            rows.append(_EFFECTS["stop, nothing found" if event.status == "cancelled" else "stop"])
        elif event.status == "interrupted":
            rows.append(_EFFECTS["interrupted"])
        if not self._has_ended:
            self._has_ended = True
            rows += AFTERWARDS
            if self._left:
                lines = ", ".join(line for line, _ in self._left.values())
                rows.append(f"Not tried yet: {lines}. They need a task at work: analyze SKU122, and then one of them.")
        return rows
