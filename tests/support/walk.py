"""The journal of a session, the requests and what was told, read in order by the rules of SPEC sections 2 to 5."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from double import check_messages

from chain import events
from chain.lines.parse import parse_line
from chain.messages import Overrides, to_json
from chain.model import Request

from .sessions import INTERRUPTED, SKIPPED, Mark, Session
from .users import MARKED

_CARRIED_OUT = re.compile(r"\((Not d|D)one: ")


def in_order(session: Session, records: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any] | Mark]:
    """The records and the marks between them, as they came about. Each record gets its ``end`` in the file."""
    marks = iter(session.marks)
    mark = next(marks, None)
    end = 0
    for record, row in zip(records, session.file.data.splitlines(keepends=True), strict=True):
        while mark is not None and mark.written <= end:
            yield mark
            mark = next(marks, None)
        end += len(row)
        yield {**record, "end": end}
    while mark is not None:
        yield mark
        mark = next(marks, None)


_OF_A_STEP = ("line", "receipt", "plan")
"""Records that come in the step in which lines are delivered, before their message."""


class Walk:
    """The journal and the marks, read in order by the rules of SPEC sections 2 to 5.

    It knows at each moment what waits, what the conversation is, and whether anything may still start.
    """

    def __init__(self, session: Session) -> None:
        self.history: list[dict[str, Any]] = []
        self._interactive = session.interactive
        self._read_only = {t.name for t in session.chain.tools if t.read_only and not t.needs_approval}
        self._same: list[object] = []
        self._last_message = 0
        self._lines: dict[str, dict[str, Any]] = {}
        self._waiting: list[str] = []
        self._entered: dict[str, str] = {}
        """Where each line came in."""
        self._ids: list[list[str]] = []
        """The lines of each message of the history."""
        self._unsent: list[str] = []
        self._withdrawn: set[str] = set()
        self._ended: str | None = None
        """``stop`` or ``interrupt`` since the run was told to end."""
        self._went_on = False
        """Whether more than the lines of that very step came after it."""
        self._giving_back: int | None = None
        """Where the run began to settle its lines: what comes after it begins another."""
        self._calls: list[dict[str, Any]] = []
        self._started: list[str] = []
        self._begun: list[str] = []
        self._late: list[tuple[str, frozenset[str]]] = []
        self._finished: set[str] = set()
        self._held_since: int | None = None
        """How many tools had begun when the first urgent line, or the order to end, came."""
        self._was_held = False
        """Whether that came since the reply."""
        self._was_cut = self._is_refusing = False
        self._has_now = False
        """Whether a now line came since the reply, which cuts its tools; it may have been dropped in the same step."""
        self._may_have_tail = False
        self._plan_changed = self._plan_is_news = False

    def take(self, item: dict[str, Any] | Mark) -> None:
        if isinstance(item, Mark):
            match item.what:
                case None if self._giving_back is None:
                    self._ended = "interrupt"
                    self._hold()
                case Request():
                    self._request(item.what, item.synced)
                case events.LineQueued(id=id):
                    assert self._lines[id]["end"] <= item.synced, f"I6: {id} was acknowledged before it was on the disk"
                case events.IterationStarted():
                    assert self._ended is None, f"an iteration begins after {self._ended}"
                case events.ToolCall(id=id):
                    self._begin(id)
                case events.ToolProgress(id=id):
                    assert id in self._started
                    assert id not in self._finished
                case _:
                    pass
            return
        if item["type"] not in _OF_A_STEP and not item.get("line_ids"):
            self._went_on = self._ended is not None
        if item["type"] in ("message", "tool_started"):
            self._giving_back = None
        match item["type"]:
            case "line":
                self._line(item)
            case "receipt":
                self._receipt(item)
            case "message":
                self._message(item)
            case "withdrawn":
                self._withdraw(item)
            case "tool_started":
                self._start(item["id"])
            case "tool_finished":
                assert item["id"] in self._started
                assert item["id"] not in self._finished
                self._finished.add(item["id"])
            case "plan":
                # The model's own changes are told by the tools; a change from elsewhere is news until it was sent.
                self._plan_changed = self._plan_is_news = item["by"] != "main"
            case "result":
                self._result(item)
            case _:
                pass

    # ---- lines

    def _line(self, record: dict[str, Any]) -> None:
        assert record["id"] not in self._lines
        self._lines[record["id"]] = record
        self._waiting.append(record["id"])
        if self._giving_back is not None:
            return
        if record["kind"] == "stop":
            self._ended = self._ended or "stop"
        self._has_now = self._has_now or record["urgency"] == "now"
        if record["kind"] == "stop" or self._is_urgent(record):
            self._hold()

    @staticmethod
    def _is_urgent(record: dict[str, Any]) -> bool:
        return bool(record["urgency"] != "next")

    def _is_follow_up(self, id: str) -> bool:
        return bool(self._lines[id]["kind"] == "follow-up")

    def _receipt(self, record: dict[str, Any]) -> None:
        id, state = record["id"], record["state"]
        if state == "delivered":
            assert self._entered[id] == record["point"], f"I1: {id} is not in the conversation"
            return
        if id in self._waiting:
            self._waiting.remove(id)
        else:
            assert state == "returned", f"I1: {id} does not wait"
            self._withdrawn.remove(id)
        was_heard = state == "handled" and self._lines[id]["kind"] == "guidance"
        if (state == "returned" or was_heard) and self._giving_back is None:
            self._giving_back = record["end"]
        if self._held_since is not None and not self._must_hold():
            self._held_since = None  # what was urgent is gone
        if state == "handled":
            assert self._lines[id]["kind"] in ("stop", "todo", "guidance", "question")

    # ---- the conversation

    def _message(self, record: dict[str, Any]) -> None:
        message, point, ids = record["message"], record["point"], record["line_ids"]
        before = self.history[-1] if self.history else None
        kinds = {b["type"] for b in before["content"]} if before else set()
        texts = [b["text"] for b in message["content"] if b["type"] == "text"]
        if ids:
            assert message["role"] == "user"
            # A line that a listener sends on hearing that the handler prompt is broken comes just too late.
            waiting = [i for i in self._waiting if not self._is_follow_up(i)]
            late = [i for i in waiting if i not in ids and self._lines[i]["end"] > self._last_message]
            waiting = waiting[: len(waiting) - len(late)]
            match point:
                case "start":
                    same = [i for i in self._waiting if self._is_follow_up(i) == self._is_follow_up(ids[0])]
                    assert ids == same[:1], "I9: a query that is not the oldest"
                case "A":
                    assert ids == waiting
                case "B":
                    assert before is not None
                    assert before["role"] == "assistant"
                    assert "tool_use" not in kinds
                    assert ids == waiting
                case "C" | "D":
                    assert kinds == {"tool_result"}
                    assert ids == waiting, "I9: not all that waits, or in another order"
                    stubs = [b for b in before["content"] if b["content"] == SKIPPED] if before else []
                    assert (point == "C") == bool(stubs)
                case "N":
                    assert ids == waiting, "I9: not all that waits, or in another order"
                    assert "tool_use" not in kinds
                case _:
                    raise AssertionError(f"I3: lines came in at {point}")
            assert point == "start" or not self._went_on, "I3: lines came in after the run was told to end"
            for id in ids:
                self._waiting.remove(id)
                self._entered[id] = point
                line = self._lines[id]["text"]
                assert any(line.strip() in t or parse_line(line, local=False).message in t for t in texts)
            self._unsent += ids
            self._may_have_tail = self._may_have_tail or point != "start"
            self._held_since = 0 if self._must_hold() else None
        else:
            assert point is None
        if point == "C":
            self._was_cut = False  # by a line that its key or a rule made urgent, which the journal does not show
        said = {m for id in ids for m in MARKED.findall(self._lines[id]["text"])}
        found = {m for t in texts for m in MARKED.findall(t)}
        if any(self._lines[id]["kind"] == "todo" for id in ids):
            # What was done with a task of the plan is told with the task's text.
            tasks = (r["text"] for r in self._lines.values() if r["kind"] == "todo")
            found -= {m for text in tasks for m in MARKED.findall(text)} - said
        assert found == said, "I3: a line's text is elsewhere"
        if message["role"] == "assistant":
            self._has_now = False
            self._calls = [b for b in message["content"] if b["type"] == "tool_use"]
            self._started, self._begun, self._late, self._finished = [], [], [], set()
            self._held_since = 0 if self._must_hold() else None
            self._was_held = self._held_since is not None
            self._may_have_tail, self._plan_is_news = False, self._plan_changed
        self._check_results(message)
        self._last_message = record["end"]
        self.history.append(message)
        self._ids.append(ids)

    def _check_results(self, message: dict[str, Any]) -> None:
        """A call that never started says so, and none that did."""
        if any(b["type"] == "tool_result" for b in message["content"]):
            self._check_late()
        for block in message["content"]:
            if block["type"] == "tool_result":
                id, text = block["tool_use_id"], block["content"]
                assert (id in self._started) <= (text != SKIPPED), "what has started says that it was skipped"
                assert (id in self._started) >= (text == INTERRUPTED)
                assert id in self._started or block["is_error"]
                assert (id in self._started) == (id in self._finished)
                self._was_cut |= text == INTERRUPTED and not self._has_now
                self._was_cut |= text == SKIPPED and not self._was_held

    def _withdraw(self, record: dict[str, Any]) -> None:
        keep = len(self.history) - record["messages"]
        assert keep >= 0
        gone = self.history[keep:]
        if record["reason"] == "new":
            assert keep == 0
        else:
            self._is_refusing = True
            assert not any(_is_answer(m) for m in gone)
            assert not keep or _is_answer(self.history[keep - 1])
            # What code has carried out stays delivered: sent again, it would be done twice.
            self._withdrawn = {
                id
                for message, ids in zip(gone, self._ids[keep:], strict=True)
                for id in ids
                if self._lines[id]["kind"] != "todo" or not _CARRIED_OUT.search(str(message["content"]))
            }
        del self.history[keep:], self._ids[keep:], self._same[keep:]
        self._plan_is_news = True

    # ---- what starts

    def _must_hold(self) -> bool:
        return self._ended is not None or any(self._is_urgent(self._lines[i]) for i in self._waiting)

    def _hold(self) -> None:
        self._was_held = True
        if self._held_since is None:
            self._held_since = len(self._begun)

    def _start(self, id: str) -> None:
        order = [c["id"] for c in self._calls]
        assert id in order
        assert id not in self._started
        assert self._ended != "interrupt", "I4: a tool starts after an interrupt"
        self._started.append(id)
        if self._held_since is not None:
            self._late.append((id, frozenset(self._begun[: self._held_since])))
        self._begin(id)

    def _begin(self, id: str) -> None:
        """Take note of a call that has begun: it has started, or the user was told of it."""
        if id not in self._begun:
            self._begun.append(id)

    def _check_late(self) -> None:
        """What started although an urgent line or a stop waited stands in a batch that had begun by then."""
        order = [c["id"] for c in self._calls]
        alone = {c["id"] for c in self._calls if c["name"] not in self._read_only and c["id"] in self._started}
        for id, begun in self._late:
            last = first = order.index(id)
            while first > 0 and not alone.intersection(order[first - 1 : first + 1]):
                first -= 1
            assert begun.intersection(order[first:last]), f"{id} starts although an urgent line or a stop waits"

    def _request(self, request: Request, synced: int) -> None:
        assert self._ended is None, f"I4: a model call after {self._ended}"
        assert len(request.messages) == len(self.history), "I8: the conversation is not what the journal says"
        for n, (sent, recorded) in enumerate(zip(request.messages, self.history, strict=True)):
            if n >= len(self._same) or self._same[n] is not sent:
                assert to_json(sent) == recorded
                self._same[n:] = [sent]
        assert check_messages(self.history) is None
        for id in self._unsent:
            assert self._lines[id]["end"] <= synced, f"I6: {id} was sent before it was on the disk"
        self._unsent.clear()
        if not self._may_have_tail:
            assert request.overrides == Overrides()
            assert not request.tail or self._plan_is_news, "I7: a tail on an ordinary call"
        assert self._may_have_tail or len(request.tail) <= 1
        self._plan_changed = False

    def _result(self, record: dict[str, Any]) -> None:
        status, settled = record["status"], self._giving_back or record["end"]
        waiting = [i for i in self._waiting if self._lines[i]["end"] < settled]
        assert set(self._started) == self._finished
        assert self._is_refusing == (status == "refused")
        assert not self._withdrawn, "I1: a line left the conversation and did not come back"
        assert not self._was_cut or self._ended == "stop" or status in ("interrupted", "limit_reached", "error")
        follow_ups = [i for i in waiting if self._is_follow_up(i)]
        if status == "done":
            assert waiting == follow_ups
        elif status == "max_iterations":
            assert not waiting or self._interactive or follow_ups
        else:
            assert not waiting, f"{waiting} still wait after {status}"
        assert self._ended is None or status not in ("done", "max_iterations") or self._ended == "stop"
        self._ended = self._held_since = self._giving_back = None
        self._went_on = self._was_cut = self._is_refusing = self._may_have_tail = False


def _is_answer(message: dict[str, Any]) -> bool:
    return message["role"] == "assistant" and all(b["type"] != "tool_use" for b in message["content"])
