"""Events as rows that are never updated: the progress of a headless run, or a session. Pure.

A row is unsettled while a later event can still change it. Rows of a child agent have its name, since several children
may work in parallel. They are indented further than those of its parent. ``updating_renderer`` updates rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from chain import events
from chain.events import Event
from chain.text.phrases import duration
from chain.text.wording import pluralize
from cli.show import question_rows, user_lines
from cli.show.child_agents import MOST_ROWS, child_rows, depth_of
from cli.show.event_context import Context, Contexts
from cli.show.place import RowPlace, rows_of
from cli.show.replies import HeldReplies, StreamedReplies
from cli.show.rows import limit_rows, rows
from cli.show.spacing import BESIDE, COMMAND, END, QUERY, START, THINKING, WORK, Part
from cli.show.table import table
from cli.show.text_rows import NARROWEST, Flow, columns, flat, hard_rows, wrap_text
from cli.show.tour import Comment
from cli.show.user_lines import fold

FIRST = 20
"""The number of rows of a tool's progress that are shown immediately."""
LAST = 5
"""The number of the latest rows of a tool's progress that ``tail`` shows, and that are printed when the call ends."""

WORK_OF_CHILDREN = (
    events.ThinkingDelta,
    events.IterationStarted,
    events.TextDelta,
    events.Reply,
    events.ToolCall,
    events.ToolProgress,
    events.ToolResult,
)
"""The types of a child's events that have no rows if the work of children is collapsed."""

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

_KINDS = {events.Init: START, events.RunStarted: QUERY, events.ThinkingDelta: THINKING, events.Result: END}
"""The kind of rows for each of these types of events. Rows of all other events are of the kind ``WORK``."""

LEAST_THOUGHT_S = 1.0
"""If only the durations of thoughts are shown, a thought that takes fewer seconds than this has no row."""


