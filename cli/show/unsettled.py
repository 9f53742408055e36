"""What is not settled yet, where rows can be updated: calls that run, lines that wait, a retry's countdown. Pure.

Each stands in the rows below, which are drawn again as it changes, and is one row of the scrollback once it is settled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import ceil

from chain import events
from chain.events import Event
from chain.text import phrases
from chain.text.phrases import duration
from chain.text.wording import MAIN, counted
from cli.show import call_rows, user_lines
from cli.show.event_context import Context
from cli.show.place import RowPlace
from cli.show.rows import rows, task_rows
from cli.show.text_rows import columns, flat

PLAN = "plan_"
"""The names of the tools that change the plan begin so."""
MOST_LINES = 4
"""Rows of the lines that wait; the others are counted."""
MOST_CALLS = 4
"""Rows of the calls that run; the others are counted."""
LEAST_TEXT = 16
"""Columns of a line's text: with fewer, when it is sent stands on a row of its own."""
SHORT_S = 2.0
"""How long a single retry may take without a row of its own: nobody has noticed it."""

_CLAUSE = re.compile(r": |; |, |\. | \(")

_GOES_ON = (
    events.ThinkingDelta,
    events.TextDelta,
    events.Reply,
    events.ToolCall,
    events.IterationStarted,
    events.UserInterruption,
)
"""What shows that a reply that was asked for again has come."""


@dataclass(slots=True)
class _RunningCall:
    """A call that runs."""

    event: events.ToolCall
    agent: str = ""
    """The agent that it waits for."""
    was_stopped: bool = False
    """Whether its agent was stopped, which has a row of its own."""
    is_said: bool = False
    """Whether other rows say what became of it, unless that is an error."""


@dataclass(slots=True)
class _RetrySeries:
    since: float
    last: events.Retry
    count: int = 1


