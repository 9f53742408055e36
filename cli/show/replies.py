"""The replies of the main agent as rows: streamed, or delayed until it is known which reply is the answer. Pure."""

from __future__ import annotations

from chain import events
from chain.events import Event
from chain.text.phrases import unshown_result
from cli.show.markdown_flow import MarkdownFlow, PlainFlow
from cli.show.place import RowPlace, rows_of
from cli.show.spacing import ANSWER, WORK, Part
from cli.show.spans import MarkdownStyle
from cli.show.text_rows import wrap_text

_ENDS_WAITING = (events.Result, events.IterationStarted, events.RunStarted, events.UserInterruption, events.ToolCall)
"""The types of events that decide whether a delayed reply was the answer."""


class StreamedReplies:
    """Replies that are shown as they stream, as Markdown if there are colours. ``tail`` has the unfinished rows.

    Rows of other events wait for the end of an open paragraph, list item, table or code block.
    """

    def __init__(self) -> None:
        self._flow: MarkdownFlow | PlainFlow | None = None
        self._aside: list[Part] = []
        """The parts that wait for the end of the open block."""

    @property
    def tail(self) -> str | None:
        """The unfinished rows; ``None`` if no reply is streaming."""
        return None if self._flow is None else self._flow.tail

    @property
    def holds_rows(self) -> bool:
        """Whether rows of other events wait for the end of the open block."""
        return bool(self._aside)

    def add(self, text: str, place: RowPlace) -> list[Part]:
        """Append a piece of a reply. Return the rows that it completes."""
        if self._flow is None:
            style = MarkdownStyle(ascii=place.ascii)
            self._flow = MarkdownFlow(place.width, style) if place.color else PlainFlow(place.width)
        first, *others = self._flow.add(text)
        parts: list[Part] = [(ANSWER, first)]
        for rows in others:
            parts += [*self._take_aside(), (ANSWER, rows)]
        return parts

    def end(self, reply: events.Reply, place: RowPlace) -> list[Part]:
        """End a complete reply. Return its remaining rows, then the rows that waited for its last block."""
        parts = self.add(reply.text, place) if self._flow is None else []
        return parts + self._end_flow()

    def discard(self, place: RowPlace) -> list[Part]:
        """Discard a reply that will be requested again. Return the rows that waited for the open block, and a note."""
        was_begun, self._flow = self._flow is not None, None
        note = place.note("↻", "That reply was cut off; ignore it.", "yellow") if was_begun else []
        return [*self._take_aside(), (WORK, note)]

    def release(self, event: Event, place: RowPlace) -> list[Part]:
        """End the reply if the event is a result, a new iteration, or the end of an agent. Return the remaining rows.

        Also return the rows of text that only the result has, such as the results so far of a stopped run.
        """
        if not isinstance(event, events.Result | events.IterationStarted | events.AgentEnded):
            return []
        parts = self._end_flow()
        if not isinstance(event, events.Result) or event.status == "error":
            return parts
        # Replies were shown as they came. Only the text that a stop added is left.
        return [*parts, (ANSWER, wrap_text(unshown_result(event), place.room))]

    def queue(self, parts: list[Part]) -> list[Part]:
        """Return the parts if no block is open. Otherwise queue them until the block ends, and return nothing."""
        if self._flow is None or not self._flow.is_open:
            return parts
        self._aside += (part for part in parts if part[1])
        return []

    def resize(self, width: int) -> None:
        """Set the width of the next row and all later rows."""
        if self._flow is not None:
            self._flow.width = width

    def _end_flow(self) -> list[Part]:
        flow, self._flow = self._flow, None
        return [(ANSWER, [] if flow is None else flow.end()), *self._take_aside()]

    def _take_aside(self) -> list[Part]:
        parts, self._aside = self._aside, []
        return parts


class HeldReplies(StreamedReplies):
    """Replies that are shown whole, when they are complete.

    A reply without tool calls is probably the answer of the run, which the caller prints. So it is delayed until a
    later event decides: an iteration, delivered lines, a tool call, or a result with another text show that it was not
    the answer. Other events, such as a receipt or token usage, decide nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: str | None = None

    def add(self, text: str, place: RowPlace) -> list[Part]:
        """Return no rows: a reply is shown whole, when it ends."""
        return []

    def end(self, reply: events.Reply, place: RowPlace) -> list[Part]:
        """Return the rows of a reply with tool calls. Delay any other reply, which may be the answer."""
        if reply.tool_calls == 0:
            self._held = reply.text
            return []
        return [(ANSWER, rows_of(reply.text))]

    def release(self, event: Event, place: RowPlace) -> list[Part]:
        """Return the rows of the delayed reply if this event shows that it was not the answer; else no rows."""
        held = self._held
        if held is None or not isinstance(event, _ENDS_WAITING):
            return []
        self._held = None
        if isinstance(event, events.Result):
            answer, text = event.result.strip(), held.strip()
            # The answer of a stopped run is the cut text followed by the results so far.
            if answer == text or (event.status.startswith("cancelled") and answer.startswith(text)):
                return []
        return [(ANSWER, rows_of(held))]