class Renderer:
    """Renders the events of a chain as rows. Pass the events in order, since rows may need data of earlier events.

    With ``streams``, replies are shown as they come, so that the caller need not print the answer. With ``collapses``,
    the work of children appears only in ``tail``, the unsettled rows; rows show the children's starts, their ends and
    their exchanges with the user.
    """

    _delays_progress = False

    def __init__(
        self, *, color: bool, ascii: bool, width: int = 80, streams: bool = False, collapses: bool = False
    ) -> None:
        self.shows_answers = streams
        """Whether the answers are among the rows, so that the caller does not print them."""
        self.shows_thinking = True
        """Whether thoughts are shown in full, or only their durations. A change applies from the next thought on."""
        self._collapses = collapses
        self.place = RowPlace(max(width, NARROWEST), color, ascii, wraps=streams)
        self._contexts = Contexts()
        self._replies = StreamedReplies() if streams else HeldReplies()
        self._thought: Flow | None = None
        self._thinks_since: float | None = None
        """The start of the current thought, if only its duration is shown; ``None`` otherwise."""
        self._progress: dict[tuple[str, str], Progress] = {}
        self._awaiting_reply = set[str]()
        """The children that were sent a line and have not replied yet."""

    def rows(self, event: Event, context: Context | None = None) -> list[str]:
        """Return the rows of an event, often none, after the delayed rows that the event releases.

        A row has no newline. ``context`` is by default that of the main agent's view.
        """
        context = self._contexts.record(event) if context is None else context
        if isinstance(event, events.UserInterruption) and context.jobs:
            event = replace(event, message=user_lines.strip_texts(event.message, context.jobs))
        return self._spaced(self._parts(event, context))

    def split_result(self, event: events.Result) -> tuple[list[str], list[str]]:
        """Return the rows of a result in two lists: those to print before the answer, and those to print after it."""
        context = self._contexts.record(event)
        return self._spaced(self._settle_pending(event)), self._rows(event, self.place, context)

    def resize(self, width: int) -> None:
        """Set the width of the next row and all later rows."""
        self.place = replace(self.place, width=max(width, NARROWEST))
        self._replies.resize(self.place.width)
        if self._thought is not None:
            self._thought.width = self.place.width

    def unsettled_rows(self) -> list[str]:
        """Return the rows that are still unsettled after the last event of the session, without blank ones."""
        return [row for row in self.tail.split("\n") if row.strip()]

    @property
    def tail(self) -> str:
        """The unsettled rows as of the last event: the end of a reply or a thought, else the running work."""
        return self._unfinished or "\n".join(self._working(MOST_ROWS))

    def tail_at(self, now: float) -> str:
        """Return the unsettled rows at the time ``now``. In this class they do not depend on the time."""
        return self.tail

    @property
    def drawn_tail(self) -> str:
        """The unsettled rows if they can be erased again; else empty."""
        return self.tail.lstrip("\n") if self.shows_answers and self.place.color else ""

    @property
    def _unfinished(self) -> str | None:
        if self._replies.tail is None and self._thought is not None:
            return "\n".join(hard_rows(self._thought.tail, self.place.width))
        return self._replies.tail

    def _working(self, most: int, running: Sequence[str] = ()) -> list[str]:
        """Return at most ``most`` rows: working children, the ``running`` calls, and the latest progress of a tool."""
        place, working = self.place, self._contexts.working if self._collapses else {}
        children = child_rows(working, place.width, place.sign, most - len(running))
        said = (progress.last for (agent, _), progress in reversed(self._progress.items()) if not agent)
        rows = [*(place.paint("dim", row) for row in children), *running]
        return [*rows, *(place.one_row(f"  {row}") for row in next(filter(None, said), []))][:most]

    @property
    def holds_rows(self) -> bool:
        """Whether rows of other events wait for the end of a block of a reply."""
        return self._replies.holds_rows

    def hint(self, event: events.Question, *, by_key: bool = True) -> list[str]:
        """Return rows with the possible answers to an open question. ``by_key``: a single key answers."""
        place = self.place.nest(depth_of(self._contexts.working, event.agent), "")
        rows: list[str] = []
        for way in question_rows.hint(event, by_key=by_key).split(" · "):
            beside = f"{rows[-1]} {place.sign('·')} {way}" if rows else way
            rows[-1:] = [beside] if columns(beside) <= place.room - 2 else [*rows[-1:], *wrap_text(way, place.room - 2)]
        return [f"{place.indent}{place.paint('dim', place.one_row(f'  {row}'))}" for row in rows]

    def answer(self, command: str, text: str, rows: Sequence[str] = ()) -> list[str]:
        """Return the rows of a typed ``command`` (none if it is empty) and of its answer ``text``, then ``rows``."""
        place, shown = self.place, fold(command, self.place.room)
        typed = [] if not shown else place.spans([("bold", f"{place.sign('»')} {shown}")])
        found = [*typed, *wrap_text(text, place.room), *rows]
        return self._spaced(self._replies.queue([(COMMAND if typed else START, found)]))

    def comment_rows(self, comments: Iterable[Comment]) -> list[str]:
        """Return the rows of the tour's comments."""
        place, found = self.place, list[str]()
        for comment in comments:
            room = place.width - 2
            found += wrap_text(comment, room) if isinstance(comment, str) else table(comment, room)
        said = [place.paint("yellow", f"{place.sign('│')} {row}") for row in found]
        return self._spaced(self._replies.queue([(BESIDE, said)]))

    def _is_omitted(self, event: Event) -> bool:
        if not self._collapses:
            return isinstance(event, events.ThinkingDelta)  # the thoughts of several agents would be mixed
        # Show the child's reply to the user's line, although its other replies are not shown.
        if isinstance(event, events.UserInterruption):
            self._awaiting_reply.add(event.agent)
        elif isinstance(event, events.Reply) and event.text.strip() and event.agent in self._awaiting_reply:
            self._awaiting_reply.remove(event.agent)
            return False
        return isinstance(event, WORK_OF_CHILDREN)

    def _spaced(self, parts: Iterable[Part]) -> list[str]:
        return [row for _, rows in parts for row in rows]

    def _parts(self, event: Event, context: Context) -> list[Part]:
        if context.depth:
            place = self.place.nest(context.depth, context.agent)
            return [] if self._is_omitted(event) else self._work(self._rows(event, place, context), place)
        released = self._settle_pending(event)
        match event:
            case events.TextDelta():
                return [*released, *self._replies.add(event.text, self.place)]
            case events.Reply():
                return [*released, *self._replies.end(event, self.place)]
            case events.Retry():
                discarded = self._replies.discard(self.place)
                return [*released, *discarded, (WORK, self._rows(event, self.place, context))]
            case _:
                kind = _KINDS.get(type(event), WORK)
                return self._replies.queue([*released, (kind, self._rows(event, self.place, context))])

    def _work(self, rows: Sequence[str], place: RowPlace) -> list[Part]:
        return self._replies.queue([(WORK, [f"{place.indent}{row}" if row else row for row in rows])])

    def _settle_pending(self, event: Event) -> list[Part]:
        """End the thought and the replies that this event ends, and return their remaining rows."""
        found: list[Part] = []
        # A queued line or a note does not end a thought.
        if isinstance(event, _ENDS_THOUGHT):
            since, self._thinks_since = self._thinks_since, None
            ended = [] if self._thought is None else self._dim(self._thought.end())
            self._thought = None
            if since is not None and event.time - since >= LEAST_THOUGHT_S:
                ended = self._dim([f"thought {duration(event.time - since, whole=True)}"])
            found = [] if isinstance(event, events.Retry) else [(THINKING, ended)]
        return found + self._replies.release(event, self.place)

    def _rows(self, event: Event, place: RowPlace, context: Context) -> list[str]:
        match event:
            case events.ThinkingDelta() if not self.shows_thinking and self._thought is None:
                self._thinks_since = self._thinks_since or event.time
                return []
            case events.ThinkingDelta():
                self._thought, self._thinks_since = self._thought or Flow(place.width), None
                return self._dim(self._thought.add(event.text))
            case events.ToolProgress():
                # A program that overwrites its own row, such as a progress bar, sends a new message each time.
                said = [row for row in rows_of(event.text.replace("\r", "\n")) if row.strip()]
                progress = self._progress.setdefault(
                    (context.agent, event.id), Progress(delays_last=self._delays_progress)
                )
                return progress_rows(progress.add(said), place)
            case events.ToolResult():
                return [*progress_rows(self._end_progress(event, context, place), place), *rows(event, place, context)]
            case events.AgentEnded():
                self._progress = {key: value for key, value in self._progress.items() if key[0] != event.name}
            case events.Result(status="max_iterations") if self._collapses:
                return limit_rows(event, place, context)
            case events.Result(trace_path=str(path)) if path and not self._collapses:
                # At a prompt /debug shows the trace.
                return [*rows(event, place, context), place.paint("dim", f"  trace: {flat(path)}")]
            case _:
                pass
        return rows(event, place, context)

    def _end_progress(self, event: events.ToolResult, context: Context, place: RowPlace) -> list[str]:
        progress = self._progress.pop((context.agent, event.id), None)
        return [] if progress is None else progress.end(place.sign("…"))

    def _dim(self, rows: Sequence[str]) -> list[str]:
        return [self.place.paint("dim", row) for row in rows if row]


