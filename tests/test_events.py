"""The JSON form of events. Its field names are a contract with users' scripts (SPEC section 12)."""

import json
import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from support.agent_events import MAIN

from chain import events
from chain.events import AdjustmentView, Event, TaskView
from chain.messages import Usage
from chain.session.event_json import from_json, to_json
from chain.text import phrases
from chain.text.hunks import FileDiff, Hunk

RECEIPT = events.Receipt(
    agent="explore", iteration=2, id="L1", text="use B", state="delivered", point="D", waited_s=1.5, reason=""
)
RECEIPT_JSON = {
    "id": "L1", "text": "use B", "state": "delivered", "agent": "explore", "iteration": 2, "point": "D",
    "waited_s": 1.5, "reason": "", "kind": "",
}  # fmt: skip
USAGE_JSON = {
    "input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 3, "cache_write_tokens": 4, "cost_usd": 0.5,
}  # fmt: skip
QUESTION = events.Question(
    id="Q1", kind="approval", text="t", options=("a", "b"), tool_call_id="t1", name="edit_file", always="subject",
    subject="a.py", diff=FileDiff("a.py", (Hunk(old=1, new=1, rows=("-x", "+y"), unended="+"),)),
)  # fmt: skip
QUEUED = replace(MAIN.queued("focus on B"), kind="guidance", adjustment=AdjustmentView("focus_query", "B"))
LINE_FIELDS = ("id", "text", "kind", "urgency", "target_agent", "waiting", "origin")
INTERRUPTION = replace(MAIN.interruption(ids=("L1",)), tools_skipped=("shell",))

