"""The lines, conversation and tool calls of one agent, checked in order by the rules of SPEC sections 2 to 5."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from double import check_messages

from chain.agent.window import EARLIER_GONE
from chain.messages import Overrides, from_json, to_json
from chain.model import Request
from chain.text.wording import COMPACTED, INTERRUPT_NOTE, STOP_NOTE, USER_WORDS

from .accepted import AcceptedLine, Lines
from .sessions import INTERRUPTED, SKIPPED
from .users import LINE_MARK

_CARRIED_OUT = re.compile(r"\((Not d|D)one: ")


@dataclass(frozen=True)
class Ending:
    """The end of an agent that a call started, and its findings (``AgentWalk.findings``)."""

    status: str
    findings: list[str]

    @property
    def is_answer(self) -> bool:
        return self.status in ("done", "max_iterations", "truncated")


@dataclass(eq=False)
class AgentWalk:
    """The state of one agent according to its records and requests: waiting lines, conversation, run and calls.

    ``limit`` is the maximum number of iterations. ``parallel`` are the tools that may run in parallel, and ``endings``
    the ends of child agents by the call that started them.
    """

    name: str
    kind: str
    limit: int
    lines: Lines
    parallel: set[str]
    endings: dict[str, Ending]
    is_asked: bool = False
    """Whether it works for an ``agent_ask``."""
    parent: AgentWalk | None = None
    parent_id: str = "root"
    below: list[AgentWalk] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[AcceptedLine] = field(default_factory=list)
    iteration: int = 0
    usage: list[int] = field(default_factory=lambda: [0, 0])
    findings: list[str] = field(default_factory=list)
    """The results of the run that are no errors, with those of agents that ended without an answer."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """The calls of the last reply. ``started`` and ``finished`` are the ids of those with such a record."""
    started: list[str] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    memory: object = None
    """The object that all requests of its conversation share."""
    ended: str | None = None
    """``stop`` or ``interrupt`` once the run must end."""
    settled_from: int | None = None
    """The position in the journal from which the run settles its lines. Later lines belong to the next run."""
    is_summarizing: bool = False
    """Whether its last request asks for a summary."""
    only_compacts: bool = False
    """Whether its run does nothing but a compaction."""
    _has_worked: bool = False
    _last_sent: list[object] = field(default_factory=list)
    """The messages of the last request, by identity."""
    _valid: list[dict[str, Any]] = field(default_factory=list)
    """The messages of the last request, which were checked to be valid."""
    _readable: list[dict[str, Any]] = field(default_factory=list)
    """The messages that were checked to be read back unchanged."""
    _was_compacted: bool = False
    """Whether nothing has happened since a compaction."""
    _first: tuple[str, ...] = ()
    """The parts of the message that replaces all messages before a compaction."""
    _returned_marks: set[str] = field(default_factory=set)
    """The marks of the lines that a refusal returned."""
    _user_words: list[str] = field(default_factory=list)
    """The user's words in this run."""
    _last_message: int = 0
    _ids: list[list[str]] = field(default_factory=list)
    """The lines of each message of the history."""
    _unsent: list[str] = field(default_factory=list)
    _withdrawn: set[str] = field(default_factory=set)
    _has_later_step: bool = False
    """Whether another step has started since the run had to end."""
    _begun_calls: list[str] = field(default_factory=list)
    _late_calls: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    """The calls that started after an urgent line or a stop, each with the calls that had begun before that."""
    _blocked_since: int | None = None
    """The number of calls that had begun when the first urgent line, stop or interrupt arrived."""
    _was_blocked: bool = False
    """Whether one of these arrived since the reply."""
    _was_cut: bool = False
    _refused_status: str = ""
    """The status of the run whose query was withdrawn from the conversation."""
    _has_now: bool = False
    """Whether a line with the urgency "now" arrived since the reply. It cuts the tools even if it was dropped."""
    _is_empty: bool = False
    """Whether a reply without content has followed the last message."""
    _may_have_tail: bool = False
    _has_new_stubs: bool = False
    """Whether the last request had stubs that are not recorded yet."""
    _needs_removal_record: bool = False
    """Whether a request with new stubs was answered, so that a record of them must follow."""

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def is_for_a_question(self) -> bool:
        return self.is_asked or (self.parent is not None and self.parent.is_for_a_question)

    @property
    def is_answered(self) -> bool:
        """Whether every call of its conversation has a result."""
        return all(block["type"] != "tool_use" for block in self.history[-1]["content"])

    def all(self) -> list[AgentWalk]:
        """Return this agent and all below it."""
        return [self, *(each for child in self.below for each in child.all())]

    # ---- start and end of runs

    def begin(self, parent: AgentWalk, parent_id: str) -> None:
        """Start to work for an agent, in its call ``parent_id``."""
        assert self.parent is None, f"{self.name} is at work already"
        call = next((c for c in parent.calls if c["id"] == parent_id), None)
        assert call is not None, f"{self.name} works for no call of {parent.name}"
        assert parent_id in parent.started
        assert parent_id not in parent.finished
        self.is_asked, self._has_worked = self._has_worked, True
        assert call["name"] == ("agent_ask" if self.is_asked else self.kind)
        assert parent.ended is None, f"I4: {self.name} starts after {parent.ended}"
        self.parent, self.parent_id = parent, parent_id
        parent.below.append(self)

    def end(self, status: str, iterations: int, usage: dict[str, Any]) -> None:
        """End the work for the parent."""
        assert self.parent is not None
        assert not self.below, f"{self.name} ends before {[each.name for each in self.below]}"
        assert not self.waiting, f"I1: {self.name} ends, and {[each.id for each in self.waiting]} wait for it"
        self.parent.below.remove(self)
        self.endings[self.parent_id] = Ending(status, self.findings)
        self._check_end(status, iterations, usage)
        self.parent = None

    def result(self, record: dict[str, Any], *, interactive: bool) -> None:
        """Check the result of a run of the main agent."""
        assert not self.below, f"the run ends before {[each.name for each in self.below]}"
        status, settled = record["status"], self.settled_from or record["end"]
        waiting = [line for line in self.waiting if line.end < settled and line.kind != "job"]
        follow_ups = [line for line in waiting if line.is_follow_up]
        if status == "done":
            assert waiting == follow_ups or self.only_compacts, "lines during a compaction start the next run"
        elif status == "max_iterations":
            assert not waiting or interactive or follow_ups
        else:
            assert not waiting, f"{[line.id for line in waiting]} still wait after {status}"
        self._check_end(status, record["iterations"], record["usage"])

    def _check_end(self, status: str, iterations: int, usage: dict[str, Any]) -> None:
        assert set(self.started) == self.finished
        assert self._refused_status in ("", status)
        assert self._refused_status or status != "refused"
        assert not self._withdrawn, "I1: a line left the conversation and did not come back"
        assert not self._was_cut or self.ended == "stop" or status in ("interrupted", "limit_reached", "error")
        assert self.ended is None or status not in ("done", "max_iterations"), f"{self.name} is {status} all the same"
        assert iterations == self.iteration
        assert [usage["input_tokens"], usage["output_tokens"]] == self.usage, "the usage of the agents below counts too"
        assert not self.history or self.is_answered, "I2: calls are left open"
        was_told, self.only_compacts = not self.only_compacts, False
        self._user_words = []
        if was_told and (status == "interrupted" or status.startswith("cancelled")):
            note = INTERRUPT_NOTE if status == "interrupted" else STOP_NOTE
            assert self.history[-1]["content"] == [{"type": "text", "text": note}], "the model must learn of it"
        self.iteration, self.usage, self.findings = 0, [0, 0], []
        self.ended = self._blocked_since = self.settled_from = None
        self._has_later_step = self._was_cut = self._may_have_tail = False
        self._refused_status = ""

    def request_end(self, how: str) -> None:
        """Record that a stop or an interrupt reaches the agent."""
        if self.settled_from is None:
            self.ended = "interrupt" if how == "interrupt" else self.ended or how
            self._block()

    def start_step(self) -> None:
        """Record that another step starts, so that records of the step of a stop are complete."""
        self._has_later_step = self._has_later_step or self.ended is not None

    # ---- lines

    def line(self, line: AcceptedLine) -> None:
        """Add a waiting line."""
        self.waiting.append(line)
        self.waiting.sort(key=lambda each: each.number)
        if self.settled_from is None:
            self._has_now = self._has_now or line.urgency == "now"
            if line.is_urgent:
                self._block()

    def receipt(self, record: dict[str, Any]) -> None:
        line, state = self.lines[record["id"]], record["state"]
        if state == "delivered":
            assert line.point == record["point"], f"I1: {line.id} is not in the conversation"
            return
        if line in self.waiting:
            self.waiting.remove(line)
        else:
            assert state == "returned", f"I1: {line.id} does not wait"
            self._withdrawn.remove(line.id)
        was_heard = state == "handled" and line.kind == "guidance"
        if (state == "returned" or was_heard) and self.settled_from is None:
            self.settled_from = record["end"]
        if self._blocked_since is not None and not self.is_blocked:
            self._blocked_since = None  # the urgent line was dropped
        if state == "handled":
            assert line.kind in ("stop", "todo", "guidance", "question")

    # ---- the conversation

    def message(self, record: dict[str, Any]) -> None:
        self.settled_from = None
        message, point, ids = record["message"], record["point"], record["line_ids"]
        assert record["parent_id"] == self.parent_id
        assert not self._needs_removal_record, "the removal of content is not recorded"
        texts = [b["text"] for b in message["content"] if b["type"] == "text"]
        lines = [self.lines[id] for id in ids]
        if ids:
            assert message["role"] == "user"
            self._check_point(point, lines)
            assert point == "start" or not self._has_later_step, "I3: lines came in after the run was told to end"
            for line in lines:
                self.waiting.remove(line)
                line.point = point
                assert line.is_in(texts)
                if line.kind != "job":
                    self._user_words.append(line.text.strip())
            self._unsent += ids
            self._may_have_tail = self._may_have_tail or point != "start"
            self._was_compacted = False
            self._blocked_since = 0 if self.is_blocked else None
        else:
            assert point is None
        assert record["is_interjection"] == (point not in (None, "start"))
        if point == "C":
            self._was_cut = False  # by a line that a key or a rule made urgent, which the journal does not show
        self._check_marks(lines, texts)
        if message["role"] == "assistant":
            self._reply(message)
        self._check_results(message)
        self._last_message = record["end"]
        self._is_empty = False
        self.history.append(message)
        self._ids.append(ids)

    def _check_point(self, point: str, lines: list[AcceptedLine]) -> None:
        before = self.history[-1] if self.history else None
        kinds = {b["type"] for b in before["content"]} if before else set()
        # A line that a listener sends at the notice of a broken handler prompt arrives too late.
        waiting = [line for line in self.waiting if not line.is_follow_up]
        late = [line for line in waiting if line not in lines and line.end > self._last_message]
        waiting = waiting[: len(waiting) - len(late)]
        if self._was_compacted and point in ("A", "C", "D", "N"):
            assert lines == waiting
            return
        match point:
            case "start":
                assert self.parent_id == "root"
                # The end of a job is delivered after the query, at A.
                same = [line for line in self.waiting if line.is_follow_up == lines[0].is_follow_up]
                same = [line for line in same if line.kind != "job"]
                assert lines == same[:1], "I9: a query that is not the oldest"
            case "A":
                assert lines == waiting
            case "B":
                assert before is not None
                assert before["role"] == "assistant" or self._is_empty
                assert "tool_use" not in kinds
                assert lines == waiting
            case "C" | "D":
                assert kinds == {"tool_result"}
                assert lines == waiting, "I9: not all waiting lines, or in another order"
                stubs = [b for b in before["content"] if b["content"] == SKIPPED] if before else []
                assert (point == "C") == bool(stubs)
            case "N":
                assert lines == waiting, "I9: not all waiting lines, or in another order"
                assert "tool_use" not in kinds
            case _:
                raise AssertionError(f"I3: lines came in at {point}")

    def _check_marks(self, lines: list[AcceptedLine], texts: list[str]) -> None:
        said = {mark for line in lines for mark in line.marks}
        found = {mark for text in texts for mark in LINE_MARK.findall(text)}
        if any(line.kind == "todo" for line in lines):
            # The outcome of a plan command contains the text of the task.
            found -= self.lines.plan_marks - said
        assert found == said, "I3: a line's text is elsewhere"

    def _reply(self, message: dict[str, Any]) -> None:
        self._has_now = False
        self.calls = [b for b in message["content"] if b["type"] == "tool_use"]
        self.started, self._begun_calls, self._late_calls, self.finished = [], [], [], set()
        self._blocked_since = 0 if self.is_blocked else None
        self._was_blocked = self._blocked_since is not None
        self._may_have_tail = False

    def _check_results(self, message: dict[str, Any]) -> None:
        """Check that exactly the calls that never started say so, and that agents without an answer give errors."""
        results = [b for b in message["content"] if b["type"] == "tool_result"]
        if not results:
            return
        self._check_late()
        assert [b["tool_use_id"] for b in results] == [c["id"] for c in self.calls]
        for block in results:
            id, text, is_error = block["tool_use_id"], block["content"], block.get("is_error", False)
            has_begun = id in self.endings
            # A call that could start no agent any more has had no effect either.
            has_run = id in self.started and (has_begun or not (self._starts_agents(id) and text == SKIPPED))
            assert has_run <= (text != SKIPPED), "what has started says that it was skipped"
            assert (id in self.started) >= (text == INTERRUPTED)
            assert has_run or is_error
            assert (id in self.started) == (id in self.finished)
            if has_begun:
                assert is_error != self.endings[id].is_answer, (
                    f"an agent that was {self.endings[id].status}: {text:.80}"
                )
            self.findings += [text] if not is_error else self.endings[id].findings if has_begun else []
            self._was_cut |= text == INTERRUPTED and not self._has_now
            self._was_cut |= text == SKIPPED and not self._was_blocked

    def _starts_agents(self, id: str) -> bool:
        call = next(c for c in self.calls if c["id"] == id)
        return call["name"] == "agent_ask" or "task" in call["input"]

    def reply_came(self, record: dict[str, Any]) -> None:
        """Record the end of a model call. A call without a reply has no stop reason."""
        self._is_empty = record["stop_reason"] is not None
        self._needs_removal_record = self._is_empty and self._has_new_stubs

    def withdraw(self, record: dict[str, Any]) -> None:
        keep = len(self.history) - record["messages"]
        assert keep >= 0
        gone = self.history[keep:]
        self._refused_status = record["reason"]
        assert not any(_is_answer(m) for m in gone)
        assert not keep or _is_answer(self.history[keep - 1]) or _is_summary(self.history[keep - 1])
        self._withdrawn = set(record.get("line_ids", ()))
        # Lines that the program has carried out stay delivered. Otherwise they would be carried out twice.
        assert self._withdrawn >= {
            id
            for message, ids in zip(gone, self._ids[keep:], strict=True)
            for id in ids
            if self.lines[id].kind != "todo" or not _CARRIED_OUT.search(str(message["content"]))
        }
        del self.history[keep:], self._ids[keep:], self._last_sent[keep:]
        if keep and _is_summary(self.history[0]):
            self._last_sent, self._first = [], self._first[:1]
        self._returned_marks |= {mark for id in self._withdrawn for mark in self.lines[id].marks}

    def remove(self, record: dict[str, Any]) -> None:
        """Replace images by stubs, or remove thinking."""
        self._needs_removal_record, left, gone = False, Counter(record.get("digests", ())), record["what"] == "tools"
        for n, message in enumerate(self.history):
            new = []
            for block in message["content"]:
                if block["type"] == "image" and left[block["source"]["digest"]] > 0:
                    left[block["source"]["digest"]] -= 1
                    why = record.get("why", "the service refused it")
                    new.append({"type": "text", "text": f"[image {block['name']} removed: {why}]"})
                elif record["what"] != "thinking" or not _is_thinking(block):
                    new.append(block)
            gone = gone or new != message["content"]
            self.history[n] = {**message, "content": new}
        assert gone, "there was nothing to remove"
        self._last_sent.clear()

    # ---- the start of calls

    @property
    def is_blocked(self) -> bool:
        """Whether no call may start."""
        return self.ended is not None or any(line.is_urgent for line in self.waiting)

    def _block(self) -> None:
        self._was_blocked = True
        if self._blocked_since is None:
            self._blocked_since = len(self._begun_calls)

    def start(self, id: str) -> None:
        self.settled_from = None
        assert id in [c["id"] for c in self.calls]
        assert id not in self.started
        assert self.ended != "interrupt", "I4: a tool starts after an interrupt"
        self.started.append(id)
        if self._blocked_since is not None:
            self._late_calls.append((id, frozenset(self._begun_calls[: self._blocked_since])))
        self.call(id)

    def finish(self, id: str) -> None:
        assert id in self.started
        assert id not in self.finished
        self.finished.add(id)

    def call(self, id: str) -> None:
        """Record that a call has begun: it has started, or its event was emitted."""
        if id not in self._begun_calls:
            self._begun_calls.append(id)

    def progress(self, id: str) -> None:
        assert id in self.started
        assert id not in self.finished

    def _check_late(self) -> None:
        """Check that calls which start after an urgent line or a stop belong to a batch that had begun by then."""
        order = [c["id"] for c in self.calls]
        alone = {c["id"] for c in self.calls if c["name"] not in self.parallel and c["id"] in self.started}
        for id, begun in self._late_calls:
            last = first = order.index(id)
            while first > 0 and not alone.intersection(order[first - 1 : first + 1]):
                first -= 1
            assert begun.intersection(order[first:last]), f"{id} starts although an urgent line or a stop waits"

    def iterate(self, iteration: int) -> None:
        """I5: the iterations of a run count 1, 2, 3, ... and never pass the limit."""
        assert self.ended is None, f"an iteration of {self.name} begins after {self.ended}"
        self.iteration += 1
        assert iteration == self.iteration <= self.limit, "I5"

    def compact(self, record: dict[str, Any]) -> None:
        """Apply a compaction. I10: its first message has the user's words of the run, word for word."""
        kept = self.history
        if record["summary"]:
            kept = self.history[len(self.history) - record.get("kept", 0) :]
        stubs = set(record.get("stubbed", ()))
        names = {b["id"]: b["name"] for m in self.history for b in m["content"] if b["type"] == "tool_use"}
        kept = [{**m, "content": [_stubbed(b, names, stubs) for b in m["content"]]} for m in kept]
        self._last_sent, self._ids = [], [[] for _ in kept]
        if record["summary"]:
            words = record.get("words", "")
            left = f"({record['left_out']:,} earlier line" if record.get("left_out") else ""
            text = "\n\n".join(
                filter(None, [COMPACTED, record["summary"], f"{USER_WORDS}\n\n" if words else ""])
            ).strip()
            first = {"role": "user", "content": [{"type": "text", "text": text}]}
            kept, self._ids = [first, *kept], [[], *self._ids]
            self._first = (record["summary"], words, left, record.get("plan", ""))
            assert all(said in words for said in self._user_words), "I10: words of the user are missing"
        self.history = kept
        self._was_compacted = True

    def asks_model(self, *, is_for_summary: bool) -> None:
        """Record a request. Lines that wait during a compaction are delivered right after it, even if it failed."""
        self.is_summarizing = is_for_summary
        self._was_compacted = self._was_compacted or is_for_summary

    def _learn_first(self, request: Request) -> None:
        """Read the first message of a compacted conversation from the first request with it."""
        if self.history and _is_summary(self.history[0]) and not self._last_sent:
            said = request.messages[0].text
            assert all(part in said for part in self._first), "I10"
            assert not any(mark in said for mark in self._returned_marks), "refused content is sent again"
            self.history[0] = to_json(request.messages[0])

    def _is_asked_of(self, n: int, asked: list[dict[str, Any]]) -> bool:
        """Return whether these are the messages from the n-th one, except for stubs and the user's newest texts."""
        said, left = self.history[n : n + len(asked)], self.history[n + len(asked) :]
        is_same = len(said) == len(asked) and all(map(_is_alike, said, asked))
        return is_same and all(_is_text_of_user(message) for message in left)

    def _summary_request(self, request: Request) -> None:
        assert not request.tail
        assert request.overrides == Overrides()
        asked = [to_json(message) for message in request.messages[:-1]]
        if asked and _is_summary(asked[0]):
            self._learn_first(request)
        is_shrunk = bool(asked) and asked[0]["content"] == [{"type": "text", "text": EARLIER_GONE}]
        begins = range(1, len(self.history)) if is_shrunk else range(1)
        assert any(self._is_asked_of(n, asked[is_shrunk:]) for n in begins), "it asks for a summary of something else"
        assert check_messages([to_json(message) for message in request.messages]) is None, "I2"

    def check_kept(self) -> None:
        """Check that the recorded conversation is read back unchanged."""
        for message in self.history[_alike(self._readable, self.history) :]:
            assert to_json(from_json(message)) == message
        self._readable = self.history[:]

    def request(self, request: Request, synced: int) -> None:
        assert self.ended is None, f"I4: a model call of {self.name} after {self.ended}"
        if self.is_summarizing:
            self._summary_request(request)
            return
        self._learn_first(request)
        self._was_compacted = False
        assert not self.below, f"{self.name} asks its model while {[each.name for each in self.below]} work for it"
        assert len(request.messages) == len(self.history), "I8: the conversation is not what the journal says"
        self._has_new_stubs = False
        for n, (sent, recorded) in enumerate(zip(request.messages, self.history, strict=True)):
            if n >= len(self._last_sent) or self._last_sent[n] is not sent:
                is_tried = to_json(sent) != recorded
                assert not is_tried or _is_stubbed(to_json(sent), recorded)
                self._has_new_stubs |= is_tried
                self._last_sent[n:] = [sent]
        assert check_messages(self.history, known=_alike(self._valid, self.history)) is None
        self._valid = self.history[:]
        for id in self._unsent:
            assert self.lines[id].end <= synced, f"I6: {id} was sent before it was on the disk"
        self._unsent.clear()
        assert self._may_have_tail or request.overrides == Overrides()
        assert self._may_have_tail or len(request.tail) <= 1, "I7: only the plan is added to an ordinary call"


