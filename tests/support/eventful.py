"""An eventful session: lines at every safe point, parallel and nested agents, questions with every answer, a stop, an
interrupt and a plan. It runs on trio's test clock, so that its minutes take no real time."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

import trio
from trio.testing import MockClock

from chain import events
from chain.messages import Block, Text, ToolCall
from chain.text.hunks import FileDiff, Hunk
from chain.tools.ask import ask_user_question
from chain.tools.tool import Preview, Tool, ToolContext, ToolOutput, tool

from .clock import pass_time
from .models import Step
from .sessions import Session, call_at_event, open_session, wait_quiet
from .trees import TREE_TOOLS, Tree, TreeModel, tree_settings

START = 1_795_392_529.0
"""When the session began: a morning in November."""

FIRST = "Compare the reports of this year, and mend what is wrong in them.\nBegin with the folder reports/."
SECOND = "Now write it down for the team"
THIRD = "And translate it"

CHANGED = (
    " # March",
    "-The total is 1,204.",
    "+The total is 1,240.",
    "+Checked against the ledger.",
    " Signed: the office",
)
DIFF = FileDiff("reports/march.md", (Hunk(1, 1, CHANGED),))

TABLE = """\
I have read **both folders**. They differ in three places:

| File | This year | Last year |
|------|----------:|----------:|
| `reports/march.md` | 1,240 | 1,204 |
| `reports/april.md` | 980 | 980 |

1. The total of March was *transposed*.
2. April has no signature, see <https://example.org/rules>.

```python
def total(rows: list[int]) -> int:
    return sum(rows)  # a comment that is rather long, so that the row does not fit on a narrow screen at all
```
"""

LONG = "\n".join(f"reports/{n:02}.md: {n * 37 % 91} lines, {n * 411 % 997} words" for n in range(1, 41))


@tool(read_only=True, timeout_s=500)
async def read_reports(ctx: ToolContext, folder: str, seconds: float = 2.0) -> str:
    """Read reports."""
    await pass_time(seconds)
    return LONG


async def _shown(ctx: ToolContext, path: str, new: str) -> Preview:
    return Preview("", path, path, diff=DIFF)


@tool(needs_approval=True, preview=_shown)
async def mend(ctx: ToolContext, path: str, new: str) -> ToolOutput:
    """Change a report."""
    await pass_time(0.4)
    return ToolOutput(f"Changed {DIFF.head}.", summary=(DIFF.counts,))


@tool(read_only=True, timeout_s=500)
async def ledger(ctx: ToolContext, seconds: float = 3.0, fails: bool = False) -> str:
    """Ask the ledger."""
    await pass_time(seconds)
    if fails:
        raise ValueError("the ledger has no such month")
    return "March: 1,240"


TOOLS: list[Tool] = [*[t for t in TREE_TOOLS if t is not ask_user_question], ask_user_question]
TOOLS += [read_reports, mend, ledger]


def reply_with(text: str, *calls: tuple[str, dict[str, Any]]) -> Step:
    """Return a reply with these calls."""
    blocks: list[Block] = [Text(text)] if text else []
    blocks += [ToolCall(f"c{n}", name, input) for n, (name, input) in enumerate(calls)]
    return Step(tuple(blocks), delay_s=2.0)


_TREE = {
    FIRST: [
        reply_with(
            "I make a plan first.",
            ("plan_set_tasks", {"tasks": ["read the reports", "check the totals", "mend what is wrong"]}),
        ),
        reply_with(
            "Two helpers can read side by side.",
            ("explore", {"task": "read the reports of this year"}),
            ("agent", {"task": "read the reports of last year, and have the ledger checked"}),
        ),
        reply_with(
            "", ("ledger", {"fails": True}), ("read_reports", {"folder": "reports/2026"}), ("slow", {"seconds": 9})
        ),
        reply_with("Now the repairs.", ("mend", {"path": "reports/march.md", "new": "The total is 1,240."})),
        reply_with("", ("mend", {"path": "reports/april.md", "new": "x" * 300})),
        reply_with(
            "", ("ask_user_question", {"question": "Which name signs April?", "options": ["The office", "Ida"]})
        ),
        reply_with(
            "", ("plan_mark_done", {"task_number": 1}), ("plan_mark_failed", {"task_number": 2, "reason": "no data"})
        ),
        Step((Text(TABLE),), delay_s=5.0),  # a line cuts it, and it is given again
    ],
    "read the reports of this year": [
        reply_with("I read them.", ("read_reports", {"folder": "reports/2026", "seconds": 4.0})),
        reply_with("", ("watch", {"seconds": 1.5}), ("watch", {"seconds": 2.5})),
        Step((Text("This year has **40** reports."),), delay_s=1.0),
    ],
    "read the reports of last year, and have the ledger checked": [
        reply_with("", ("read_reports", {"folder": "reports/2025", "seconds": 3.0})),
        reply_with("", ("explore", {"task": "check the ledger of March"})),
        Step((Text("Last year is complete, and the ledger agrees."),), delay_s=1.0),
    ],
    "check the ledger of March": [
        reply_with("", ("ledger", {"seconds": 5.0})),
        Step((Text("The ledger says 1,240."),), delay_s=1.0),
    ],
    SECOND: [
        reply_with("I look for the template.", ("slow", {"seconds": 4}), ("ledger", {})),
        reply_with("", ("slow", {"seconds": 30}), ("look", {})),
        Step((Text("Unreached."),)),
    ],
    THIRD: [reply_with("I begin.", ("agent", {"task": "translate the text"})), Step((Text("Unreached."),))],
    "translate the text": [reply_with("", ("slow", {"seconds": 40})), Step((Text("Unreached."),))],
}


@dataclass(frozen=True)
class EventfulSession:
    """The session's events, with times of the test clock, and its journal."""

    events: tuple[events.Event, ...]
    journal: bytes


