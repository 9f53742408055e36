"""Rows above a prompt: what is not settled is in the tail, and is one row when it is settled."""

import re
from dataclasses import replace
from typing import Any

import pytest
from support.agent_events import CHILD, MAIN, AgentEvents
from support.rows import rows_of, tail_of

from chain import events
from chain.events import AdjustmentView, Event, Point, TaskView
from chain.text.wording import SKIPPED
from chain.tools.processes.probe import Protections
from chain.tools.processes.sandbox import Sandbox, ShellRules
from cli.show.child_agents import MOST_ROWS
from cli.show.renderer import Renderer
from cli.show.updating_renderer import UpdatingRenderer
from cli.show.user_lines import MAX_ROW_CHARS, waiting_row


def rows_and_tail(*stream: Event, width: int = 100, ascii: bool = False) -> tuple[list[str], list[str]]:
    """Return the settled rows, and those of the tail."""
    renderer = UpdatingRenderer(color=False, ascii=ascii, width=width)
    return rows_of(renderer, *stream), tail_of(renderer)


def words_of(rows: list[str]) -> str:
    return " ".join(" ".join(rows).split())


def call(name: str, time: float = 10.0, **input: object) -> events.ToolCall:
    return events.ToolCall(id="c1", name=name, input=input, time=time)


def tool_result(name: str, text: str, seconds: float = 0.1, **changes: Any) -> events.ToolResult:
    ended = events.ToolResult(id="c1", name=name, text=text, is_error=False, seconds=seconds, time=10.0 + seconds)
    return replace(ended, **changes)


def refusal(text: str) -> events.ToolResult:
    return tool_result("shell", text, 0, is_error=True)


def command_result(*summary: str, code: int | None = 0, seconds: float = 0.1) -> events.ToolResult:
    text = "what the model reads"
    return tool_result("shell", text, seconds, is_error=code is None, exit_code=code, summary=summary)


def queued(id: str, text: str, **changes: Any) -> events.LineQueued:
    return MAIN.queued(text, id, time=10, **changes)


def delivered(text: str) -> events.UserInterruption:
    return MAIN.interruption(text, ids=("L1",), waited_s=2.4, iteration=3)


MAKE = call("shell", command="make")

# -------------------------------------------------------------------------------------------------------------- calls

CALLS = {
    "search": (call("search_files", pattern="SKU", path="."), tool_result("search_files", "x", summary=("3 matches",)),
               '✓ search_files "SKU" · 3 matches'),
    "JSON": (call("clock", zone="UTC"), tool_result("clock", '{\n  "hour": 7\n}'), '✓ clock UTC · { "hour": 7 }'),
    "default argument": (call("list_files"), tool_result("list_files", "x", summary=("4 files",)),
                         "✓ list_files . · 4 files"),
    "unknown tool": (call("other", first="one", second="two"), tool_result("other", "fine\nmore"),
                     "✓ other one · fine"),
    "failed command": (MAKE, command_result("exit 2", "1 failed", code=2), "✗ shell  make · exit 2 · 1 failed"),
    "command": (MAKE, command_result("built"), "✓ shell  make · built"),
    "killed command": (MAKE, command_result("killed by SIGSEGV", code=-11), "✗ shell  make · killed by SIGSEGV"),
    "time limit": (MAKE, command_result("stopped after 5 s, its time limit", "two", code=None, seconds=5),
                   "✗ shell  make · stopped after 5 s, its time limit · two · 5.0 s"),
}  # fmt: skip


@pytest.mark.parametrize(("begin", "end", "row"), CALLS.values(), ids=CALLS)
def test_a_call_and_its_result_are_one_row(begin: events.ToolCall, end: events.ToolResult, row: str) -> None:
    rows, (row_in_tail, *_) = rows_and_tail(begin)
    assert rows == []
    assert row_in_tail.startswith(f"→ {begin.name} ")
    assert rows_and_tail(begin, end) == ([row], [])