def _alike(before: Sequence[object], now: Sequence[object]) -> int:
    """Return the number of messages that both begin with."""
    return next((n for n, (one, other) in enumerate(zip(before, now, strict=False)) if one is not other), len(before))


def _is_summary(message: dict[str, Any]) -> bool:
    return bool(message["content"]) and message["content"][0].get("text", "").startswith(COMPACTED)


def _stubbed(block: dict[str, Any], names: dict[str, str], stubs: set[str]) -> dict[str, Any]:
    if block.get("tool_use_id") not in stubs:
        return block
    removed = f"{len(block['content']):,} characters removed to make room"
    return {**block, "content": f"[{names[block['tool_use_id']]}: {removed}]"}


def _is_stubbed(sent: dict[str, Any], recorded: dict[str, Any]) -> bool:
    """Return whether a message is the recorded one, except for refused content whose removal is not recorded yet."""
    kept = [
        block
        for block in recorded["content"]
        if len(sent["content"]) == len(recorded["content"]) or not _is_thinking(block)
    ]
    pairs = zip(sent["content"], kept, strict=True)
    return all(block == other or " removed: " in block.get("text", "") for block, other in pairs)


def _is_thinking(block: dict[str, Any]) -> bool:
    return block["type"] in ("thinking", "redacted_thinking")


def _is_text_of_user(message: dict[str, Any]) -> bool:
    return message["role"] == "user" and not any("tool_use_id" in block for block in message["content"])


def _is_alike(message: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Return whether the messages are equal except for stubs of results."""
    blocks = zip(message["content"], asked["content"], strict=False)
    is_same = len(message["content"]) == len(asked["content"]) and message["role"] == asked["role"]
    return is_same and all(b == c or "removed to make room]" in str(c.get("content")) for b, c in blocks)


def _is_answer(message: dict[str, Any]) -> bool:
    return message["role"] == "assistant" and all(b["type"] != "tool_use" for b in message["content"])