@cache
def eventful_session() -> EventfulSession:
    """Play the session once, and return it."""
    return trio.run(_play, clock=MockClock(autojump_threshold=0))


async def _play() -> EventfulSession:
    emitted: list[events.Event] = []
    settings = tree_settings(max_iterations=20, worker=4, explore=6)
    async with open_session(TreeModel(Tree(dict(_TREE))), tools=TOOLS, settings=settings) as session:
        began = trio.current_time()
        session.chain.listen(lambda event: emitted.append(replace(event, time=START + trio.current_time() - began)))
        _steer(session)
        with session.chain.answering():
            async with trio.open_nursery() as nursery:
                _answer(session, nursery)
                session.chain.submit(FIRST)
                session.chain.submit("context: the office moved in May")
                await wait_quiet(session)
                await trio.sleep(5000)  # a pause between two runs
                session.chain.submit(SECOND)
                await wait_quiet(session)
                session.chain.submit(THIRD)
                await wait_quiet(session)
        journal = bytes(session.file.data)
    return EventfulSession(tuple(emitted), journal)


def _steer(session: Session) -> None:
    """Send the user's lines, each in the step of an event."""
    submit = session.chain.submit

    def submit_at(text: str, kind: type[events.Event], nth: int = 1, **fields: Any) -> None:
        call_at_event(session, kind, lambda: submit(text), nth, **fields)

    submit_at("look at the appendix as well", events.ToolCall, agent="explore-1", name="read_reports")
    submit_at("todo: add thank the office", events.ToolCall, agent="main", name="ledger")
    submit_at("!skip the slow part, <b>please</b> & thank you", events.ToolCall, agent="main", name="read_reports")
    submit_at("how far are you?", events.Answer, id="Q1")
    call_at_event(
        session,
        events.IterationStarted,
        lambda: call_at_event(session, events.TextDelta, lambda: submit("!!shorter, and in a table")),
        agent="main",
        iteration=8,
    )
    submit_at("stop", events.ToolCall, 2, agent="main", name="slow")
    call_at_event(session, events.ToolCall, session.interrupt, agent="agent-2", name="slow")


def _answer(session: Session, nursery: trio.Nursery) -> None:
    """Answer each question some time after it was asked."""
    answers = {"Q1": "y", "Q2": "n, April is signed by hand", "Q3": "2"}

    async def answer_later(id: str) -> None:
        await trio.sleep(7)
        session.chain.answer(id, answers.get(id, "n"))

    session.chain.listen(
        lambda event: nursery.start_soon(answer_later, event.id) if isinstance(event, events.Question) else None
    )


_NAMED = frozenset({"point", "status", "decision", "by", "state", "origin", "urgency", "kind", "termination_reason"})
"""Fields with a fixed set of values. A journal with other values cannot be read."""


def with_text(text: str) -> list[events.Event]:
    """Return the session's events with ``text`` before every text and name of models, tools, files and users."""
    return [_with_text(event, text) for event in eventful_session().events]


def _with_text(event: Any, text: str) -> Any:
    changed = {}
    for each in fields(event):
        value = getattr(event, each.name)
        if each.name in _NAMED or value == "main":
            continue
        changed[each.name] = _put_before(value, text)
    return replace(event, **changed)


def _put_before(value: Any, text: str) -> Any:
    match value:
        case str():
            return text + value
        case tuple():
            return tuple(_put_before(each, text) for each in value)
        case dict():
            return {text + name: _put_before(each, text) for name, each in value.items()}
        case _ if is_dataclass(value):
            return _with_text(value, text)
        case _:
            return value
