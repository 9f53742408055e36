"""What the tests of running chains share: a chain in memory, a recording model, a user who acts at given moments, and
the invariants of SPEC section 2.

Nothing here stands in for our own code. The file layer and the models are implementations of the contracts that the
package itself defines (``JournalFile``, ``Model``).
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import hypothesis
import pytest
import trio
from api_rules import problems
from hypothesis.strategies import SearchStrategy

from chain import events
from chain.app import open_chain
from chain.chain import Chain
from chain.config.load import Settings, load_settings
from chain.errors import JournalError, UserError
from chain.lines.parse import parse_line
from chain.messages import Overrides, from_json, to_json
from chain.model import Delta, Memory, Model, Reply, Request
from chain.providers.scripted.model import ScriptedModel
from chain.session.journal import Journal
from chain.tools.tool import Tool

_CARRIED_OUT = re.compile(r"\((Not d|D)one: ")

FINAL = {"delivered", "handled", "returned", "dropped"}

SKIPPED = "[Skipped: user interrupted]"
INTERRUPTED = "[Interrupted: stopped while running, it may have had effects]"


class MemoryFile:
    """A journal's file in memory. No thread, since the test clock would run on while one works."""

    def __init__(self, sync_s: float = 0) -> None:
        self.data = b""
        self.synced = b""
        self._sync_s = sync_s

    def append(self, data: bytes) -> None:
        self.data += data

    async def sync(self) -> None:
        written = self.data
        await trio.sleep(self._sync_s)
        self.synced = written


SMALL = 420
"""Bytes of a record that a nearly full disk still takes: every line and receipt, and no long result or reply."""


class FullDisk(MemoryFile):
    """A disk that takes no record of more than ``room`` bytes, and on request fails to sync."""

    room: float = math.inf
    broken = False

    @property
    def full(self) -> bool:
        """Whether it takes nothing at all."""
        return self.room == 0

    @full.setter
    def full(self, full: bool) -> None:
        self.room = 0 if full else math.inf

    def append(self, data: bytes) -> None:
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().append(data)

    async def sync(self) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        await super().sync()


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that the journal does not hold, and where in it that happened: bytes written, bytes on the disk.

    A request to the model, an event, or ``None`` for an interrupt.
    """

    written: int
    synced: int
    what: Request | events.Event | None


@dataclass
class Recorder:
    """A model that hands every request on to another, and keeps it."""

    inner: Model
    requests: list[Request] = field(default_factory=list)
    on_request: Callable[[Request], None] = lambda request: None
    prepared: int = 0
    closed: int = 0

    @property
    def name(self) -> str:
        return self.inner.name

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        self.requests.append(request)
        self.on_request(request)
        return await self.inner.reply(request, on_delta)

    async def prepare(self) -> None:
        self.prepared += 1
        await self.inner.prepare()

    async def aclose(self) -> None:
        self.closed += 1
        await self.inner.aclose()


@dataclass
class OneConversation:
    """A model that is asked directly, without a chain: what it keeps of a conversation is kept between its requests."""

    model: Model
    memory: Memory = field(default_factory=dict)

    async def reply(self, request: Request, on_delta: Callable[[Delta], None] = lambda delta: None) -> Reply:
        return await self.model.reply(replace(request, memory=self.memory), on_delta)


@dataclass
class Session:
    """An open chain and everything that can be known of it."""

    chain: Chain
    model: Recorder
    file: MemoryFile
    interactive: bool = False
    events: list[events.Event] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    is_closing: bool = False
    interrupted_at: list[int] = field(default_factory=list)
    """How many events there were at each interrupt."""

    def mark(self, what: Request | events.Event | None) -> None:
        """Note that this happens now."""
        self.marks.append(Mark(len(self.file.data), len(self.file.synced), what))

    def hear(self, event: events.Event) -> None:
        """Keep an event."""
        self.events.append(event)
        if isinstance(event, events.LineQueued | events.IterationStarted | events.ToolCall | events.ToolProgress):
            self.mark(event)

    def interrupt(self) -> None:
        """Press Esc."""
        if self.chain.is_running:
            self.interrupted_at.append(len(self.events))
            self.mark(None)
        self.chain.interrupt()

    def ask(self, model: Model) -> None:
        """Change to another model; it counts as the same one, whoever replies."""
        other = Recorder(model, self.model.requests, self.mark)
        self.chain.use_model(other)

    def of(self, *types: type[events.Event]) -> list[Any]:
        """The events of these types so far."""
        return [e for e in self.events if isinstance(e, types)]

    @property
    def result(self) -> events.Result:
        """The last run's result."""
        found: events.Result = self.of(events.Result)[-1]
        return found

    @property
    def records(self) -> list[dict[str, Any]]:
        """The journal."""
        return [json.loads(row) for row in self.file.data.splitlines()]

    def state(self, id: str) -> str:
        """What became of a line."""
        return next(r.state for r in self.chain.receipts if r.id == id)

    def sent(self, n: int = -1) -> str:
        """The text of the conversation that request ``n`` carried, a message a line."""
        return "\n".join(
            f"{m.role}: {m.text or ', '.join(r.text for r in m.results) or [c.name for c in m.calls]}"
            for m in self.model.requests[n].messages
        )

    async def run(self, query: str) -> events.Result:
        """Start a run and wait until the chain is idle."""
        assert self.chain.submit(query).what == "started"
        await self.chain.wait_idle()
        return self.result


