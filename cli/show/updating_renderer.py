"""Events as rows above a prompt. Pure.

Running calls, waiting lines and pending retries are in the tail, which is redrawn. They get rows when they are settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from chain import events
from chain.events import Event
from chain.text import phrases
from chain.text.wording import MAIN
from cli.show import call_rows, tail_rows, user_lines
from cli.show.child_agents import MOST_ROWS
from cli.show.event_context import Context
from cli.show.place import RowPlace
from cli.show.renderer import Renderer, progress_rows
from cli.show.rows import rows
from cli.show.spacing import ANSWER, COMMAND, THINKING, WORK, Part, Spacing
from cli.show.text_rows import flat

LEAST_ROWS = 3
"""The rows of the tail that are reserved for running work, however many lines wait."""
SHORT_S = 2.0
"""A single retry that takes fewer seconds has no row, since a user hardly notices such a retry."""
PLAN = "plan_"
"""The prefix of the tools that change the plan."""

_CONTINUES = (
    events.ThinkingDelta,
    events.TextDelta,
    events.Reply,
    events.ToolCall,
    events.IterationStarted,
    events.UserInterruption,
)
"""The types of events that show that the model answers the repeated request."""


@dataclass(slots=True)
class _RunningCall:
    """A tool call that is running."""

    event: events.ToolCall
    agent: str = ""
    """The running agent that the call started; empty if there is none."""
    was_stopped: bool = False
    """Whether the agent that the call started was stopped, which the row of the stop shows."""
    is_shown: bool = False
    """Whether other rows show the outcome of the call, so that only an error needs a row."""


@dataclass(slots=True)
class _RetrySeries:
    since: float
    last: events.Retry
    count: int = 1


class UpdatingRenderer(Renderer):
    """A renderer for a prompt: unsettled rows are in ``tail``, and blank rows separate the parts.

    A call, a line and a thought become one row each when they are settled.
    """

    _delays_progress = True

    def __init__(self, *, color: bool, ascii: bool, width: int = 80, spacing: Spacing | None = None) -> None:
        """Create a renderer. Pass the ``spacing`` of the previous renderer if the terminal already shows its rows."""
        super().__init__(color=color, ascii=ascii, width=width, streams=True, collapses=True)
        self.shows_thinking = False
        self._spacing = Spacing() if spacing is None else spacing
        self._now = 0.0
        """The time of the last event."""
        self._asked: tuple[events.Question, bool] | None = None
        """The open question, and whether a single key answers it."""
        self._calls: dict[str, _RunningCall] = {}
        """The running calls of the main agent, by id."""
        self._lines: dict[str, events.LineQueued] = {}
        """The waiting lines, by id."""
        self._retries: dict[str, _RetrySeries] = {}
        self._held: tuple[events.Question, RowPlace] | None = None
        """The question of the last event, which is delayed, since the next event may answer it; else ``None``."""
        self._questions: dict[str, events.Question] = {}
        self._notes: dict[str, str] = {}
        """The outcomes of approvals by the ids of their calls, to be shown in the rows of these calls."""
        self._refused: dict[str, str] = {}
        """The names and main arguments of calls that the user denied, by the ids of the calls."""
        self._tasks: tuple[events.TaskView, ...] = ()

    def rows(self, event: Event, context: Context | None = None) -> list[str]:
        """Return the rows of an event, after delayed rows that the event releases."""
        self._now = event.time
        shown = super().rows(event, context)
        if isinstance(event, events.Reply):
            # A reply with calls explains them, so no blank row separates them.
            self._spacing.join(ANSWER, WORK) if event.tool_calls else self._spacing.set_apart(ANSWER)
        return shown

    def unsettled_rows(self) -> list[str]:
        """Return and remove the rows that are still unsettled after the last event of the session."""
        unfinished = [row for row in (self._unfinished or "").split("\n") if row]
        work = self._running(0.0, MOST_ROWS)
        work += [row for line in self._lines.values() for row in tail_rows.unsent_line(line, self.place)]
        self._calls.clear()
        self._lines.clear()
        self._retries.clear()
        return self._spaced([*self._release_question(), (ANSWER, unfinished), (WORK, work)])

    @property
    def tail(self) -> str:
        """The unsettled rows as of the last event."""
        return self.tail_at(self._now)

    def tail_at(self, now: float) -> str:
        """Return the unsettled rows: the end of a reply or a thought, the running work, and the waiting lines."""
        unfinished = self._unfinished
        # The row of a child shows its retries.
        mine = self._retries.get(MAIN)
        waiting = [] if mine is None else [tail_rows.countdown(mine.last, self.place, now)]
        most = MOST_ROWS - LEAST_ROWS - len(waiting)
        waiting += tail_rows.waiting_lines(list(self._lines.values()), self.place, most)
        most = MOST_ROWS - len(waiting)
        running = self._running(now, max(most - len(self._contexts.working), most // 2))
        hint = [] if self._asked is None else super().hint(self._asked[0], by_key=self._asked[1])
        return self._spacing.preview(
            [
                (ANSWER if self._thought is None else THINKING, unfinished.split("\n") if unfinished else []),
                (WORK, [*hint, *self._working(most, running), *waiting]),
            ]
        )

    def hint(self, event: events.Question, *, by_key: bool = True) -> list[str]:
        """Show the possible answers to an open question in the tail. Return the question's rows."""
        self._asked = event, by_key
        return self._spaced(self._release_question())

    def answer(self, command: str, text: str, rows: Sequence[str] = ()) -> list[str]:
        """Return the rows of a typed ``command`` (none if it is empty) and of its answer ``text``, then ``rows``."""
        found = super().answer(command, text, rows)
        self._spacing.set_apart(COMMAND)
        return found

    def _spaced(self, parts: Iterable[Part]) -> list[str]:
        return self._spacing.rows(parts)

    def _running(self, now: float, most: int) -> list[str]:
        """Return at most ``most`` rows of running calls, without calls that started an agent: the agents have rows."""
        return tail_rows.running_calls(
            [call.event for call in self._calls.values() if not call.agent], self.place, now, most
        )

    def _release_question(self, event: Event | None = None) -> list[Part]:
        """Return the rows of the delayed question; none if the event answers the question without asking the user."""
        held, self._held = self._held, None
        if held is None or (isinstance(event, events.Answer) and event.id == held[0].id and event.by != "user"):
            return []
        question, place = held
        return self._work(rows(question, place, Context()), place)

    def _ended_retries(self, event: Event, place: RowPlace) -> list[str]:
        """Return the row of the series of retries that this event ends, if any. A single short retry has no row."""
        if not isinstance(event, (*_CONTINUES, events.Result, events.Error)):
            return []
        done = self._retries.pop(event.agent, None)
        took = 0.0 if done is None else event.time - done.since
        if done is None or (done.count == 1 and took <= SHORT_S):
            return []
        ended = "continued" if isinstance(event, _CONTINUES) else "given up"
        if isinstance(event, events.Result) and phrases.was_stopped(event.status):
            ended = "stopped"
        return [tail_rows.ended_retries(done.last, done.count, ended, took, place)]

    def _parts(self, event: Event, context: Context) -> list[Part]:
        if isinstance(event, events.Answer) and self._asked is not None and event.id == self._asked[0].id:
            self._asked = None
        place = self.place.nest(context.depth, context.agent)
        question = self._release_question(event)
        retries = self._work(self._ended_retries(event, place), place)
        return [*question, *retries, *super()._parts(event, context)]

    def _rows(self, event: Event, place: RowPlace, context: Context) -> list[str]:
        is_own = not context.depth
        match event:
            case events.IterationStarted():
                return []
            case events.ToolCall() if is_own:
                self._calls[event.id] = _RunningCall(event)
                return []
            case events.ToolResult() if is_own:
                return self._result(event, place, context)
            case events.Question():
                self._held = event, place
                self._questions[event.id] = event
                return []
            case events.Answer() if self._is_shown_elsewhere(event, is_own=is_own):
                return []
            case events.AgentStarted():
                if (call := self._calls.get(event.parent_id)) is not None:
                    call.agent = event.name
            case events.AgentEnded():
                self._retries.pop(event.name, None)
                if (call := self._calls.get(event.parent_id)) is not None:
                    call.agent, call.was_stopped = "", call.was_stopped or phrases.was_stopped(event.status)
            case events.LineQueued() if event.kind != "job":
                self._lines[event.id] = event
                return []
            case events.UserInterruption() if event.message:
                lines = [line for id in event.ids if (line := self._lines.pop(id, None)) is not None]
                return tail_rows.delivered_lines(event, lines, place)
            case events.Receipt() if event.state != "queued" and self._lines.pop(event.id, None) is not None:
                return tail_rows.settled_line(event, place)
            case events.Retry():
                before = self._retries.get(event.agent)
                if before is None:
                    self._retries[event.agent] = _RetrySeries(event.time, event)
                else:
                    before.last, before.count = event, before.count + 1
                return []
            case events.PlanChanged():
                for call in self._calls.values():
                    call.is_shown = call.is_shown or (call.event.name.startswith(PLAN) and event.by == call.event.agent)
                tasks, self._tasks = self._tasks, event.tasks
                changed = [task for task in event.tasks if task not in tasks]
                if len(changed) == 1 and len(event.tasks) >= len(tasks):
                    return [tail_rows.changed_task(event, changed[0], place)]
            case events.RunStarted() if is_own:
                self._lines.pop(event.id, None)
                event = replace(event, query=user_lines.fold(event.query, place.room))
            case _:
                pass
        return super()._rows(event, place, context)

    def _result(self, event: events.ToolResult, place: RowPlace, context: Context) -> list[str]:
        call, note = self._calls.pop(event.id, None), self._notes.pop(event.id, "")
        said = self._end_progress(event, context, place)
        if refused := self._refused.pop(event.id, ""):
            settled = [place.signed("✗", f"{refused} {place.sign('·')} {flat(note)}", "yellow")]
        elif call is not None and (call.was_stopped if event.is_error else call.is_shown):
            settled = []
        else:
            about = call_rows.main_argument(event.name, event.input if call is None else call.event.input)
            settled = call_rows.settled_call(event, about, [note] if note else [], place)
        # Omit what the row below says.
        is_twice = bool(said) and any(flat(said[-1]) in row for row in settled)
        return [*progress_rows(said[:-1] if is_twice else said, place), *settled]

    def _is_shown_elsewhere(self, event: events.Answer, *, is_own: bool) -> bool:
        """Record an answer for the row of its call. Return whether the answer has no row. ``is_own``: MAIN asked."""
        question = self._questions.pop(event.id, None)
        if question is None:
            return False
        call, is_users, words = question.tool_call_id, event.by == "user", phrases.describe_answer(event)
        if question.kind == "choice":
            if event.decision == "answered" and call in self._calls:
                self._calls[call].is_shown = True
            return False
        if not is_own or call in self._calls:
            # A question of a running call comes after the approval of the call.
            note = self._notes.get(call, "")
            if is_own and event.decision == "allowed" and not is_users and words not in note:
                self._notes[call] = f"{note}, {words}" if note else words
            return not is_users
        if event.decision == "allowed":
            self._notes[call] = f"{event.id} {words}" if is_users else words
        elif event.decision == "refused" and is_users:  # else its result has the reason, and how to allow the call
            self._notes[call] = words
            self._refused[call] = call_rows.label(question.name, flat(question.subject))
        return event.decision in ("allowed", "refused")