EXAMPLES: list[tuple[Event, str]] = [
    # An event of each type, and the names of its own fields in JSON.
    (events.Init(session="s", version="0.1.0", model="m", workspace="/w"), "init: session version model workspace"),
    (events.RunStarted(id="L1", query="q"), "run_started: id query"),
    (events.IterationStarted(max_iterations=20), "iteration_started: max_iterations"),
    (events.ThinkingDelta(text="t"), "thinking_delta: text"),
    (events.TextDelta(text="t"), "text_delta: text"),
    (events.Reply(text="t", tool_calls=1), "reply: text tool_calls"),
    (events.ToolCall(id="t1", name="shell", input={"a": [1]}), "tool_call: id name input parent_id"),
    (events.ToolProgress(id="t1", name="shell", text="t"), "tool_progress: id name text"),
    (
        events.ToolResult(id="t1", name="shell", text="t", is_error=False, seconds=0.5),
        "tool_result: id name text is_error seconds exit_code summary",
    ),
    (QUEUED, "line_queued: id text kind urgency target_agent waiting origin adjustment"),
    (
        events.LineRefused(**{name: getattr(QUEUED, name) for name in LINE_FIELDS}, reason="r"),
        "line_refused: id text kind urgency target_agent waiting origin reason adjustment",
    ),
    (
        INTERRUPTION,
        "user_interruption: ids message point prompt_source target_agent parent_id waited_s remaining tools_skipped "
        "trace_path",
    ),
    (RECEIPT, "receipt: id text state point waited_s reason kind"),
    (events.PlanChanged(tasks=(TaskView(1, "t", "DONE"),), by="user"), "plan_changed: tasks by"),
    (
        QUESTION,
        "question: id kind text options tool_call_id name preview protections always only_by_name subject diff "
        "escalations",
    ),
    (events.Answer(id="Q1", text="t", decision="allowed", by="user"), "answer: id text decision by escalation"),
    (
        events.AgentStarted(name="explore-1", kind="explore", parent_id="t1", task="look"),
        "agent_started: name kind parent_id task",
    ),
    (
        events.AgentEnded(name="explore-1", kind="explore", parent_id="t1", task="look", status="done"),
        "agent_ended: name kind parent_id task status",
    ),
    (events.Retry(attempt=1, delay_s=0.5, reason="r"), "retry: attempt delay_s reason"),
    (events.Notice(message="m"), "notice: message file line"),
    (events.Error(message="m", kind="model"), "error: message kind file line"),
    (
        events.UsageReport(
            input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4, cost_usd=None
        ),
        "usage: input_tokens output_tokens cache_read_tokens cache_write_tokens cost_usd context_tokens context_window",
    ),
    (
        events.Compaction(state="ended", by="fill", tokens_before=9, tokens_after=2, summary="s"),
        "compaction: state by tokens_before tokens_after summary",
    ),
    (
        events.Result(status="done", result="r"),
        "result: status result replies iterations usage partial phase_reached partial_results termination_reason "
        "trace_path exit_code receipts unsent program_ended",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("event", "contract"), EXAMPLES, ids=[contract.split(":")[0] for _, contract in EXAMPLES])
def test_the_fields_of_each_event(event: Event, contract: str) -> None:
    type, _, names = contract.partition(": ")
    raw = to_json(event)
    assert raw["type"] == type
    assert list(raw) == ["type", "agent", "iteration", "time", *names.split()]


def test_the_contract_covers_every_event() -> None:
    assert {type(event) for event, _ in EXAMPLES} == set(get_args(Event))
    assert len({event.type for event, _ in EXAMPLES}) == len(EXAMPLES)


RESULT = events.Result(status="done", result="r")
VALUES: list[tuple[Event, str, Any]] = [
    # An event, the name of a field, and its value in JSON.
    (events.PlanChanged(tasks=(TaskView(1, "t", "FAILED", "why"),), by="user"), "tasks",
     [{"n": 1, "text": "t", "state": "FAILED", "reason": "why"}]),
    (events.ToolCall(id="t1", name="shell", input={"a": [1, {"b": None}]}), "input", {"a": [1, {"b": None}]}),
    (events.ToolCall(id="t1", name="shell", input={}), "parent_id", "root"),
    (QUEUED, "adjustment", {"type": "focus_query", "value": "B"}),
    (INTERRUPTION, "ids", ["L1"]),
    (INTERRUPTION, "tools_skipped", ["shell"]),
    (INTERRUPTION, "trace_path", None),
    (replace(RESULT, replies=("a", "r")), "replies", ["a", "r"]),
    (replace(RESULT, receipts=(RECEIPT,)), "receipts", [RECEIPT_JSON]),
    (replace(RESULT, usage=Usage(1, 2, 3, 4, 0.5)), "usage", USAGE_JSON),
    (QUESTION, "diff", {"path": "a.py", "hunks": [{"old": 1, "new": 1, "rows": ["-x", "+y"], "unended": "+"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("event", "field", "value"), VALUES, ids=[f"{event.type}.{name}" for event, name, _ in VALUES])
def test_the_value_of_a_field(event: Event, field: str, value: Any) -> None:
    assert to_json(event)[field] == value


@pytest.mark.parametrize("event", [event for event, _ in EXAMPLES], ids=lambda event: event.type)
def test_events_survive_json(event: Event) -> None:
    copy = from_json(json.loads(json.dumps(to_json(event))))
    assert type(copy) is type(event)
    assert copy is not None
    assert to_json(copy) == to_json(event)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({}, id="no type"),
        pytest.param({"type": "of_a_newer_version", "text": "x"}, id="unknown type"),
        pytest.param({"type": ["reply"], "text": "x", "tool_calls": 0}, id="type that is a list"),
        pytest.param({**RECEIPT_JSON, "type": "receipt", "state": "of a newer version"}, id="unknown state"),
        pytest.param({"type": "reply", "text": 5, "tool_calls": 0}, id="number instead of text"),
        pytest.param({"type": "reply", "text": "x"}, id="missing field"),
        pytest.param({"type": "tool_call", "id": "a", "name": "b", "input": []}, id="list instead of object"),
    ],
)
def test_unknown_events_are_ignored(raw: dict[str, Any]) -> None:
    assert from_json(raw) is None


def test_a_safe_point_becomes_an_enum_member() -> None:
    row = json.loads(json.dumps(to_json(RECEIPT)))
    assert row["point"] == "D"
    receipt = from_json(row)
    assert isinstance(receipt, events.Receipt)
    assert receipt.point is events.Point.AFTER_TOOLS


@pytest.mark.parametrize("point", ["Z", ["D"]], ids=["unknown", "list"])
def test_an_event_at_an_unknown_point_is_ignored(point: object) -> None:
    assert from_json({**to_json(RECEIPT), "point": point}) is None


@pytest.mark.parametrize("point", events.Point)
def test_every_safe_point_has_a_description(point: events.Point) -> None:
    assert phrases.delivery_in_row(point, "")
    if point != events.Point.START:  # where a line is a query, not an interruption
        description = phrases.describe_delivery(replace(INTERRUPTION, iteration=0, point=point), "next")
        assert re.search(rf": \S.* \(point {point}\)", description)
