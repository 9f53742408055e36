"""Events on their way to one consumer, who may be slow or dead.

The chain never waits for a consumer. What a consumer has not taken is kept for it, and only pieces of running text, the
one thing that comes without end, are joined while they wait: a thousand waiting pieces of a reply become one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import trio

from chain.events import Event, TextDelta, ThinkingDelta, ToolProgress

MAX_PROGRESS = 256 * 1024
"""Characters of a tool's progress kept for a consumer: a reply is bounded by the model, a tool's chatter is not."""


class Feed:
    """The events of a chain, in order, for one consumer."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._pieces: list[str] = []
        self._length = 0
        self._news = trio.Event()
        self._closed = False

    def put(self, event: Event) -> None:
        """Take an event; never blocks."""
        if self._closed:
            return
        if self._pieces and isinstance(event, TextDelta | ThinkingDelta | ToolProgress) and self._continues(event):
            self._add(event.text)
        else:
            self._seal()
            self._events.append(event)
            if isinstance(event, TextDelta | ThinkingDelta | ToolProgress):
                self._add(event.text)
        self._news.set()

    def close(self) -> None:
        """Take no more events. What waits can still be taken."""
        self._closed = True
        self._news.set()

    async def batch(self) -> list[Event]:
        """Everything that waits, or else the next event; empty once the feed is closed and all was taken."""
        while not self._events and not self._closed:
            self._news = trio.Event()
            await self._news.wait()
        self._seal()
        events = list(self._events)
        self._events.clear()
        return events

    def _continues(self, event: TextDelta | ThinkingDelta | ToolProgress) -> bool:
        last = self._events[-1]
        if type(last) is not type(event) or (last.agent, last.iteration) != (event.agent, event.iteration):
            return False
        return not (isinstance(event, ToolProgress) and isinstance(last, ToolProgress) and event.id != last.id)

    def _add(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)
        if self._length > 2 * MAX_PROGRESS and isinstance(self._events[-1], ToolProgress):
            self._pieces = ["".join(self._pieces)[-MAX_PROGRESS:]]
            self._length = MAX_PROGRESS

    def _seal(self) -> None:
        """Give the last event the text of all its pieces."""
        if len(self._pieces) > 1:
            last = self._events[-1]
            assert isinstance(last, TextDelta | ThinkingDelta | ToolProgress)
            self._events[-1] = replace(last, text="".join(self._pieces))
        self._pieces, self._length = [], 0
