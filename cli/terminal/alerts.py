"""Window titles and bells when a question opens or a long run ends, since the user may not be looking. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from chain import events
from chain.text.phrases import describe_status, was_stopped
from chain.text.wording import MAIN

LONG_S = 10.0
"""The bell rings at the end of a run that took more seconds than this: the user has probably looked away."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A change of the window's title, and whether to ring the bell. An empty title restores the plain title."""

    title: str = ""
    rings: bool = False


class Alerts:
    """The alerts of one session, derived from its events."""

    def __init__(self) -> None:
        self._started_at: float | None = None
        self._open_question = ""

    def next_alert(self, event: events.Event) -> Alert | None:
        """Return the alert for the next event; ``None`` if nothing changes."""
        match event:
            case events.RunStarted():
                self._started_at = event.time
                return Alert()
            case events.Question():
                self._open_question = event.id
                return Alert(f"chain: {event.id} asks", rings=True)
            case events.Answer() if event.id == self._open_question:
                return Alert()
            case events.Result(agent=agent) if agent == MAIN and self._started_at is not None:
                took, self._started_at = event.time - self._started_at, None
                is_news = took > LONG_S and not was_stopped(event.status)
                return Alert(f"chain: {describe_status(event.status)}", rings=True) if is_news else None
            case _:
                return None