def test_a_narrow_row_keeps_a_calls_summary() -> None:
    renderer = UpdatingRenderer(color=False, ascii=False, width=40)
    renderer.rows(call("shell", time=10.0, command="make " + "x" * 90))
    assert renderer.tail_at(52.0).endswith(" · 42 s")
    [row] = renderer.rows(command_result("exit 2", "3 failed", code=2, seconds=42))
    assert len(row) <= 40
    assert row.startswith("✗ shell  make x")
    assert " · exit 2 · 3 failed" in row


@pytest.mark.parametrize(
    ("code", "exit_status", "row"),
    [(1, ["exit 1"], "✗ shell  touch ../x · exit 1 · no"), (0, [], "✓ shell  touch ../x · no")],
    ids=["failed", "succeeded"],
)
def test_what_the_sandbox_denied_has_its_own_row(code: int, exit_status: list[str], row: str) -> None:
    denial = Sandbox(ShellRules(), Protections(writes=True)).refusal("x", "Permission denied", can_approve=True)
    end = command_result(*exit_status, denial, "no", code=code)
    rows, _ = rows_and_tail(call("shell", command="touch ../x"), end, width=44)
    assert rows == [row, "  [sandbox: writes denied; approve with o]"]


@pytest.mark.parametrize("make", [UpdatingRenderer, Renderer])
@pytest.mark.parametrize(("code", "is_red"), [(2, True), (0, False)])
def test_only_a_failed_command_is_red(make: type[Renderer], code: int, is_red: bool) -> None:
    renderer = make(color=True, ascii=False)
    renderer.rows(MAKE)
    assert ("\x1b[31m" in "".join(renderer.rows(command_result("bad", code=code)))) == is_red


@pytest.mark.parametrize(
    ("output", "end", "rows"),
    [
        ("built\n", [command_result("built")], ["✓ shell  make · built"]),
        ("one\ntwo\n", [], ["  one"]),
        ("one\ntwo\n", [command_result("two")], ["  one", "✓ shell  make · two"]),
    ],
    ids=["one row", "running", "two rows"],
)
def test_the_last_row_of_output_is_not_repeated(output: str, end: list[Event], rows: list[str]) -> None:
    settled, _ = rows_and_tail(MAKE, events.ToolProgress(id="c1", name="shell", text=output), *end)
    assert settled == rows


HOW_TO_ALLOW = "allow it with --allow 'shell(make test && git push origin main)'."
REFUSAL = refusal(f"shell needs approval, and no one is available to approve it; {HOW_TO_ALLOW}")


@pytest.mark.parametrize("command", ["make", "make" + " # why" * 40], ids=["short", "long"])
def test_a_refusal_says_how_to_allow_it(command: str) -> None:
    rows, _ = rows_and_tail(call("shell", command=command), REFUSAL)
    assert len(rows) == 2
    assert " ".join(rows).endswith(HOW_TO_ALLOW)


@pytest.mark.parametrize("width", [80, 50])
def test_a_headless_refusal_says_how_to_allow_it(width: int) -> None:
    rows = Renderer(color=False, ascii=False, width=width).rows(REFUSAL)
    assert " ".join(rows).endswith(HOW_TO_ALLOW)


def test_a_call_that_never_started_has_its_argument() -> None:
    skipped = tool_result("read_file", SKIPPED, 0, is_error=True, input={"path": "docs/a.md", "offset": 3})
    assert rows_and_tail(skipped) == ([f"✗ read_file docs/a.md · {SKIPPED}"], [])
    assert Renderer(color=False, ascii=False).rows(skipped) == [f"✗ read_file docs/a.md: {SKIPPED}"]


CANCELLED_CHILD = [CHILD.started(), CHILD.ended("cancelled")]
OTHER_CHILD = AgentEvents("explore-2", call=CHILD.call)
FINISHED_CHILD = [OTHER_CHILD.started(), OTHER_CHILD.ended()]
GOOD_RESULT = tool_result("pair", "one did")
ERROR_OF_CHILD = tool_result("pair", "explore-1 was stopped", is_error=True)
AGENTS_OF_CALL = {
    "error of one child": (CANCELLED_CHILD, ERROR_OF_CHILD, False),
    "error of one of two children": ([*CANCELLED_CHILD, *FINISHED_CHILD], ERROR_OF_CHILD, False),
    "good result": ([*CANCELLED_CHILD, *FINISHED_CHILD], GOOD_RESULT, True),
    "good result, cancelled last": ([*FINISHED_CHILD, *CANCELLED_CHILD], GOOD_RESULT, True),
}