class Unsettled:
    """Keeps what later events settle. Of children only what lies between them and the user is kept."""

    def __init__(self) -> None:
        self._calls: dict[str, _RunningCall] = {}
        self._lines: dict[str, events.LineQueued] = {}
        self._retries: dict[str, _RetrySeries] = {}
        self._held: tuple[events.Question, RowPlace] | None = None
        """A question that the next event may answer, without anybody having seen it."""
        self._questions: dict[str, events.Question] = {}
        self._notes: dict[str, str] = {}
        """What the row of a call says of the question whether it may run."""
        self._refused: dict[str, str] = {}
        """What calls would have done that the user refused."""
        self._tasks: tuple[events.TaskView, ...] = ()

    @property
    def is_timed(self) -> bool:
        """Whether the rows change as time passes."""
        return bool(self._calls or self._retries)

    def unheld(self, event: Event | None = None) -> tuple[events.Question, RowPlace] | None:
        """The question that was held back and has to be shown, before this event if there is one."""
        held, self._held = self._held, None
        if held is None or (isinstance(event, events.Answer) and event.id == held[0].id and event.by != "user"):
            return None
        return held

    def went_on(self, event: Event, place: RowPlace) -> list[str]:
        """The row of retries that this event ends."""
        if not isinstance(event, (*_GOES_ON, events.Result, events.Error)):
            return []
        done = self._retries.pop(event.agent, None)
        took = 0.0 if done is None else event.time - done.since
        if done is None or (done.count == 1 and took <= SHORT_S):
            return []
        ended = "went on" if isinstance(event, _GOES_ON) else "given up"
        if isinstance(event, events.Result) and phrases.was_stopped(event.status):
            ended = "stopped"
        often = "" if done.count == 1 else f" {done.count} times"
        return [place.line("↻", f"{_cause(done.last)}{often}, {ended} after {duration(took, whole=True)}", "dim")]

    def rows(self, event: Event, place: RowPlace, context: Context) -> list[str] | None:
        """The rows of an event that begins or settles something; ``None`` if it is an ordinary one."""
        is_own = not context.depth
        match event:
            case events.ToolCall() if is_own:
                self._calls[event.id] = _RunningCall(event)
                return []
            case events.ToolResult() if is_own:
                return self._result(event, place)
            case events.Question():
                self._held = event, place
                self._questions[event.id] = event
                return []
            case events.Answer():
                return self._answer(event, is_own=is_own)
            case events.AgentStarted():
                if (call := self._calls.get(event.parent_id)) is not None:
                    call.agent = event.name
                return None
            case events.AgentEnded():
                self._retries.pop(event.name, None)
                was_stopped = phrases.was_stopped(event.status)
                if (call := self._calls.get(event.parent_id)) is not None:
                    call.agent, call.was_stopped = "", call.was_stopped or was_stopped
                return _stopped(event, place) if was_stopped else None
            case events.LineQueued():
                self._lines[event.id] = event
                return []
            case events.UserInterruption():
                found = [line for id in event.ids if (line := self._lines.pop(id, None)) is not None]
                message = user_lines.folded(event.message, place.room)
                return place.spans(user_lines.landed_spans(replace(event, message=message), found, place.sign))
            case events.Receipt() if event.state != "queued":
                return None if self._lines.pop(event.id, None) is None else _settled_line(event, place)
            case events.Retry():
                before = self._retries.get(event.agent)
                if before is None:
                    self._retries[event.agent] = _RetrySeries(event.time, event)
                else:
                    before.last, before.count = event, before.count + 1
                return []
            case events.PlanChanged():
                return self._plan(event, place)
            case events.RunStarted() if is_own:
                self._lines.pop(event.id, None)
                return rows(replace(event, query=user_lines.folded(event.query, place.room)), place, context)
            case _:
                return None

    def _result(self, event: events.ToolResult, place: RowPlace) -> list[str]:
        call, note = self._calls.pop(event.id, None), self._notes.pop(event.id, "")
        if refused := self._refused.pop(event.id, ""):
            return [place.signed("✗", f"{refused} {place.sign('·')} {flat(note)}", "yellow")]
        if call is not None and (call.was_stopped if event.is_error else call.is_said):
            return []
        about = call_rows.subject(event.name, event.input if call is None else call.event.input)
        return call_rows.settled_call(event, about, [note] if note else [], place)

    def _answer(self, event: events.Answer, *, is_own: bool) -> list[str] | None:
        """Whether an approval was given is said in the row of its call, if that has one."""
        question = self._questions.pop(event.id, None)
        if question is None:
            return None
        call = question.tool_call_id
        if question.kind == "choice":
            if event.decision == "answered" and call in self._calls:
                self._calls[call].is_said = True
            return None
        is_users = event.by == "user"
        words = phrases.answered(event)
        if not is_own or call in self._calls:
            # What a call that runs asked for is said after whether it may run.
            note = self._notes.get(call, "")
            if is_own and event.decision == "allowed" and not is_users and words not in note:
                self._notes[call] = f"{note}, {words}" if note else words
            return None if is_users else []
        if event.decision not in ("allowed", "refused"):
            return None
        if event.decision == "allowed":
            self._notes[call] = f"{event.id} {words}" if is_users else words
        elif is_users:  # else its result says why it was refused, and what would allow it
            self._notes[call] = words
            self._refused[call] = call_rows.head(question.name, flat(question.subject))
        return []

    def _plan(self, event: events.PlanChanged, place: RowPlace) -> list[str] | None:
        """Of a plan of which one task has changed, that task: the others stand further up."""
        for call in self._calls.values():
            call.is_said = call.is_said or (call.event.name.startswith(PLAN) and event.by == call.event.agent)
        before, self._tasks = self._tasks, event.tasks
        changed = [task for task in event.tasks if task not in before]
        if len(changed) != 1 or len(event.tasks) < len(before):
            return None
        closed = sum(task.state != "PENDING" for task in event.tasks)
        by = "" if event.by in ("user", MAIN) else f" (by {place.name(event.by)})"
        task = task_rows(changed, place)[0].strip()
        return [place.one_row(f"Plan {closed}/{len(event.tasks)}{by}: {task}")]

    def running(self, place: RowPlace, now: float, most: int = MOST_CALLS) -> list[str]:
        """At most so many rows of the calls that run, but for those that an agent at work does."""
        calls, most = [call.event for call in self._calls.values() if not call.agent], min(most, MOST_CALLS)
        shown = calls if len(calls) <= most else calls[: most - 1]
        rows = [self._call(call, place, now) for call in shown]
        if left := len(calls) - len(shown):
            rows.append(place.paint("dim", place.cut(f"{place.sign('…')} and {counted(left, 'more call')}")))
        return rows

    def _call(self, call: events.ToolCall, place: RowPlace, now: float) -> str:
        took = max(now - call.time, 0.0)
        end = f" {place.sign('·')} {duration(took, whole=True)}" if took >= 1 else ""
        text = f"{place.sign('→')} {call_rows.head(call.name, call_rows.subject(call.name, call.input))}"
        return place.paint("cyan", place.cut(text, place.room - columns(end)) + end)

    def waiting(self, place: RowPlace, now: float, most: int) -> list[str]:
        """At most so many rows of a retry and of the lines that wait."""
        # Of a child that asks again its own row says so.
        mine = self._retries.get(MAIN)
        rows = [] if mine is None else [self._retry(mine.last, place, now)]
        lines = list(self._lines.values())
        # The latest: whoever has just sent a line looks for it.
        latest = lines if len(lines) <= MOST_LINES else lines[1 - MOST_LINES :]
        shown = [_waiting_line(line, place) for line in latest]
        while len(rows) + (len(shown) < len(lines)) + sum(map(len, shown)) > most:
            del shown[0]
        if left := len(lines) - len(shown):
            rows.append(place.paint("dim", place.cut(f"{place.sign('📤')} {counted(left, 'more line')}")))
        return [*rows, *(row for line in shown for row in line)]

    def _retry(self, event: events.Retry, place: RowPlace, now: float) -> str:
        left = ceil(event.time + event.delay_s - now)
        when = f", again in {duration(left, whole=True)}" if left > 0 else ", asking again"
        end = f"{when} (attempt {event.attempt}), Esc ends"
        beginning = place.cut(f"{place.sign('↻')} {_cause(event)}", max(place.room - columns(end), place.room // 3))
        return place.paint("yellow", place.cut(f"{beginning}{end}"))

    def rest(self, place: RowPlace) -> list[str]:
        """The rows of all that will not be settled here; nothing is kept of it."""
        rows = self.running(place, 0.0)
        for line in self._lines.values():
            begin, _, end = user_lines.waiting_row(line, place.sign)
            rows += place.spans([("dim", f"{begin}{user_lines.folded(line.text, place.room)}{end}")])
        self._calls.clear()
        self._lines.clear()
        self._retries.clear()
        return rows


def _stopped(event: events.AgentEnded, place: RowPlace) -> list[str]:
    word = "interrupted" if event.status == "interrupted" else "stopped"
    sign, name = place.sign("⏹"), place.name(event.name)
    text = f"{sign} {name}" if sign.startswith(word) else f"{sign} {name} {word}"
    return [place.paint("yellow", place.cut(text))]


def _waiting_line(event: events.LineQueued, place: RowPlace) -> list[str]:
    begin, text, end = user_lines.waiting_row(event, place.sign)
    end = end.replace(user_lines.NO_BREAK, " ")
    room = place.width - columns(begin) - columns(end)
    if columns(text) <= room or room >= LEAST_TEXT:
        return [place.paint("dim", f"{begin}{place.cut(text, room)}{end}")]
    rows = [f"{begin}{text}", f" {end}"]
    return [place.paint("dim", place.cut(row)) for row in rows]


def _settled_line(event: events.Receipt, place: RowPlace) -> list[str]:
    """The row of a line that never came to the model, whole: until now it stood in the rows below."""
    event = replace(event, text=user_lines.folded(event.text, place.room))
    if (settled := user_lines.settled_parts(event)) is None:
        return []
    sign, words, style = settled
    return place.spans([(style, f"{place.sign(sign)} {words}{event.text}")])


def _cause(event: events.Retry) -> str:
    return _CLAUSE.split(flat(event.reason), maxsplit=1)[0]
