"""Events as rows of text for people: the progress of a headless run, and what scrolls above a prompt. Pure.

The rows of a child stand further in than those of its parent, below the call that started it, and name it, since
several may work at the same time.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from chain import events
from chain.events import Event
from chain.text.phrases import beyond_replies
from chain.text.wording import counted
from cli.show import questions
from cli.show.child_agents import MOST_ROWS, child_rows, depth_of, indent
from cli.show.event_context import Context, Contexts
from cli.show.markdown_flow import MarkdownFlow, PlainFlow
from cli.show.place import RowPlace, rows_of
from cli.show.rows import painted_preview, rows
from cli.show.table import table
from cli.show.text import Flow, flat, in_rows
from cli.show.tour import Comment
from cli.show.user_lines import as_typed

NARROWEST = 20

FIRST = 20
"""Rows that are shown as they come."""
LAST = 5
"""Rows that are shown of what comes after those: while the tool runs as far as that goes, and at its end."""

NEVER_OF_CHILDREN = (events.Init, events.RunStarted, events.Result, events.ThinkingDelta)
"""What is no row if it is a child's. Nobody could follow the thoughts of several; the others are main's alone."""
WORK_OF_CHILDREN = (
    *NEVER_OF_CHILDREN,
    events.IterationStarted,
    events.TextDelta,
    events.Reply,
    events.ToolCall,
    events.ToolProgress,
    events.ToolResult,
)
"""What is no row either where the work of children is collapsed."""

_ENDS_THOUGHT = (
    events.TextDelta,
    events.Reply,
    events.Retry,
    events.ToolCall,
    events.UserInterruption,
    events.RunStarted,
    events.IterationStarted,
    events.Error,
    events.Result,
)


class Renderer:
    """Turns the events of a chain into rows, in order; keeps what later rows need of earlier events.

    With ``streams`` replies are shown as they come, and nothing else prints the answer. With ``collapses`` what
    children do is no row but in ``tail``: only their starts, their ends and all that is between them and the user are.
    """

    def __init__(
        self, *, color: bool, ascii: bool, width: int = 80, streams: bool = False, collapses: bool = False
    ) -> None:
        self.shows_answers = streams
        """Whether the answers are among the rows, so that nobody else has to print them."""
        self._collapses = collapses
        self.place = RowPlace(max(width, NARROWEST), color, ascii, wraps=streams)
        self._contexts = Contexts()
        self._replies = _StreamedReplies() if streams else _HeldReplies()
        self._thought: Flow | None = None
        self._progress: dict[tuple[str, str], _Progress] = {}
        self._owe_reply = set[str]()
        """The children that have read a line and not replied yet."""

    def lines(self, event: Event) -> list[str]:
        """The rows to show for this event, and those that have waited for it, without newlines; often none."""
        return self.lines_of(event, self._contexts.of(event))

    def lines_of(self, event: Event, context: Context) -> list[str]:
        """The same for an event whose context is known otherwise."""
        if context.depth:
            if self._is_left_out(event):
                return []
            place = self.place.below(context.depth, context.agent)
            found = self._rows(event, place, context)
            return self._replies.aside([f"{place.indent}{row}" if row else row for row in found])
        found = [*self._released(event, context), *self._rows(event, self.place, context)]
        return found if isinstance(event, events.TextDelta | events.Reply) else self._replies.aside(found)

    def ending(self, event: events.Result) -> tuple[list[str], list[str]]:
        """The rows of a result in two parts: the answer stands between them."""
        context = self._contexts.of(event)
        return self._released(event, context), self._rows(event, self.place, context)

    def resize(self, width: int) -> list[str]:
        """Adapt to another width. Returns the rows that no longer fit into the unfinished one."""
        self.place = replace(self.place, width=max(width, NARROWEST))
        found = self._replies.resize(self.place.width)
        if self._thought is not None:
            self._thought.width = self.place.width
            found += self._thought.add("")
        return found

    # ------------------------------------------------------------------------------------------------ beside events

    @property
    def tail(self) -> str:
        """What may still change: the unfinished rows of a reply or a thought, else what children do and tools say."""
        place, unfinished = self.place, self._replies.tail
        if unfinished is None and self._thought is not None:
            unfinished = self._thought.tail
        if unfinished:
            return unfinished
        working = child_rows(self._contexts.working, place.width, place.sign) if self._collapses else []
        said = (progress.last for (agent, _), progress in reversed(self._progress.items()) if not agent)
        latest = [place.one_row(f"  {row}") for row in next(filter(None, said), [])]
        return "\n".join([*(place.paint("dim", row) for row in working), *latest[: MOST_ROWS - len(working)]])

    @property
    def drawn_tail(self) -> str:
        """The same where it can be erased again."""
        return self.tail.lstrip("\n") if self.shows_answers and self.place.color else ""

    @property
    def holds_rows(self) -> bool:
        """Whether rows wait for the end of a block of a reply."""
        return self._replies.holds_rows

    def hint(self, event: events.Question) -> list[str]:
        """How to answer a question that is open."""
        place = self.place
        before = indent(depth_of(self._contexts.working, event.agent), place.width)
        found = in_rows(questions.hint(event).replace("·", place.sign("·")), place.width - len(before) - 2)
        return [f"{before}{place.paint('dim', place.one_row(f'  {row}'))}" for row in found]

    def preview(self, text: str) -> list[str]:
        """The rows of all that a call would do."""
        return painted_preview(text, self.place, whole=True)

    def answer(self, command: str, text: str, rows: Sequence[str] = ()) -> list[str]:
        """The rows of an answer to what was typed, which is repeated above it; ``rows`` come below it as they are."""
        place = self.place
        typed = [] if not command.strip() else place.spans([("bold", f"{place.sign('»')} {as_typed(command)}")])
        return self._replies.aside([*typed, *in_rows(text, place.room), *rows])

    def beside(self, comments: Iterable[Comment]) -> list[str]:
        """Rows of somebody who stands beside the user and comments on what happens."""
        place, found = self.place, list[str]()
        for is_table, group in itertools.groupby(comments, key=lambda comment: isinstance(comment, tuple)):
            if is_table:
                found += table([comment for comment in group if isinstance(comment, tuple)], place.width - 2)
            else:
                found += in_rows("\n".join(text for text in group if isinstance(text, str)), place.width - 2)
        return self._replies.aside([place.paint("yellow", f"{place.sign('│')} {row}") for row in found])

    # --------------------------------------------------------------------------------------------- the rows of events

    def _is_left_out(self, event: Event) -> bool:
        """Whether an event of a child is no row."""
        if not self._collapses:
            return isinstance(event, NEVER_OF_CHILDREN)
        # Whoever writes to a child wants to read what it says to that, though the rest of its replies is not shown.
        if isinstance(event, events.UserInterruption):
            self._owe_reply.add(event.agent)
        elif isinstance(event, events.Reply) and event.text.strip() and event.agent in self._owe_reply:
            self._owe_reply.remove(event.agent)
            return False
        return isinstance(event, WORK_OF_CHILDREN)

    def _released(self, event: Event, context: Context) -> list[str]:
        """What was held back, or is unfinished, and is settled by this event."""
        found: list[str] = []
        # A queued line or a note does not end a thought.
        if isinstance(event, _ENDS_THOUGHT) and self._thought is not None:
            ended, self._thought = self._thought.end(), None
            found = [] if isinstance(event, events.Retry) else self._dim(ended)
        return found + self._replies.release(event, self.place, context)

    def _rows(self, event: Event, place: RowPlace, context: Context) -> list[str]:
        is_own = not context.depth
        match event:
            case events.ThinkingDelta():
                if self._thought is None:
                    self._thought = Flow(place.width)
                return self._dim(self._thought.add(event.text))
            case events.TextDelta() if is_own:
                return self._replies.add(event.text, place)
            case events.Reply() if is_own:
                return self._replies.end(event, place)
            case events.Retry() if is_own:
                return [*self._replies.cut_off(place), *rows(event, place, context)]
            case events.ToolProgress():
                # What writes over its own row, as progress bars do, has said something each time.
                said = [row for row in rows_of(event.text.replace("\r", "\n")) if row.strip()]
                return _progress_rows(
                    self._progress.setdefault((context.agent, event.id), _Progress()).add(said), place
                )
            case events.ToolResult():
                progress = self._progress.pop((context.agent, event.id), None)
                left = [] if progress is None else _progress_rows(progress.end(place.sign("…")), place)
                return [*left, *rows(event, place, context)]
            case events.AgentEnded():
                self._progress = {key: value for key, value in self._progress.items() if key[0] != event.name}
            case events.Result(trace_path=str(path)) if path and not (self._collapses or context.is_repeated):
                # At a prompt /debug shows the trace.
                return [*rows(event, place, context), place.paint("dim", f"  trace: {flat(path)}")]
            case _:
                pass
        return rows(event, place, context)

    def _dim(self, rows: Sequence[str]) -> list[str]:
        return [self.place.paint("dim", row) for row in rows if row]


def _progress_rows(rows: Sequence[str], place: RowPlace) -> list[str]:
    return [place.paint("dim", place.one_row(f"  {place.who}{row}")) for row in rows]


class _HeldReplies:
    """Holds back a reply without tool calls, which is probably the run's answer, until an event shows that it was not.

    That is another iteration, lines that were delivered after it, a tool call, or a result with another text. Events
    that do not decide this (a receipt, token usage) leave it held back.
    """

    tail = None
    holds_rows = False

    def __init__(self) -> None:
        self._held: str | None = None

    def add(self, text: str, place: RowPlace) -> list[str]:
        return []

    def end(self, reply: events.Reply, place: RowPlace) -> list[str]:
        if reply.tool_calls == 0:
            self._held = reply.text
            return []
        return rows_of(reply.text)

    def cut_off(self, place: RowPlace) -> list[str]:
        return []

    def release(self, event: Event, place: RowPlace, context: Context) -> list[str]:
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
        return list(rows)

    def resize(self, width: int) -> list[str]:
        return []


class _StreamedReplies:
    """Shows replies as they come, as Markdown where there are colours; ``tail`` is the unfinished rows.

    No other row stands inside a paragraph, a list item, a table or a code block: it waits for the block's end.
    """

    def __init__(self) -> None:
        self._flow: MarkdownFlow | PlainFlow | None = None
        self._aside: list[str] = []
        """Rows that wait for the end of the block that is being written."""

    @property
    def tail(self) -> str | None:
        return None if self._flow is None else self._flow.tail

    @property
    def holds_rows(self) -> bool:
        return bool(self._aside)

    def add(self, text: str, place: RowPlace) -> list[str]:
        if self._flow is None:
            self._flow = _new_flow(place)
        rows = self._flow.add(text)
        if self._flow.whole is not None:
            rows[self._flow.whole : self._flow.whole] = self._take_aside()
        return rows

    def end(self, reply: events.Reply, place: RowPlace) -> list[str]:
        if self._flow is not None:
            return self._end_flow()
        flow = _new_flow(place)
        return [*flow.add(reply.text), *flow.end()]

    def cut_off(self, place: RowPlace) -> list[str]:
        was_begun, self._flow = self._flow is not None, None
        note = place.note("↻", "That reply was cut off; ignore it.", "yellow") if was_begun else []
        return [*self._take_aside(), *note]

    def release(self, event: Event, place: RowPlace, context: Context) -> list[str]:
        if not isinstance(event, events.Result | events.IterationStarted | events.AgentEnded):
            return []
        rows = self._end_flow()
        if not isinstance(event, events.Result) or event.status == "error" or context.is_repeated:
            return rows
        # Replies were shown as they came; only what a stop adds to one is left to show.
        return [*rows, *in_rows(beyond_replies(event), place.room)]

    def aside(self, rows: Sequence[str]) -> list[str]:
        if self._flow is None or not self._flow.is_open:
            return list(rows)
        self._aside += rows
        return []

    def resize(self, width: int) -> list[str]:
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


def _new_flow(place: RowPlace) -> MarkdownFlow | PlainFlow:
    return MarkdownFlow(place.width, ascii=place.ascii) if place.color else PlainFlow(place.width)


class _Progress:
    """The rows of one tool call."""

    def __init__(self) -> None:
        self._shown = 0
        self._later = 0
        self._last: deque[str] = deque(maxlen=LAST)

    @property
    def last(self) -> list[str]:
        return list(self._last)

    def add(self, rows: Sequence[str]) -> list[str]:
        room = max(FIRST - self._shown, 0)
        self._shown += len(rows[:room])
        self._later += len(rows[room:])
        self._last.extend(rows[room:][-LAST:])
        return list(rows[:room])

    def end(self, mark: str) -> list[str]:
        left_out = self._later - len(self._last)
        note = [f"{mark} {counted(left_out, 'more line')}"] if left_out else []
        return [*note, *self._last]