@pytest.mark.parametrize(("agents", "end", "has_row"), AGENTS_OF_CALL.values(), ids=AGENTS_OF_CALL)
def test_a_cancelled_agent_replaces_its_calls_error(agents: list[Event], end: events.ToolResult, has_row: bool) -> None:
    rows, _ = rows_and_tail(call("pair"), *agents, end)
    assert sum("cancelled" in row for row in rows) == 1
    assert any(" pair" in row for row in rows) == has_row


def test_an_interrupted_agent_replaces_no_other_calls_row() -> None:
    # The call of explore-1 that started it has the id of the main agent's call.
    grandchild = AgentEvents("explore-2", call=MAKE.id, parent="explore-1")
    rows, _ = rows_and_tail(grandchild.started(), grandchild.ended("interrupted"), MAKE, command_result())
    assert rows[-1] == "✓ shell  make"


# -------------------------------------------------------------------------------------------------------------- lines

GUIDANCE = {"kind": "guidance", "adjustment": AdjustmentView("focus_query", "tests")}


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (queued("L1", "use B"), "📤 Interrupting: use B ⏳ next safe point"),
        (queued("L1", "!use B", urgency="urgent"), "📤 Interrupting: !use B ⚡ ASAP, may skip tools"),
        (queued("L1", "!!use B", urgency="now"), "📤 Interrupting: !!use B ⚡ now"),
        (queued("L1", "then: B", kind="follow-up"), "📤 Interrupting: then: B ⏳ after this run"),
        (queued("L1", "use B", target_agent="explore-1"), "📤 Interrupting → explore-1: use B ⏳ next safe point"),
        (queued("L1", "focus on x", **GUIDANCE), "📤 Interrupting: focus on x ↪ focus: tests ⏳ next safe point"),
    ],
    ids=["line", "urgent", "now", "follow-up", "to a child", "guidance"],
)
def test_a_line_is_in_the_tail_until_delivered(line: events.LineQueued, row: str) -> None:
    assert rows_and_tail(line) == ([], [row])
    [whole], tail = rows_and_tail(line, delivered("use B"))
    assert whole.startswith("🔔 INTERRUPTION at iteration 3: use B ")
    assert whole.endswith("✓ injected (2 s)")
    assert tail == []


def test_attachments_are_named_below_their_line() -> None:
    reason = "with a.txt (2 lines); without ../secret: outside the workspace"
    receipt = replace(MAIN.receipt("delivered", "see @a.txt", reason, "L1"), point=Point.AFTER_TOOLS, waited_s=1.0)
    rows, tail = rows_and_tail(queued("L1", "see @a.txt"), delivered("see @a.txt"), receipt, width=50)
    assert "INTERRUPTION at iteration 3: see @a.txt" in rows[0]
    assert words_of(rows).endswith(f"↪ {reason}")
    assert not tail


# A folded text has a third of the 100 columns.
@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("\n".join(f"row {n}" for n in range(200)), "row 0 [200 lines pasted]"),
        ("look at this: " + "x" * 40 + "\ny" * 30, f"look at this: {'x' * 19}... [31 lines pasted]"),
        ("{" + "0" * 3_000 + "}", "{" + "0" * 32 + "... [3,002 characters pasted]"),
        ("a\nb ", "a\n  b"),
    ],
    ids=["many rows", "long first row", "one long row", "short text"],
)
def test_a_long_pasted_text_is_folded_everywhere(text: str, folded: str) -> None:
    line = queued("L1", text)
    for rows, _ in (
        rows_and_tail(events.RunStarted(id="L1", query=text)),
        rows_and_tail(line, delivered(text)),
        rows_and_tail(line, MAIN.receipt("returned", text, id="L1")),
        (UpdatingRenderer(color=False, ascii=False, width=100).answer(text, "no"), []),
    ):
        assert folded in "\n".join(rows)
        assert "row 150" not in "\n".join(rows)