_FOLDERS = TemporaryDirectory(prefix="chain-test-")
"""For the files of the tests' settings; gone with the process."""


@cache
def settings(
    *,
    max_iterations: int = 20,
    inbox_size: int = 10,
    handler: str = "",
    timeout_s: float = 1800,
    max_attempts: int = 4,
    budget_tokens: int | None = None,
    allow: str = "",
) -> Settings:
    """Settings read from a file, as a user's are; made once for each combination."""
    folder = Path(mkdtemp(dir=_FOLDERS.name))
    (folder / "system.yaml").write_text("messages: [{role: system, content: You are a test.}]")
    (folder / "rules.yaml").write_text("rules: [{text: unused}]")
    if handler:
        (folder / "handler.yaml").write_text(handler)
    raw = {
        "models": {
            "default": "test",
            "definitions": {"test": {"provider": "scripted", "script": "rules.yaml", "max_attempts": max_attempts}},
        },
        "chains": {
            "default": {
                "model": "test",
                "system_prompt": "system.yaml",
                "interruption_prompt": "handler.yaml" if handler else None,
                "tools": ["todo"],
                "max_iterations": max_iterations,
                "timeout_s": timeout_s,
                "budget": {"max_tokens": budget_tokens},
            }
        },
        "inbox": {"size": inbox_size},
        "tools": {"allow": [allow] if allow else []},
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(raw))
    return load_settings(config=path, environ={}, cwd=folder, flags={})


@asynccontextmanager
async def open_session(
    model: Model | str,
    *,
    tools: Iterable[Tool] = (),
    use: Settings | None = None,
    interactive: bool = False,
    file: MemoryFile | None = None,
    traces: Path | None = None,
) -> AsyncIterator[Session]:
    """A chain in memory; ``model`` may be the text of a rule file."""
    inner = ScriptedModel.parse(model) if isinstance(model, str) else model
    recorder, file = Recorder(inner), file or MemoryFile()
    chosen = use or settings()
    assert chosen.file is not None
    async with open_chain(
        chosen,
        workspace=chosen.file.parent,
        state=chosen.file.parent / "state",
        tools=tools,
        model=recorder,
        journal=Journal(file, id="test"),
        interactive=interactive,
        traces=traces,
    ) as chain:
        session = Session(chain, recorder, file, interactive)
        recorder.on_request = session.mark
        chain.listen(session.hear)
        try:
            yield session
        finally:
            session.is_closing = True
            if chain.is_running:
                session.mark(None)  # closing is an interrupt


