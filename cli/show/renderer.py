"""Events as rows of text for people: the progress of a headless run, and what scrolls above a prompt. Pure.

The rows of a child stand further in than those of its parent, below the call that started it, and name it, since
several may work at the same time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from chain import events
from chain.events import Event
from cli.show import questions
from cli.show.children import MOST_ROWS, indent
from cli.show.context import Context, Contexts
from cli.show.place import Place, rows_of
from cli.show.progress import Progress
from cli.show.replies import HeldReplies, StreamedReplies
from cli.show.rows import preview, rows
from cli.show.table import table
from cli.show.text import Flow, flat, in_rows
from cli.show.tour import Comment
from cli.show.user_lines import as_typed

NARROWEST = 20

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
        self.place = Place(max(width, NARROWEST), color, ascii, wraps=streams)
        self._contexts = Contexts()
        self._replies = StreamedReplies() if streams else HeldReplies()
        self._thought: Flow | None = None
        self._progress: dict[tuple[str, str], Progress] = {}
        self._owe_reply = set[str]()
        """The children that have read a line and not replied yet."""

    def lines(self, event: Event) -> list[str]:
        """The rows to show for this event, and those that have waited for it, without newlines; often none."""
        return self.lines_of(event, self._contexts.of(event))

    def lines_of(self, event: Event, context: Context) -> list[str]:
        """The same for an event whose context is known otherwise."""
        if context.depth:
            place = self.place.below(context.depth, context.agent)
            found = [] if self._is_left_out(event) else self._rows(event, place, context)
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
        working = self._contexts.children.rows(place.width, place.sign) if self._collapses else []
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
        before = indent(self._contexts.children.depth(event.agent), place.width)
        found = in_rows(questions.hint(event).replace("·", place.sign("·")), place.width - len(before) - 2)
        return [f"{before}{place.paint('dim', place.one_row(f'  {row}'))}" for row in found]

    def preview(self, text: str) -> list[str]:
        """The rows of all that a call would do."""
        return preview(text, self.place, whole=True)

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

    def _rows(self, event: Event, place: Place, context: Context) -> list[str]:
        key, is_own = (context.agent, getattr(event, "id", "")), not context.depth
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
                return _said(self._progress.setdefault(key, Progress()).add(said), place)
            case events.ToolResult():
                progress = self._progress.pop(key, None)
                left = [] if progress is None else _said(progress.end(place.sign("…")), place)
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


def _said(rows: Sequence[str], place: Place) -> list[str]:
    return [place.paint("dim", place.one_row(f"  {place.who}{row}")) for row in rows]