LONG_TEXT = " ".join(f"word{n}" for n in range(60))


@pytest.mark.parametrize("width", [40, 100])
@pytest.mark.parametrize("state", ["returned", "dropped"])
def test_only_a_waiting_line_is_cut(width: int, state: Any) -> None:
    _, tail = rows_and_tail(queued("L1", LONG_TEXT), width=width)
    assert all(len(row) <= width for row in tail)
    assert len(tail) <= 2
    receipt = MAIN.receipt(state, LONG_TEXT, "interrupted", "L1")
    rows, tail = rows_and_tail(queued("L1", LONG_TEXT), receipt, width=width)
    assert words_of(rows) == f"↩ {state.capitalize()} (interrupted): {LONG_TEXT}"
    assert tail == []


def test_unsettled_rows_are_shown_at_the_end() -> None:
    renderer = UpdatingRenderer(color=False, ascii=False)
    assert rows_of(renderer, MAKE, queued("L1", LONG_TEXT)) == []
    row_of_call, *rows_of_line = renderer.unsettled_rows()
    assert row_of_call == "→ shell  make"
    assert LONG_TEXT in words_of(rows_of_line)
    assert renderer.unsettled_rows() == []
    assert renderer.tail == ""


def test_a_long_waiting_line_is_not_processed_whole() -> None:
    text = "focus on " + "word " * 100_000
    line = queued("L1", text, adjustment=AdjustmentView("focus_query", text))
    assert sum(map(len, waiting_row(line, str))) < 3 * MAX_ROW_CHARS


@pytest.mark.parametrize("width", [40, 100])
@pytest.mark.parametrize("children", [0, 20])
@pytest.mark.parametrize("calls", [0, 20])
@pytest.mark.parametrize("lines", [1, 10])
def test_the_tail_is_bounded_and_counts_the_rest(width: int, children: int, calls: int, lines: int) -> None:
    stream: list[Event] = [AgentEvents(f"explore-{n}", f"a{n}").started() for n in range(children)]
    stream += [replace(MAKE, id=f"c{n}") for n in range(calls)]
    stream += [events.ToolProgress(id="c0", name="shell", text="said\n" * 40)] if calls else []
    stream += [queued(f"L{n}", f"line {n} {LONG_TEXT}") for n in range(lines)] + [retry(2, time=10)]
    _, tail = rows_and_tail(*stream, width=width)
    assert len([row for row in tail if row]) <= MOST_ROWS
    assert f"line {lines - 1} " in " ".join(tail)
    for sign, count, unit in (("  ●", children, "agent"), ("→", calls, "call"), ("📤 Int", lines, "line")):
        rows = sum(row.startswith(sign) for row in tail)
        without_rows = sum(map(int, re.findall(rf"(\d+) more {unit}", "\n".join(tail))))
        assert rows + without_rows == count


# ------------------------------------------------------------------------------------------------ retries and thoughts


def retry(attempt: int, time: float, delay_s: float = 12) -> events.Retry:
    return events.Retry(attempt=attempt, delay_s=delay_s, reason="overloaded: try later", time=time)


def test_retries_are_one_row_that_counts_down() -> None:
    renderer = UpdatingRenderer(color=False, ascii=False)
    assert rows_of(renderer, *(retry(n, time=10.0 * n, delay_s=12) for n in range(1, 5))) == []
    assert renderer.tail_at(40.0) == "↻ overloaded, again in 12 s (attempt 4), Esc ends"
    assert renderer.tail_at(45.5) == "↻ overloaded, again in 7 s (attempt 4), Esc ends"
    assert renderer.rows(events.TextDelta(text="Hi", time=53.0)) == ["↻ overloaded 4 times, continued after 43 s"]
    assert renderer.tail == "\nHi"