# --------------------------------------------------------------------------------------------- a user, at given moments

INTERRUPT = "(interrupt)"
DROP = "(drop)"
DROP_FIRST = "(drop the first)"
EDIT = "(edit)"
NEW = "(new)"
FULL = "(the disk is full)"
NEARLY_FULL = "(the disk takes small records)"
ROOM = "(the disk has room)"
ANOTHER_MODEL = "(another model)"

LINES = [
    "use the other file ‹›",
    "!use the other file at once ‹›",
    "todo: add a task ‹›",
    "todo: done 1",
    "todo: fail 9",
    "focus on prices ‹›",
    "also check the other file ‹›",
    "!skip docs ‹›",
    "context: it is late ‹›",
    "how is it going ‹›?",
    "then: Do the next task ‹›",
    " stop ‹›",
    "stop",
    "status",
    "todo: add",
    "/help",
]
"""Lines of all kinds. ``‹›`` becomes a number that no other line has, so that its text can be found again."""

MARKED = re.compile("‹[0-9]+›")


@dataclass
class Acts:
    """Does things in the very step of numbered events: sends lines, presses keys, gives commands.

    Nothing is sent while no run is active unless ``also_idle``.
    """

    session: Session
    at: Sequence[tuple[int, str]]
    also_idle: bool = False
    another: Callable[[], Model] | None = None
    seen: int = 0
    sent: int = 0

    def __call__(self, event: events.Event) -> None:
        self.seen += 1
        for n, what in self.at:
            if n == self.seen:
                self.do(what)

    def at_once(self) -> None:
        """What is to be done before the first event."""
        for n, what in self.at:
            if n == 0:
                self.do(what)

    async def in_time(self, at: Iterable[tuple[float, str]]) -> None:
        """The same at moments in seconds from now."""
        begun = trio.current_time()
        for seconds, what in sorted(at):
            await trio.sleep_until(begun + seconds)
            self.do(what)

    def do(self, what: str) -> None:
        """One thing, now."""
        chain = self.session.chain
        match what:
            case "(interrupt)":
                self.session.interrupt()
            case "(drop)" | "(drop the first)" | "(edit)":
                waiting = [a.id for a in chain.waiting]
                id = next(iter(waiting), "L1") if what == DROP_FIRST else chain.last_waiting() or "L1"
                if what == DROP and waiting:
                    id = waiting[-1]  # one that a tool has heard cannot be dropped any more
                try:
                    text = chain.drop(id)
                except UserError:
                    assert [a.id for a in chain.waiting] == waiting
                else:
                    assert id not in [a.id for a in chain.waiting]
                    if what == EDIT:
                        chain.submit(MARKED.sub("", text).strip() + " ‹›".replace("‹›", self._number()))
            case "(new)" if not self.session.is_closing:
                try:
                    chain.start_afresh()
                except UserError:
                    assert chain.is_running
                except JournalError:
                    pass  # the disk is full, and everything stays as it was
                else:
                    assert not chain.is_running
            case "(another model)" if not self.session.is_closing and self.another is not None:
                with suppress(JournalError):
                    self.session.ask(self.another())
            case "(the disk is full)" | "(the disk takes small records)" | "(the disk has room)":
                assert isinstance(self.session.file, FullDisk)
                self.session.file.room = {FULL: 0, NEARLY_FULL: SMALL, ROOM: math.inf}[what]
            case _ if what in (NEW, ANOTHER_MODEL):
                pass
            case _ if chain.is_running or self.also_idle:
                chain.submit(what.replace("‹›", self._number()))
            case _:
                pass

    def _number(self) -> str:
        self.sent += 1
        return f"‹{self.sent}›"


