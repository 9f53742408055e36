"""Events as rows of text above a prompt, where what is not settled stands in rows that are drawn again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chain import events
from chain.events import Event
from chain.text.phrases import duration
from cli.show.child_agents import MOST_ROWS
from cli.show.event_context import Context
from cli.show.place import RowPlace
from cli.show.renderer import Renderer, progress_rows
from cli.show.replies import StreamedReplies
from cli.show.rows import rows
from cli.show.spacing import ANSWER, COMMAND, THINKING, WORK, Part, Spacing
from cli.show.text_rows import flat
from cli.show.unsettled import Unsettled

LEAST_ROWS = 3
"""Rows of what runs, however many lines wait."""


class UpdatingRenderer(Renderer):
    """A renderer for a prompt: what is not settled is in ``tail``, and blank rows part what is shown.

    A call, a line and a thought are one row each, when they are settled.
    """

    _holds_progress = True

    def __init__(self, *, color: bool, ascii: bool, width: int = 80) -> None:
        super().__init__(color=color, ascii=ascii, width=width, streams=True, collapses=True)
        self.shows_thinking = False
        self._replies = StreamedReplies(counts=True)
        self._unsettled = Unsettled()
        self._spacing = Spacing()
        self._now = 0.0
        """When the last event happened."""
        self._hint: tuple[str, list[str]] = ("", [])
        """The question that is open, and how it is answered, which is of use until the answer."""

    def lines(self, event: Event, context: Context | None = None) -> list[str]:
        """Return the rows for this event, and those that have waited for it."""
        self._now = event.time
        shown = super().lines(event, context)
        if isinstance(event, events.Reply):
            # A reply with calls says what they are for, so they follow it at once.
            self._spacing.join(ANSWER, WORK) if event.tool_calls else self._spacing.set_apart(ANSWER)
        return shown

    def rest(self) -> list[str]:
        """Return the rows of what is not settled, when nothing more will come."""
        unfinished = [row for row in (self._unfinished or "").split("\n") if row]
        return self._shown([*self._unheld(), (ANSWER, unfinished), (WORK, self._unsettled.rest(self.place))])

    @property
    def tail(self) -> str:
        """What may still change, as it was at the last event."""
        return self.tail_at(self._now)

    def tail_at(self, now: float) -> str:
        """Return what may still change: the end of a reply or a thought, what is at work, and the lines that wait."""
        place, unsettled, unfinished = self.place, self._unsettled, self._unfinished
        waiting = unsettled.waiting(place, now, MOST_ROWS - LEAST_ROWS)
        most = MOST_ROWS - len(waiting)
        running = unsettled.running(place, now, max(most - len(self._contexts.working), most // 2))
        thinking = []
        if self._thinks_since is not None:
            thinking = self._dim([f"thinking {duration(now - self._thinks_since, whole=True)}"])
        return self._spacing.preview(
            [
                (ANSWER if self._thought is None else THINKING, unfinished.split("\n") if unfinished else []),
                (THINKING, thinking),
                (WORK, [*self._hint[1], *self._working(most, running), *waiting]),
            ]
        )

    @property
    def is_timed(self) -> bool:
        """Whether ``tail_at`` changes as time passes."""
        return super().is_timed or self._unsettled.is_timed

    def hint(self, event: events.Question, *, by_key: bool = True) -> list[str]:
        """Show in the tail how to answer a question that is open. Return the question's rows."""
        self._hint = (event.id, super().hint(event, by_key=by_key))
        return self._shown(self._unheld())

    def answer(self, command: str, text: str, rows: Sequence[str] = ()) -> list[str]:
        """Return the rows of an answer to what was typed, which is repeated above it; ``rows`` come below it."""
        found = super().answer(command, text, rows)
        self._spacing.set_apart(COMMAND)
        return found

    def _shown(self, parts: Iterable[Part]) -> list[str]:
        return self._spacing.rows(parts)

    def _unheld(self, event: Event | None = None) -> list[Part]:
        """Return the question that was held back, if the event does not answer it at once."""
        if (held := self._unsettled.unheld(event)) is None:
            return []
        question, place = held
        return self._work(rows(question, place, Context()), place)

    def _parts(self, event: Event, context: Context) -> list[Part]:
        if isinstance(event, events.Answer) and event.id == self._hint[0]:
            self._hint = ("", [])
        place = self.place.below(context.depth, context.agent)
        question = self._unheld(event)
        went_on = self._work(self._unsettled.went_on(event, place), place)
        return [*question, *went_on, *super()._parts(event, context)]

    def _rows(self, event: Event, place: RowPlace, context: Context) -> list[str]:
        if isinstance(event, events.IterationStarted):
            return []
        settled = self._unsettled.rows(event, place, context)
        if settled is None:
            return super()._rows(event, place, context)
        if isinstance(event, events.ToolResult):
            said = self._end_progress(event, context, place)
            # What is said in the row below is not said twice.
            is_twice = bool(said) and any(flat(said[-1]) in row for row in settled)
            return [*progress_rows(said[:-1] if is_twice else said, place), *settled]
        return settled