@pytest.mark.parametrize(
    ("delay_s", "end", "rows"),
    [
        (0.5, events.TextDelta(text="Hi", time=11), []),
        (12, events.Error(message="away", kind="model", time=40), ["↻ overloaded, given up after 30 s"]),
        (12, events.Result(status="error", result="", time=49), ["↻ overloaded, given up after 39 s"]),
        (12, events.Result(status="interrupted", result="", time=49), ["↻ overloaded, stopped after 39 s"]),
        (12, events.Result(status="cancelled_with_partial", result="", time=49), ["↻ overloaded, stopped after 39 s"]),
    ],
    ids=["short delay", "error", "failed run", "interrupted run", "cancelled run"],
)
def test_a_single_retry_has_a_row_if_noticed(delay_s: float, end: Event, rows: list[str]) -> None:
    settled, _ = rows_and_tail(retry(1, time=10, delay_s=delay_s), end)
    assert [row for row in settled if "overloaded" in row] == rows


def test_a_childs_retry_has_no_countdown() -> None:
    started = CHILD.started(task="find")
    again = replace(retry(2, time=10), agent="explore-1")
    assert rows_and_tail(started, again) == (["  ▶ explore-1: find"], ["  ● explore-1 · asks again · find"])
    ended = replace(CHILD.text_delta("Hi"), time=30)
    rows, _ = rows_and_tail(started, again, replace(again, attempt=3, time=20), ended)
    assert rows[1:] == ["  ↻ explore-1: overloaded 2 times, continued after 20 s"]


THOUGHT = [events.ThinkingDelta(text="Hm.\nPer", time=10), events.ThinkingDelta(text="haps.", time=12)]


@pytest.mark.parametrize(
    ("is_shown_at_first", "is_shown_later", "rows"),
    [
        (False, False, ["thought 4 s"]),
        (True, True, ["Hm.", "Perhaps."]),
        (True, False, ["Hm.", "Perhaps."]),
        (False, True, ["haps."]),
    ],
    ids=["hidden", "shown", "hidden too late", "shown late"],
)
def test_a_thought_is_one_row_by_default(is_shown_at_first: bool, is_shown_later: bool, rows: list[str]) -> None:
    renderer, settled = UpdatingRenderer(color=False, ascii=False), list[str]()
    for is_shown, delta in zip((is_shown_at_first, is_shown_later), THOUGHT, strict=True):
        renderer.shows_thinking = is_shown
        settled += renderer.rows(delta)
    settled += renderer.rows(replace(MAIN.reply("Done."), time=14))  # 4 s after the thought began
    assert settled == [*rows, "", "Done."]


def test_an_unfinished_thought_has_no_row() -> None:
    assert rows_and_tail(*THOUGHT) == ([], []), "only the toolbar mentions an unfinished thought"


# ----------------------------------------------------------------------------------------------------------- questions

ASKED = events.Question(
    id="Q1", kind="approval", text="Allow shell: make", options=(), tool_call_id="c1", name="shell", subject="make"
)


def answer(decision: Any, by: Any, text: str = "", id: str = "Q1", **changes: Any) -> events.Answer:
    return events.Answer(id=id, text=text, decision=decision, by=by, **changes)


