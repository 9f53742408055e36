"""The distribution of events to consumers, which have a queue each, and to listeners, which are called synchronously.

The chain never waits for a consumer. Consecutive pieces of a reply or of a tool's progress are joined while they are
queued. Exceptions of listeners are raised from the block in which the chain is open.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import trio

from chain.concurrency.wakeup import Wakeup
from chain.events import Event, Notice, Piece, ToolProgress

MAX_WAITING_PROGRESS = 256 * 1024
"""The maximum number of characters of a tool's queued progress. Older text is dropped. Replies have no limit."""

Listener: TypeAlias = Callable[[Event], None]
"""A function that is called with each event."""


@dataclass(eq=False)
class _Stream:
    """The queued pieces of one text. ``first`` is the event of the first piece, ``pieces`` are their texts."""

    first: Piece
    pieces: deque[str] = field(default_factory=deque)
    length: int = 0

    def add(self, text: str) -> None:
        is_progress = isinstance(self.first, ToolProgress)
        if is_progress and self.pieces and not self.pieces[-1].endswith("\n"):
            text = f"\n{text}"  # a report is one or more rows: two reports must not share a row
        self.pieces.append(text)
        self.length += len(text)
        while is_progress and self.length - len(self.pieces[0]) >= MAX_WAITING_PROGRESS:
            self.length -= len(self.pieces.popleft())

    def event(self) -> Piece:
        text = "".join(self.pieces)
        return replace(self.first, text=text[-MAX_WAITING_PROGRESS:] if isinstance(self.first, ToolProgress) else text)


class Feed:
    """A queue of the events of a chain for one consumer."""

    def __init__(self) -> None:
        self._waiting: list[Event | _Stream] = []
        self._streams: dict[tuple[str, ...], _Stream] = {}
        self._wakeup = Wakeup()
        self.is_closed = False

    def put(self, event: Event) -> None:
        """Queue an event, unless the feed is closed. Never blocks."""
        if self.is_closed:
            return
        if isinstance(event, Piece):
            self._join(event)
        else:
            self._streams.clear()
            self._waiting.append(event)
        self._wakeup.set()

    def close(self) -> None:
        """Ignore events from now on. Queued events can still be read."""
        self.is_closed = True
        self._wakeup.set()

    async def batch(self) -> list[Event]:
        """Wait for events, then remove and return all queued events. Return none if the feed is closed and empty."""
        while not self._waiting and not self.is_closed:
            await self._wakeup.wait()
        return self.take()

    def take(self) -> list[Event]:
        """Remove and return the queued events, without waiting for any."""
        events = [e.event() if isinstance(e, _Stream) else e for e in self._waiting]
        self._waiting.clear()
        self._streams.clear()
        return events

    def _join(self, event: Piece) -> None:
        """Append a piece of text to the queued stream that it continues, or start a new stream."""
        key = (event.type, event.agent, str(event.iteration), event.id if isinstance(event, ToolProgress) else "")
        if not isinstance(event, ToolProgress):
            # A piece of another kind ends the stream, so that a reply's text and thinking stay in order.
            self._streams = {k: s for k, s in self._streams.items() if k == key or isinstance(s.first, ToolProgress)}
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(event)
            self._waiting.append(stream)
        stream.add(event.text)


class Broadcaster:
    """The distributor of events to the feeds and listeners of a chain. A feed that no consumer references is freed."""

    def __init__(self) -> None:
        self._feeds: list[weakref.ref[Feed]] = []
        """The feeds of consumers: a list, since iterating over a ``WeakSet`` would be slow."""
        self._listeners: list[Listener] = []
        self._is_closed = False
        self._errors: dict[int, Exception] = {}
        """The first error of each listener, by the listener's index."""
        self._exit_error: BaseException | None = None
        """An exception such as ``SystemExit`` that a listener raised to end the program."""
        self._ended = trio.Event()

    def feed(self, first: Event) -> Feed:
        """Return a new feed that starts with ``first`` and receives all events from now on."""
        feed = Feed()
        feed.put(first)
        if self._is_closed:
            feed.close()
        self._feeds.append(weakref.ref(feed, self._feeds.remove))
        return feed

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` synchronously with every event from now on."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Emit an event to all feeds, then to all listeners."""
        # Feeds first: the events of a line that a listener submits must follow this event.
        for feed in self._live_feeds():
            feed.put(event)
        faults = []
        for place, listener in enumerate(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - ``watch`` raises all errors of listeners
                if place not in self._errors:
                    self._errors[place] = error
                    faults.append(f"a listener failed at {event.type}: {type(error).__name__}: {error}")
            except BaseException as error:  # noqa: BLE001
                self._exit_error = error
                self._ended.set()
        for fault in faults:
            self.emit(Notice(message=fault))  # ``watch`` raises it, but maybe much later

    async def watch(self) -> None:
        """Wait for ``close``, then raise the first error of each listener as a group, if there are any.

        If a listener raises an exception that ends the program, such as ``SystemExit``, raise that exception at once.
        """
        await self._ended.wait()
        if self._exit_error is not None:
            raise self._exit_error
        if self._errors:
            raise ExceptionGroup("listeners failed", list(self._errors.values()))

    def close(self) -> None:
        """Close all feeds, and end ``watch``. A feed that is created later is closed from the start."""
        self._is_closed = True
        for feed in self._live_feeds():
            feed.close()
        self._ended.set()

    def _live_feeds(self) -> list[Feed]:
        """Return the feeds that have not been freed."""
        return [feed for reference in tuple(self._feeds) if (feed := reference()) is not None]
