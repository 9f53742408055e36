"""The checks of the harness find what they are for: a good journal has no complaint, and each fault in it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from chain.text.wording import COMPACTED, SKIPPED
from crash import checks
from crash.checks import Program, Record

Change = Callable[[list[dict[str, Any]]], object]


def message(role: str, *blocks: Mapping[str, Any], ids: Sequence[str] = (), agent: str = "main") -> dict[str, Any]:
    point = ("start" if list(ids) == ["L1"] else "D") if ids else None
    return {
        "type": "message",
        "message": {"role": role, "content": list(blocks)},
        "agent": agent,
        "parent_id": "root",
        "is_interjection": False,
        "line_ids": list(ids),
        "point": point,
    }


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def call(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "write_file", "input": {}}


def result(id: str, text: str = "fine") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": text}


def line(id: str, text: str) -> dict[str, Any]:
    return {"type": "line", "id": id, "text": text, "kind": "redirect", "urgency": "next", "agent": "main"}


def receipt(id: str, state: str = "delivered") -> dict[str, Any]:
    return {"type": "receipt", "id": id, "state": state, "agent": "main", "iteration": 1}


def started(id: str) -> dict[str, Any]:
    return {"type": "tool_started", "id": id, "name": "write_file", "agent": "main"}


def finished(id: str, text: str = "") -> dict[str, Any]:
    return {"type": "tool_finished", "id": id, "agent": "main", "is_error": False, "seconds": 0.1, "text": text}


def question(id: str, of: str) -> dict[str, Any]:
    asked = {"type": "question", "id": id, "kind": "approval", "text": "May it?", "agent": "main", "tool_call_id": of}
    return {**asked, "name": "write_file", "preview": "made.txt +1"}


def answer(id: str, decision: str = "allowed") -> dict[str, Any]:
    return {"type": "answer", "id": id, "text": "y", "decision": decision, "by": "user", "agent": "main"}


def ended() -> dict[str, Any]:
    return {"type": "result", "status": "done", "result": "Made.", "iterations": 2}


def withdrawn(messages: int) -> dict[str, Any]:
    return {"type": "withdrawn", "messages": messages, "agent": "main", "reason": "refused"}


def agent(type: str, name: str = "explore-1") -> dict[str, Any]:
    more = {"kind": "explore", "task": "find"} if type == "agent_started" else {"status": "done", "iterations": 1}
    return {"type": type, "name": name, "parent_id": "c1", "agent": "main", **more}


def journal() -> list[dict[str, Any]]:
    """A session in which everything is as it should be."""
    return [
        line("L1", "make it"),
        message("user", text("make it"), ids=["L1"]),
        receipt("L1"),
        message("assistant", call("c1"), call("c2")),
        question("Q1", "c1"),
        answer("Q1"),
        started("c1"),
        finished("c1"),
        started("c2"),
        agent("agent_started"),
        line("L2", "todo: add sweep"),
        finished("c2"),
        agent("agent_ended"),
        message("user", result("c1"), result("c2")),
        {"type": "plan", "change": "added", "text": "sweep", "by": "user"},
        message("user", text("Also: todo: add sweep (Done: task 1 added: sweep)"), ids=["L2"]),
        receipt("L2"),
        message("assistant", text("Made.")),
        ended(),
    ]


def numbered(rows: Sequence[Mapping[str, Any]]) -> list[Record]:
    return [{"seq": n, "time": 1.0, **row} for n, row in enumerate(rows, 1)]


def complaints(journal: Sequence[Record], acknowledged: Sequence[str] = (), made: Sequence[str] = ()) -> set[str]:
    """The names of the checks that have something to say."""
    found = {
        "lost": checks.lost(acknowledged, {"Q1": "allowed"}, journal),
        "unsettled": checks.unsettled(journal),
        "repeated": checks.repeated(journal),
        "unallowed": checks.unallowed(journal),
        "effects": checks.unanswered_effects(made, journal),
        "unended": checks.unended(journal),
        "unfinished": checks.unfinished(journal),
        "withheld": checks.withheld(journal),
        "unreadable": checks.unreadable(journal),
        "invalid": checks.invalid([], journal),
    }
    return {name for name, complaints in found.items() if list(complaints)}


def without(type: str, n: int = 0) -> Change:
    return lambda rows: rows.remove([row for row in rows if row["type"] == type][n])


def also(*more: Mapping[str, Any]) -> Change:
    return lambda rows: rows.extend(dict(each) for each in more)


CASES: list[tuple[str, Change, set[str]]] = [
    ("nothing", lambda rows: None, set()),
    ("a line is gone", without("line", 0), {"lost", "repeated"}),
    ("a line still waits", also(line("L3", "wait")), {"unsettled"}),
    ("a line ends twice", also(receipt("L1")), {"unsettled"}),
    ("a line is delivered and handled", also(receipt("L1", "handled")), {"unsettled"}),
    ("a refusal gives a line back", also(receipt("L1", "returned")), set()),
    ("a line is delivered twice", also(message("user", text("again"), ids=["L1"]), ended()), {"repeated"}),
    ("a text is said twice", also(message("user", text("Then: make it")), ended()), {"repeated"}),
    ("a delivery without its message", also(line("L3", "wait"), receipt("L3")), {"repeated"}),
    ("a message without its receipt", without("receipt", 0), {"repeated", "unsettled"}),
    (
        "a task is added twice",
        also({"type": "plan", "change": "added", "text": "sweep", "by": "user"}),
        {"repeated"},
    ),
    ("a task is not added", without("plan"), {"repeated"}),
    ("an answer is gone", without("answer"), {"lost", "unallowed", "effects"}),
    ("an answer comes late", lambda rows: rows.insert(8, rows.pop(5)), {"unallowed"}),
    ("a refused call starts", lambda rows: rows[5].update(decision="refused"), {"lost", "unallowed", "effects"}),
    ("a question is open", also(question("Q2", "c3")), {"unallowed"}),
    ("an agent goes on", without("agent_ended"), {"unended"}),
    ("a result is missing", lambda rows: rows[13]["message"]["content"].pop(), {"invalid"}),
    ("a call has no results", without("message", 2), {"invalid"}),
    ("a run has no result", without("result"), {"unfinished"}),
    ("a query before the result", lambda rows: rows.insert(0, rows.pop()), {"unfinished"}),
    ("a line is withdrawn", also(withdrawn(2)), {"withheld"}),
    ("a withdrawn line comes back", also(withdrawn(2), receipt("L2", "returned")), {"repeated"}),
    ("a record has another form", lambda rows: rows[0].pop("kind"), {"unreadable"}),
]


@pytest.mark.parametrize(("change", "found"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_fault_has_its_complaint(change: Change, found: set[str]) -> None:
    rows = journal()
    change(rows)
    assert complaints(numbered(rows), ["make it", "!todo: add sweep"], ["made.txt"]) == found


def test_records_that_are_not_numbered_in_a_row_are_found() -> None:
    rows = numbered(journal())
    assert list(checks.unreadable([*rows[:3], *rows[4:]]))


OPEN = [message("assistant", call("c1"), call("c2"), call("c3")), started("c1"), started("c2"), finished("c2", "two")]
TOLD: list[tuple[str, str, str, bool]] = [
    ("[Interrupted: it was cut]", "two", SKIPPED, True),
    (SKIPPED, "two", SKIPPED, False),
    ("[Interrupted: it was cut]", "two", "[Interrupted: it was cut]", False),
    ("[Interrupted: it was cut]", SKIPPED, SKIPPED, False),
    ("fine", "two", SKIPPED, False),
]


@pytest.mark.parametrize(("one", "two", "three", "holds"), TOLD)
def test_what_is_told_of_open_calls(one: str, two: str, three: str, holds: bool) -> None:
    after = [*OPEN, message("user", result("c1", one), result("c2", two), result("c3", three))]
    assert (not list(checks.misjudged(OPEN, after))) == holds


def test_an_open_call_without_a_result_is_found() -> None:
    assert len(list(checks.misjudged(OPEN, OPEN))) == 3


def body(*texts: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [text(each) for each in texts]}]}


@pytest.mark.parametrize(
    ("first", "second", "cut", "holds"),
    [
        (["a", "b"], ["a", "b", "c"], False, True),
        (["a", "b"], ["a", "c", "d"], False, False),
        (["a", "b"], ["a", "c", "d"], True, True),
        (["a", "b"], ["x", "y"], False, True),
    ],
)
def test_a_conversation_that_another_program_changed_is_found(
    first: list[str], second: list[str], cut: bool, holds: bool
) -> None:
    reply = {"role": "assistant", "content": [text("so")]}
    before = {"messages": [*body(first[0])["messages"], reply, *body(*first[1:], "more")["messages"]]}
    after = {"messages": [*body(second[0])["messages"], reply, *body(*second[1:], "more")["messages"]]}
    assert (not list(checks.changed([Program([before], cut), Program([after], False)], []))) == holds


def test_words_that_a_compaction_lost_are_found() -> None:
    line = {"type": "line", "id": "L1", "text": "mind the SKU"}
    journal = [line, {**message("user", text("mind the SKU")), "line_ids": ["L1"]}]
    journal.append({"type": "compacted", "summary": "So far."})
    for said, holds in ("So far. [run 1, query] mind the SKU", True), ("So far.", False):
        asked = [Program([body("another"), body(f"{COMPACTED} {said}")], False)]
        assert (not list(checks.forgotten(asked, journal))) == holds


def test_torn_rows_are_passed_over() -> None:
    assert checks.rows(b'{"a":1}\n{"b":\0\n\0\0\n{"c":3}\n{"d":4}') == [{"a": 1}, {"c": 3}]