ALLOWED = answer("allowed", "user")
ANSWERS_TO_HOSTS = [
    event
    for id in ("Q2", "Q3")
    for event in (replace(ASKED, id=id), answer("allowed", "config", id=id, is_for_always=True))
]
ANSWERED_CALLS: dict[str, tuple[list[Event], list[str]]] = {
    "allowed by the configuration": (
        [answer("allowed", "config"), MAKE, command_result()], ["✓ shell  make · allowed without asking"]
    ),
    "refused without a user": (
        [answer("refused", "nobody"), refusal("shell needs approval.")], ["✗ shell · shell needs approval."]
    ),
    "allowed": ([ALLOWED, MAKE, command_result()], ["❓ Q1 Allow shell: make", "✓ shell  make · Q1 allowed"]),
    "refused": (
        [answer("refused", "user", "too slow"), refusal("refused")],
        ["❓ Q1 Allow shell: make", "✗ shell  make · refused: too slow"],
    ),
    "hosts that the running call asks for": (
        [ALLOWED, MAKE, *ANSWERS_TO_HOSTS, command_result()],
        ["❓ Q1 Allow shell: make", '✓ shell  make · Q1 allowed, allowed: you said "always" before'],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("stream", "rows"), ANSWERED_CALLS.values(), ids=ANSWERED_CALLS)
def test_the_row_of_a_call_has_its_answer(stream: list[Event], rows: list[str]) -> None:
    settled, _ = rows_and_tail(ASKED, *stream)
    assert settled == rows


@pytest.mark.parametrize(
    ("width", "rows"),
    [
        (100, ["y allow once · a allow every shell until you leave · n refuse · or a space, then the reason"]),
        (60, ["y allow once · a allow every shell until you leave", "n refuse · or a space, then the reason"]),
        (24, ["y allow once", "a allow every shell", "until you leave", "n refuse", "or a space, then the",
              "reason"]),
    ],
)  # fmt: skip
def test_possible_answers_are_cut_for_the_width(width: int, rows: list[str]) -> None:
    rows = [f"  {row}" for row in rows]
    assert Renderer(color=False, ascii=False, width=width).hint(ASKED) == rows
    renderer = UpdatingRenderer(color=False, ascii=False, width=80)
    renderer.rows(ASKED)
    renderer.hint(ASKED)
    renderer.resize(width)
    assert tail_of(renderer) == rows


# -------------------------------------------------------------------------------------------------------- a whole run


def test_blank_rows_separate_the_parts_of_a_run() -> None:
    stream: list[Event] = [
        events.RunStarted(id="L0", query="go", time=1),
        events.IterationStarted(iteration=1, max_iterations=20, time=1),
        events.ThinkingDelta(text="Hm.", time=2),
        events.Reply(text="I look.", tool_calls=1, time=4),
        call("read_file", path="a"),
        tool_result("read_file", "x", summary=("1 line",)),
        queued("L1", "use B"),
        delivered("use B"),
        events.Reply(text="Found.", tool_calls=0, time=12),
        events.Result(status="done", result="Found.", replies=("Found.",), time=13, iterations=2),
    ]
    rows, tail = rows_and_tail(*stream)
    rows_without_numbers = [re.sub(r"( \(|,).*", "", row) for row in rows]
    assert rows_without_numbers == [
        "▶ go",
        "",
        "thought 2 s",
        "",
        "I look.",
        "✓ read_file a · 1 line",
        "🔔 INTERRUPTION at iteration 3: use B ✓ injected",
        "",
        "Found.",
        "",
        "✓ done",
    ]
    assert tail == []
    ascii_rows, _ = rows_and_tail(*stream, ascii=True)
    assert all(row.isascii() for row in ascii_rows)


@pytest.mark.parametrize(
    ("state", "row"), [("DONE", "Plan 1/3: [✓] 2. task 2"), ("FAILED", "Plan 1/3, 1 failed: [✗] 2. task 2")]
)
def test_one_changed_task_is_one_row(state: Any, row: str) -> None:
    tasks = tuple(TaskView(n, f"task {n}", "PENDING") for n in (1, 2, 3))
    changed = (tasks[0], TaskView(2, "task 2", state), tasks[2])
    renderer = UpdatingRenderer(color=False, ascii=False, width=100)
    renderer.rows(events.PlanChanged(tasks=tasks, by="main"))
    assert renderer.rows(events.PlanChanged(tasks=changed, by="main")) == [row]


def test_the_partial_result_of_a_stop_is_shown() -> None:
    head, ask = "Here's what I found before you cancelled:", "What would you like to do instead?"
    text = f"{head}\n• gate: a\n[1 done, 2 skipped]\n\n{ask}"
    rows, _ = rows_and_tail(events.Result(status="cancelled_with_partial", result=text, short=f"[1 done]\n{ask}"))
    # The whole result is shown, and not its short form.
    assert rows == [*text.split("\n"), "", "⏹ cancelled with partial, 0 iterations, 0 tokens"]
