"""Queues of events, one for each consumer, who may be slow or dead.

The chain never waits for a consumer. Running text is joined while it waits: each reply and each tool has a stream of
its own until an event of another kind comes.

A listener is called in the step of an event. Its exceptions leave the block in which the chain is open.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import trio

from chain.concurrency.signal import Signal
from chain.events import Event, Notice, Piece, ToolProgress

MAX_WAITING_PROGRESS = 256 * 1024
"""The latest characters of a tool's progress that wait for a consumer. Replies are bounded by the model."""

Listener: TypeAlias = Callable[[Event], None]


@dataclass(eq=False)
class _Stream:
    """Running text that waits: its first piece as an event, and the text of all pieces."""

    first: Piece
    pieces: deque[str] = field(default_factory=deque)
    length: int = 0

    def add(self, text: str) -> None:
        is_progress = isinstance(self.first, ToolProgress)
        if is_progress and self.pieces and not self.pieces[-1].endswith("\n"):
            text = f"\n{text}"  # a report is a row, or several: two must not become one row
        self.pieces.append(text)
        self.length += len(text)
        while is_progress and self.length - len(self.pieces[0]) >= MAX_WAITING_PROGRESS:
            self.length -= len(self.pieces.popleft())

    def event(self) -> Piece:
        text = "".join(self.pieces)
        return replace(self.first, text=text[-MAX_WAITING_PROGRESS:] if isinstance(self.first, ToolProgress) else text)


class Feed:
    """The events of a chain, in order, for one consumer."""

    def __init__(self) -> None:
        self._waiting: list[Event | _Stream] = []
        self._open: dict[tuple[str, ...], _Stream] = {}
        self._news = Signal()
        self.is_closed = False

    def put(self, event: Event) -> None:
        """Add an event; never blocks."""
        if self.is_closed:
            return
        if isinstance(event, Piece):
            self._join(event)
        else:
            self._open.clear()
            self._waiting.append(event)
        self._news.set()

    def close(self) -> None:
        """Accept no more events. What waits can still be read."""
        self.is_closed = True
        self._news.set()

    async def batch(self) -> list[Event]:
        """Wait for events, and return all that wait; none once the feed is closed and all were read."""
        while not self._waiting and not self.is_closed:
            await self._news.wait()
        return self.take()

    def take(self) -> list[Event]:
        """Return the events that wait."""
        events = [e.event() if isinstance(e, _Stream) else e for e in self._waiting]
        self._waiting.clear()
        self._open.clear()
        return events

    def _join(self, event: Piece) -> None:
        key = (event.type, event.agent, str(event.iteration), event.id if isinstance(event, ToolProgress) else "")
        if not isinstance(event, ToolProgress):
            # The order of a reply's text and thinking is kept.
            self._open = {k: s for k, s in self._open.items() if k == key or isinstance(s.first, ToolProgress)}
        stream = self._open.get(key)
        if stream is None:
            stream = self._open[key] = _Stream(event)
            self._waiting.append(stream)
        stream.add(event.text)


class Broadcaster:
    """The feeds and listeners of a chain. It holds no reference to a feed, so an unused one is freed."""

    def __init__(self) -> None:
        self._feeds: list[weakref.ref[Feed]] = []
        """Not a ``WeakSet``: iterating over one costs more than all else that an event does."""
        self._listeners: list[Listener] = []
        self._is_closed = False
        self._raised: dict[int, Exception] = {}
        """The first error of each listener, by their places."""
        self._exit: BaseException | None = None
        """What a listener raised to end the program."""
        self._over = trio.Event()

    def feed(self, first: Event) -> Feed:
        """Return a feed of ``first`` and all events from now on."""
        feed = Feed()
        feed.put(first)
        if self._is_closed:
            feed.close()
        self._feeds.append(weakref.ref(feed, self._feeds.remove))
        return feed

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` in the step of every event from now on."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Emit an event to all feeds, then to all listeners."""
        # Feeds first: what a listener submits comes after the event that made it do so.
        for feed in self._held():
            feed.put(event)
        faults = []
        for place, listener in enumerate(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - it leaves by ``watch``, as all that listeners raise
                if place not in self._raised:
                    self._raised[place] = error
                    faults.append(f"a listener failed at {event.type}: {type(error).__name__}: {error}")
            except BaseException as error:  # noqa: BLE001
                self._exit = error
                self._over.set()
        for fault in faults:
            self.emit(Notice(message=fault))  # now, since the block may end long after

    async def watch(self) -> None:
        """Wait for the close and raise what listeners raised, as a group; ``SystemExit`` and the like come at once."""
        await self._over.wait()
        if self._exit is not None:
            raise self._exit
        if self._raised:
            raise ExceptionGroup("listeners failed", list(self._raised.values()))

    def close(self) -> None:
        """Close all feeds, and those that are made later."""
        self._is_closed = True
        for feed in self._held():
            feed.close()
        self._over.set()

    def _held(self) -> list[Feed]:
        return [feed for reference in tuple(self._feeds) if (feed := reference()) is not None]