def sharded(
    max_examples: int, *strategies: SearchStrategy[Any], shards: int = 10
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """A property test in parts that run on different cores; so many examples in all, as ``trying`` counts them."""

    def decorate(test: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("shard", range(shards))
        def run(shard: int) -> None:
            part = trying(max_examples // shards)(hypothesis.given(*strategies)(test))
            # The same examples each time have to be others in each part.
            (hypothesis.seed(shard)(part) if hypothesis.settings().derandomize else part)()

        run.__name__ = run.__qualname__ = test.__name__
        run.__doc__ = test.__doc__
        return run

    return decorate


def trying(max_examples: int) -> hypothesis.settings:
    """The settings of a property test with so many examples; the profile ``long`` tries many times as many."""
    times = hypothesis.settings().max_examples // 100
    return hypothesis.settings(max_examples=max_examples * times)


# ------------------------------------------------------------------------------------------------------ the invariants


def check_invariants(session: Session, *, max_iterations: int = 20) -> None:
    """Everything of SPEC section 2 that can be seen from outside, once the chain is idle."""
    records = session.records
    _check_conservation(session, records)
    _check_requests(session.model.requests, sum(r["type"] == "withdrawn" for r in records))
    walk = _Walk(session)
    for item in _in_order(session, records):
        walk.take(item)
    assert [to_json(from_json(m)) for m in walk.history] == walk.history
    assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
    _check_counts(session, max_iterations)
    _check_order(records)


def check_full_disk(session: Session) -> None:
    """What holds also where the disk took some records and not others, once it has room again and a run has ended."""
    records = session.records
    receipts = {r.id: r for r in session.chain.receipts if r.state != "refused"}
    assert sorted(r["id"] for r in records if r["type"] == "line") == sorted(receipts), "I1: accepted is on record"
    assert not session.chain.waiting
    told: dict[str, list[str]] = {id: [] for id in receipts}
    for event in session.of(events.Receipt):
        if event.state not in ("refused", "unsent"):
            told[event.id].append(event.state)
    for id, receipt in receipts.items():
        assert told[id] in ([receipt.state], ["delivered", "returned"]), f"I1: {id} was told {told[id]}"
        assert told[id][-1] == receipt.state
        assert receipt.state in FINAL, f"I1: {id} is {receipt.state}"
    counted = [receipt for result in session.of(events.Result) for receipt in result.receipts]
    assert all(receipt.state in FINAL or receipt.state == "refused" for receipt in counted)
    _check_requests(session.model.requests, sum(r["type"] == "withdrawn" for r in records))
    ran = {r["id"] for r in records if r["type"] == "tool_started"}
    for request in session.model.requests:
        assert problems([to_json(message) for message in request.messages]) == [], "I2"
        for result in (result for message in request.messages for result in message.results):
            assert result.id not in ran or result.text != SKIPPED, f"{result.id} ran and was told as skipped"
    results = [event.id for event in session.of(events.ToolResult)]
    assert len(results) == len(set(results)), "a result is told once"
    assert {event.id for event in session.of(events.ToolCall)} <= set(results), "a call that was told has a result"
    _check_acknowledged(session, records)
    assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
    _check_order(records)


def _check_acknowledged(session: Session, records: Sequence[dict[str, Any]]) -> None:
    """I6: a line that was told to be queued was on the disk by then."""
    ends: dict[str, int] = {}
    for item in _in_order(session, records):
        match item:
            case Mark(what=events.LineQueued(id=id), synced=synced):
                assert ends[id] <= synced, f"I6: {id} was acknowledged before it was on the disk"
            case {"type": "line", "id": str(id), "end": int(end)}:
                ends[id] = end
            case _:
                pass


def check_silence(session: Session, interrupted_at: list[int]) -> None:
    """I4: after an interrupt, as after an ending, no tool starts and no iteration begins until the next run."""
    running = False
    for n, event in enumerate(session.events):
        running = running and n not in interrupted_at
        match event:
            case events.RunStarted():
                running = True
            case events.Result():
                running = False
            case events.IterationStarted() | events.ToolCall():
                assert running
            case _:
                pass


def _check_conservation(session: Session, records: Sequence[dict[str, Any]]) -> None:
    """I1: every accepted line is in one final state, and the events tell the same story."""
    accepted = [r["id"] for r in records if r["type"] == "line"]
    receipts = {r.id: r for r in session.chain.receipts if r.state != "refused"}
    assert sorted(accepted) == sorted(receipts), "each accepted line has one receipt"
    assert not session.chain.waiting
    told: dict[str, list[str]] = {id: [] for id in accepted}
    recorded: dict[str, list[str]] = {id: [] for id in accepted}
    for event in session.of(events.LineQueued, events.Receipt):
        if isinstance(event, events.LineQueued):
            assert not told[event.id], f"what became of {event.id} was told before that it waits"
        elif event.state not in ("refused", "unsent"):
            told[event.id].append(event.state)
    for record in records:
        if record["type"] == "receipt":
            recorded[record["id"]].append(record["state"])
    for id, receipt in receipts.items():
        assert receipt.state in FINAL, f"{id} is {receipt.state}"
        assert told[id][-1] == receipt.state
        assert told[id] == [receipt.state] or told[id] == ["delivered", "returned"], told[id]
        assert recorded[id] == told[id]


def _check_requests(requests: Sequence[Request], withdrawals: int) -> None:
    """I7: each request begins with the one before, but for the withdrawals on record; and its tail is not blank."""
    breaks = 0
    for request in requests:
        assert all(text.strip() for text in request.tail)
    for before, after in pairwise(requests):
        assert (before.system, before.tools) == (after.system, after.tools)
        breaks += tuple(after.messages[: len(before.messages)]) != tuple(before.messages)
    assert breaks <= withdrawals


def _in_order(session: Session, records: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any] | Mark]:
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


class _Walk:
    """The journal and the marks, read in order by the rules of SPEC sections 2 to 5.

    It knows at each moment what waits, what the conversation is, and whether anything may still start.
    """

    def __init__(self, session: Session) -> None:
        self.history: list[dict[str, Any]] = []
        self._interactive = session.interactive
        self._read_only = {t.name for t in session.chain.tools if t.read_only}
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
                self._plan_changed = self._plan_is_news = item["by"] != "model"
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
        if record["kind"] == "stop" or self._is_urgent(record):
            self._hold()

    @staticmethod
    def _is_urgent(record: dict[str, Any]) -> bool:
        return bool(record["urgency"] == "urgent")

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
                self._was_cut |= text == INTERRUPTED or (text == SKIPPED and not self._was_held)

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
        assert problems(self.history) == []
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


def _check_counts(session: Session, max_iterations: int) -> None:
    """I5: in each run the iterations count 1, 2, 3, ... and never pass the limit."""
    count = 0
    for event in session.events:
        match event:
            case events.RunStarted():
                count = 0
            case events.IterationStarted():
                count += 1
                assert event.iteration == count <= max_iterations
            case events.UserInterruption():
                assert event.iteration == count
                assert event.remaining == session.chain.max_iterations - count > 0
            case events.Result():
                assert event.iterations == count
            case _:
                pass
    assert len(session.of(events.RunStarted)) == len(session.of(events.Result))


def _check_order(records: Sequence[dict[str, Any]]) -> None:
    """I9: lines are delivered in the order of acceptance, follow-ups among themselves."""
    order = {r["id"]: n for n, r in enumerate(records) if r["type"] == "line"}
    kinds = {r["id"]: r["kind"] for r in records if r["type"] == "line"}
    delivered = [id for r in records if r["type"] == "message" for id in r["line_ids"]]
    for is_follow_up in (True, False):
        group = [id for id in delivered if (kinds[id] == "follow-up") == is_follow_up]
        assert group == sorted(group, key=order.__getitem__)
    assert len(delivered) == len(set(delivered))
