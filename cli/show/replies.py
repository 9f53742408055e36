"""The replies of the agent whose view it is: held back beside an answer that the caller prints, or shown as they come.

Both have the same methods, and give the rows that are due. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from chain import events
from chain.events import Event
from cli.show.context import Context
from cli.show.markdown import MarkdownFlow, PlainFlow
from cli.show.place import Place, rows_of
from cli.show.text import in_rows


class HeldReplies:
    """Holds back a reply without tool calls, which is probably the run's answer, until an event shows that it was not.

    That is another iteration, lines that were delivered after it, a tool call, or a result with another text. Events
    that do not decide this (a receipt, token usage) leave it held back.
    """

    tail = None
    holds_rows = False

    def __init__(self) -> None:
        self._held: str | None = None

    def add(self, text: str, place: Place) -> list[str]:
        """No rows of a piece: the whole reply is an event as well."""
        return []

    def end(self, reply: events.Reply, place: Place) -> list[str]:
        """The rows of a reply that is complete."""
        if reply.tool_calls == 0:
            self._held = reply.text
            return []
        return rows_of(reply.text)

    def cut_off(self, place: Place) -> list[str]:
        """The rows for a reply that is asked for again."""
        return []

    def release(self, event: Event, place: Place, context: Context) -> list[str]:
        """The reply that was held back, if this event shows that it was not the answer."""
        if self._held is None:
            return []
        match event:
            case events.Result():
                held, self._held = self._held, None
                answer, text = event.result.strip(), held.strip()
                # The answer of a stopped run is the text that the stop cut, and after it what was found.
                has_it = answer.startswith(text) if event.status.startswith("cancelled") else answer == text
                return [] if has_it else rows_of(held)
            case events.IterationStarted() | events.RunStarted() | events.UserInterruption() | events.ToolCall():
                held, self._held = self._held, None
                return rows_of(held)
            case _:
                return []

    def aside(self, rows: Sequence[str]) -> list[str]:
        """Rows of something else."""
        return list(rows)

    def resize(self, width: int) -> list[str]:
        """No rows, as none is unfinished."""
        return []


class StreamedReplies:
    """Shows replies as they come, as Markdown where there are colours; ``tail`` is the unfinished rows.

    No other row stands inside a paragraph, a list item, a table or a code block: it waits for the block's end.
    """

    def __init__(self) -> None:
        self._flow: MarkdownFlow | PlainFlow | None = None
        self._aside: list[str] = []
        """Rows that wait for the end of the block that is being written."""

    @property
    def tail(self) -> str | None:
        """The unfinished rows; ``None`` if no reply has begun."""
        return None if self._flow is None else self._flow.tail

    @property
    def holds_rows(self) -> bool:
        """Whether rows wait for the end of a block."""
        return bool(self._aside)

    def add(self, text: str, place: Place) -> list[str]:
        """The rows that a piece completes, with those that waited for the end of a block."""
        if self._flow is None:
            self._flow = _new_flow(place)
        rows = self._flow.add(text)
        if self._flow.whole is not None:
            rows[self._flow.whole : self._flow.whole] = self._take_aside()
        return rows

    def end(self, reply: events.Reply, place: Place) -> list[str]:
        """The rest of a reply, and what has waited for its end."""
        if self._flow is not None:
            return self._end_flow()
        flow = _new_flow(place)
        return [*flow.add(reply.text), *flow.end()]

    def cut_off(self, place: Place) -> list[str]:
        """What has waited, and a note if the reply has begun: it is void, and no more of it is shown."""
        was_begun, self._flow = self._flow is not None, None
        note = place.note("↻", "That reply was cut off; ignore it.", "yellow") if was_begun else []
        return [*self._take_aside(), *note]

    def release(self, event: Event, place: Place, context: Context) -> list[str]:
        """The rest of a reply that ends here, and the run's answer if no reply has shown it."""
        if not isinstance(event, events.Result | events.IterationStarted | events.AgentEnded):
            return []
        rows = self._end_flow()
        if not isinstance(event, events.Result) or event.status == "error" or context.is_repeated:
            return rows
        text = event.result.strip()
        # Replies were shown as they came; only what a stop adds to one is left to show.
        shown = max((r.strip() for r in event.replies if text.startswith(r.strip())), key=len, default="")
        return [*rows, *in_rows(text.removeprefix(shown).strip(), place.room)]

    def aside(self, rows: Sequence[str]) -> list[str]:
        """These rows, or none of them yet if they have to wait for the end of a block."""
        if self._flow is None or not self._flow.is_open:
            return list(rows)
        self._aside += rows
        return []

    def resize(self, width: int) -> list[str]:
        """Adapt to another width. Returns the rows that no longer fit into the unfinished one."""
        if self._flow is None:
            return []
        self._flow.width = width
        return self._flow.add("")

    def _end_flow(self) -> list[str]:
        flow, self._flow = self._flow, None
        return [*([] if flow is None else flow.end()), *self._take_aside()]

    def _take_aside(self) -> list[str]:
        rows, self._aside = self._aside, []
        return rows


def _new_flow(place: Place) -> MarkdownFlow | PlainFlow:
    return MarkdownFlow(place.width, ascii=place.ascii) if place.color else PlainFlow(place.width)