def progress_rows(said: Sequence[str], place: RowPlace) -> list[str]:
    """Return rows that show a tool's progress messages ``said``."""
    return [place.paint("dim", place.one_row(f"  {place.who}{row}")) for row in said]


class Progress:
    """The progress messages of one tool call. With ``delays_last`` the last row waits until another row follows."""

    def __init__(self, *, delays_last: bool) -> None:
        self._delays_last = delays_last
        self._count = 0
        self._held: list[str] = []
        self._last: deque[str] = deque(maxlen=LAST)

    @property
    def last(self) -> list[str]:
        """The latest rows that are not shown yet."""
        return [*self._held, *self._last]

    def add(self, said: Sequence[str]) -> list[str]:
        """Add messages, and return the rows to show now."""
        if not said:
            return []
        room = max(FIRST - self._count, 0)
        self._count += len(said)
        self._last.extend(said[room:])
        shown = [*self._held, *said[:room]]
        self._held = [shown.pop()] if self._delays_last and not self._last else []
        return shown

    def end(self, mark: str) -> list[str]:
        """Return the rows to show at the end of the call. ``mark`` begins the row that counts omitted rows."""
        left_out = max(self._count - FIRST, 0) - len(self._last)
        note = [f"{mark} {pluralize(left_out, 'more line')}"] if left_out else []
        return [*self._held, *note, *self._last]
