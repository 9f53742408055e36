"""Rows where they can be updated: what is not settled stands below, and is one row once it is."""

from dataclasses import replace

import pytest
from support.painted import bare
from support.tellers import MAIN

from chain import events
from chain.events import AdjustmentView, Event, TaskView
from chain.text.wording import SKIPPED
from chain.tools.processes.probe import Protections
from chain.tools.processes.sandbox import Sandbox, ShellRules
from cli.show.child_agents import MOST_ROWS
from cli.show.renderer import Renderer
from cli.show.updating import UpdatingRenderer
from cli.show.user_lines import MAX_ROW_CHARS, waiting_row


def shown(*happened: Event, width: int = 100, ascii: bool = False, color: bool = False) -> tuple[list[str], list[str]]:
    """The settled rows, and those that are not."""
    renderer = UpdatingRenderer(color=color, ascii=ascii, width=width)
    rows = [bare(row) for event in happened for row in renderer.lines(event)]
    return rows, [bare(row) for row in renderer.tail.split("\n")] if renderer.tail else []


def call(name: str, time: float = 10.0, **input: object) -> events.ToolCall:
    return events.ToolCall(id="c1", name=name, input=input, time=time)


def result(name: str, text: str, seconds: float = 0.1, *, is_error: bool = False, id: str = "c1") -> events.ToolResult:
    return events.ToolResult(id=id, name=name, text=text, is_error=is_error, seconds=seconds, time=10.0 + seconds)


def command(*summary: str, code: int | None = 0, seconds: float = 0.1) -> events.ToolResult:
    text = "what the model reads"
    return replace(result("shell", text, seconds, is_error=code is None), exit_code=code, summary=summary)


def queued(id: str, text: str, urgency: str = "next", kind: str = "redirect", to: str = "main") -> events.LineQueued:
    adjustment = AdjustmentView("focus_query", "tests") if kind == "guidance" else None
    return events.LineQueued(
        id=id, text=text, kind=kind, urgency=urgency, target_agent=to, waiting=1, origin="prompt",
        adjustment=adjustment, time=10,
    )  # fmt: skip


def landed(*ids: str, message: str) -> events.UserInterruption:
    return replace(MAIN.interruption(message), ids=ids, waited_s=2.4, iteration=3)


CALLS = [
    (
        call("search_files", pattern="SKU", path="."),
        replace(result("search_files", "x"), summary=("3 matches",)),
        '✓ search_files "SKU" · 3 matches',
    ),
    (
        call("clock", zone="UTC"),
        result("clock", '{\n  "zone": "UTC",\n  "hour": 7\n}'),
        '✓ clock UTC · { "zone": "UTC", "hour": 7 }',
    ),
    (call("list_files"), replace(result("list_files", "x"), summary=("4 files",)), "✓ list_files . · 4 files"),
    (call("other", first="one", second="two"), result("other", "fine\nmore"), "✓ other one · fine"),
    (
        call("shell", command="make test"),
        command("exit 2", "1 failed, 2 passed", code=2),
        "✗ shell  make test · exit 2 · 1 failed, 2 passed",
    ),
    (call("shell", command="make"), command("built"), "✓ shell  make · built"),
    (call("shell", command="make"), command(), "✓ shell  make"),
    (call("shell", command="x"), command("killed by SIGSEGV", code=-11), "✗ shell  x · killed by SIGSEGV"),
]


@pytest.mark.parametrize(("begun", "ended", "row"), CALLS)
def test_a_call_and_its_result_are_one_row(begun: events.ToolCall, ended: events.ToolResult, row: str) -> None:
    rows, tail = shown(begun)
    assert rows == []
    assert tail[0].startswith(f"→ {begun.name} ")
    assert shown(begun, ended) == ([row], [])


def test_a_long_call_shows_its_seconds_and_keeps_its_facts_on_a_narrow_terminal() -> None:
    renderer = UpdatingRenderer(color=False, ascii=False, width=40)
    renderer.lines(call("shell", command="make " + "x" * 90))
    assert renderer.tail_at(52.0).endswith(" · 42 s")
    [row] = renderer.lines(command("exit 2", "3 failed", code=2, seconds=42))
    assert len(row) <= 40
    assert row.startswith("✗ shell  make x")
    assert " · exit 2 · 3 failed" in row


@pytest.mark.parametrize(("code", "row"), [(1, "✗ shell  touch ../x · exit 1 · no"), (0, "✓ shell  touch ../x · no")])
def test_what_the_sandbox_denied_is_a_row_of_its_own_that_is_not_cut(code: int, row: str) -> None:
    denied = Sandbox(ShellRules(), Protections(writes=True)).refusal("x", "Permission denied", can_approve=True)
    summary = (f"exit {code}", denied, "no") if code else (denied, "no")
    rows = shown(call("shell", command="touch ../x"), command(*summary, code=code), width=44)[0]
    assert rows == [row, "  [sandbox: writes denied; approve with o]"]


def test_a_failed_command_is_red_and_a_good_one_is_not() -> None:
    for code, red in ((2, True), (0, False)):
        renderer = UpdatingRenderer(color=True, ascii=False)
        renderer.lines(call("shell", command="make"))
        [row] = renderer.lines(command(code=code))
        assert ("\x1b[31m" in row) == red
    [row] = Renderer(color=True, ascii=False).lines(command("exit 2", "bad", code=2))
    assert "\x1b[31m" in row
    assert bare(row) == "✗ shell (0.1 s): exit 2 · bad", "headless too"


def test_the_only_row_of_a_command_is_not_said_twice() -> None:
    progress = events.ToolProgress(id="c1", name="shell", text="built\n")
    more = events.ToolProgress(id="c1", name="shell", text="one\ntwo\n")
    end = command("built")
    assert shown(call("shell", command="make"), progress, end)[0] == ["✓ shell  make · built"]
    assert shown(call("shell", command="make"), more)[0] == ["  one"]
    rows, _ = shown(call("shell", command="make"), more, command("two"))
    assert rows == ["  one", "✓ shell  make · two"]


WAITING = [
    (queued("L1", "use B"), "📤 Interrupting: use B ⏳ next safe point"),
    (queued("L1", "!use B", "urgent"), "📤 Interrupting: !use B ⚡ ASAP, may skip tools"),
    (queued("L1", "!!use B", "now"), "📤 Interrupting: !!use B ⚡ now"),
    (queued("L1", "then: B", kind="follow-up"), "📤 Interrupting: then: B ⏳ after this run"),
    (queued("L1", "use B", to="explore-1"), "📤 Interrupting → explore-1: use B ⏳ next safe point"),
    (
        queued("L1", "focus on tests", kind="guidance"),
        "📤 Interrupting: focus on tests ↪\xa0focus: tests ⏳ next safe point",
    ),
]


@pytest.mark.parametrize(("line", "row"), WAITING)
def test_a_line_waits_below_and_is_one_row_when_it_is_in(line: events.LineQueued, row: str) -> None:
    rows, [waiting] = shown(line)
    assert rows == []
    assert waiting == row.replace("\xa0", " ")
    [told], tail = shown(line, landed("L1", message="use B"))
    assert told.startswith("🔔 INTERRUPTION at iteration 3: use B ")
    assert told.endswith("✓ injected (2 s)")
    assert tail == []


def test_many_lines_are_counted_and_the_latest_is_seen() -> None:
    lines = [queued(f"L{n}", f"line {n}") for n in range(1, 11)]
    _, tail = shown(*lines)
    assert tail[0] == "📤 7 more lines"
    assert [row.split(": ")[1][:7] for row in tail[1:]] == ["line 8 ", "line 9 ", "line 10"]


LONG_TEXTS = {
    "\n".join(f"row {n}" for n in range(200)): "row 0 [200 lines pasted]",
    "look at this: " + "x" * 40 + "\ny" * 30: f"look at this: {'x' * 19}... [31 lines pasted]",
    "{" + "0" * 3_000 + "}": "{" + "0" * 32 + "... [3,002 characters pasted]",
    "\n".join("ab") + " ": "a\n  b",
}


@pytest.mark.parametrize(("text", "shows"), LONG_TEXTS.items())
def test_a_long_pasted_text_is_one_row_wherever_it_is_shown_once_it_is_sent(text: str, shows: str) -> None:
    line = queued("L1", text)
    found = {
        "a query": shown(events.RunStarted(id="L1", query=text), width=100)[0],
        "delivered": shown(line, landed("L1", message=text), width=100)[0],
        "returned": shown(line, events.Receipt(id="L1", text=text, state="returned"), width=100)[0],
        "a command": UpdatingRenderer(color=False, ascii=False, width=100).answer(text, "no"),
    }
    for where, rows in found.items():
        assert shows in "\n".join(rows), where
        assert "row 150" not in "\n".join(rows), where


@pytest.mark.parametrize("width", [40, 100])
def test_a_long_line_is_cut_while_it_waits_and_whole_when_it_is_settled(width: int) -> None:
    text = " ".join(f"word{n}" for n in range(60))
    _, tail = shown(queued("L1", text), width=width)
    assert all(len(row) <= width for row in tail)
    assert len(tail) <= 2
    for state in ("returned", "dropped"):
        receipt = events.Receipt(id="L1", text=text, state=state, reason="interrupted")  # type: ignore[arg-type]
        rows, tail = shown(queued("L1", text), receipt, width=width)
        assert " ".join(" ".join(rows).split()) == f"↩ {state.capitalize()} (interrupted): {text}"
        assert tail == []


def test_what_is_never_settled_is_shown_whole_at_the_end() -> None:
    renderer = UpdatingRenderer(color=False, ascii=False)
    text = " ".join(f"word{n}" for n in range(60))
    for event in (call("shell", command="make"), queued("L1", text)):
        assert renderer.lines(event) == []
    rows = renderer.rest()
    assert rows[0] == "→ shell  make"
    assert text in " ".join(" ".join(rows).split())
    assert (renderer.rest(), renderer.tail) == ([], "")


def retry(attempt: int, time: float, delay_s: float = 12) -> events.Retry:
    return events.Retry(attempt=attempt, delay_s=delay_s, reason="overloaded: try later", time=time)


def test_retries_are_one_row_that_counts_down() -> None:
    renderer = UpdatingRenderer(color=False, ascii=False)
    for n in range(1, 5):
        assert renderer.lines(retry(n, 10.0 * n)) == []
    assert renderer.tail_at(40.0) == "↻ overloaded, again in 12 s (attempt 4), Esc ends"
    assert renderer.tail_at(45.5) == "↻ overloaded, again in 7 s (attempt 4), Esc ends"
    assert renderer.lines(events.TextDelta(text="Hi", time=53.0)) == ["↻ overloaded 4 times, went on after 43 s"]
    assert renderer.tail == "\nHi"
    assert shown(retry(1, 10, 0.5), events.TextDelta(text="Hi", time=11))[0] == [], "nobody has noticed"
    assert shown(retry(1, 10), events.Error(message="away", kind="model", time=40))[0][0] == (
        "↻ overloaded, given up after 30 s"
    )


def test_a_thought_is_one_row_unless_it_is_to_be_whole() -> None:
    thinks = [events.ThinkingDelta(text="Hm.\n", time=10), events.ThinkingDelta(text="Yes.\n", time=12)]
    reply = events.Reply(text="Done.", tool_calls=0, time=14)
    assert shown(*thinks) == ([], []), "the toolbar says so"
    assert shown(*thinks, reply)[0] == ["thought 4 s", "", "Done."]
    renderer = UpdatingRenderer(color=False, ascii=False)
    renderer.shows_thinking = True
    assert [row for event in (*thinks, reply) for row in renderer.lines(event)] == ["Hm.", "Yes.", "", "Done."]


def question(kind: str = "approval", call: str = "c1") -> events.Question:
    text = "Allow shell: make" if kind == "approval" else "Which?"
    about = "make" if kind == "approval" else ""
    return events.Question(
        id="Q1",
        kind=kind,  # type: ignore[arg-type]
        text=text,
        options=(),
        tool_call_id=call,
        name="shell",
        subject=about,
    )


def answer(decision: str, by: str, text: str = "") -> events.Answer:
    return events.Answer(id="Q1", text=text, decision=decision, by=by)  # type: ignore[arg-type]


def test_a_question_that_nobody_got_is_a_suffix_of_its_call() -> None:
    happened = [question(), answer("allowed", "config"), call("shell", command="make"), command()]
    assert shown(*happened)[0] == ["✓ shell  make · allowed without asking"]
    denied = result("shell", "shell needs approval, and no one is available to approve it.", 0, is_error=True)
    rows, _ = shown(question(), answer("refused", "nobody"), denied)
    assert len(rows) == 1


def test_an_answer_is_said_in_the_row_of_the_call() -> None:
    rows, _ = shown(question(), answer("refused", "user", "too slow"), result("shell", "refused", 0, is_error=True))
    assert rows == ["❓ Q1 Allow shell: make", "✗ shell  make · refused: too slow"]
    happened = [question(), answer("allowed", "user"), call("shell", command="make"), command()]
    assert shown(*happened)[0] == ["❓ Q1 Allow shell: make", "✓ shell  make · Q1 allowed"]


def test_one_blank_row_parts_what_is_different_and_no_iteration_is_shown() -> None:
    happened: list[Event] = [
        events.RunStarted(id="L1", query="go", time=1),
        events.IterationStarted(iteration=1, max_iterations=20, time=1),
        events.ThinkingDelta(text="Hm.", time=2),
        events.Reply(text="I look.", tool_calls=1, time=4),
        call("read_file", path="a"),
        replace(result("read_file", "x"), summary=("1 line",)),
        queued("L2", "use B"),
        landed("L2", message="use B"),
        events.Reply(text="Found.", tool_calls=0, time=12),
        events.Result(status="done", result="Found.", replies=("Found.",), time=13, iterations=2),
    ]
    rows, tail = shown(*happened)
    assert [row.split(" (")[0].split(",")[0] for row in rows] == [
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
    assert all(row.isascii() for row in shown(*happened, ascii=True)[0])


def test_of_a_plan_one_changed_task_is_one_row() -> None:
    tasks = tuple(TaskView(n, f"task {n}", "PENDING") for n in (1, 2, 3))
    rows, _ = shown(events.PlanChanged(tasks=tasks, by="main"))
    assert len(rows) == 4
    changed = (tasks[0], TaskView(2, "task 2", "DONE"), tasks[2])
    rows, _ = shown(events.PlanChanged(tasks=tasks, by="main"), events.PlanChanged(tasks=changed, by="main"))
    assert rows[4:] == ["Plan 1/3: [✓] 2. task 2"]
    failed = (tasks[0], TaskView(2, "task 2", "FAILED"), tasks[2])
    rows, _ = shown(events.PlanChanged(tasks=tasks, by="main"), events.PlanChanged(tasks=failed, by="main"))
    assert rows[4:] == ["Plan 1/3, 1 failed: [✗] 2. task 2"]


def test_an_agent_that_was_stopped_is_one_row() -> None:
    about = {"name": "explore-1", "kind": "explore", "parent_id": "c1", "task": "find"}
    happened = [
        call("explore", task="find"),
        events.AgentStarted(**about),
        events.AgentEnded(**about, status="cancelled_with_partial"),
        result("explore", "explore-1 was stopped", is_error=True),
    ]
    [_, row] = shown(*happened)[0]
    assert row.startswith("  ⏹ explore-1: cancelled with partial, 0 iterations, 0 tool calls, 0 tokens, ")


def test_what_a_stop_found_is_shown() -> None:
    head, ask = "Here's what I found before you cancelled:", "What would you like to do instead?"
    text = f"{head}\n• gate: a\n[1 done, 2 skipped]\n\n{ask}"
    rows, _ = shown(events.Result(status="cancelled_with_partial", result=text, short=f"[1 done]\n{ask}"))
    assert rows[:5] == text.split("\n")


def test_how_to_answer_is_cut_for_the_width_that_the_terminal_has_now() -> None:
    renderer = UpdatingRenderer(color=False, ascii=False, width=100)
    renderer.lines(question())
    renderer.hint(question())
    assert len(renderer.tail.split("\n")) == 1
    renderer.resize(60)
    rows = ["y allow once · a allow every shell until you leave", "n refuse · or say why not (a space first)"]
    assert renderer.tail.split("\n") == [f"  {row}" for row in rows]


COMMAND = "make test && git push origin main"
WAY_OUT = f"allow it with --allow 'shell({COMMAND})'."


@pytest.mark.parametrize("command", [COMMAND, COMMAND + " # why" * 40])
def test_a_refused_command_keeps_what_would_allow_it(command: str) -> None:
    why = f"shell needs approval, and no one is available to approve it; {WAY_OUT}"
    refused = result("shell", why, 0, is_error=True)
    rows, _ = shown(call("shell", command=command), refused)
    assert len(rows) == 2
    assert " ".join(rows).endswith(WAY_OUT)
    for width in (80, 50):
        headless = Renderer(color=False, ascii=False, width=width).lines(refused)
        assert " ".join(headless).endswith(WAY_OUT)


def test_a_command_that_ran_too_long_says_so_in_one_row() -> None:
    ended = command("stopped after 5 s, its time limit", "two", code=None, seconds=5)
    [row] = shown(call("shell", command="make"), ended)[0]
    assert row == "✗ shell  make · stopped after 5 s, its time limit · two · 5.0 s"
    [row] = Renderer(color=False, ascii=False).lines(ended)
    assert row == "✗ shell (5.0 s): stopped after 5 s, its time limit · two"


def test_a_call_that_never_started_says_what_it_was_about() -> None:
    skipped = replace(result("read_file", SKIPPED, 0, is_error=True), input={"path": "docs/a.md", "offset": 3})
    assert shown(skipped)[0] == [f"✗ read_file docs/a.md · {SKIPPED}"]
    assert Renderer(color=False, ascii=False).lines(skipped) == [f"✗ read_file docs/a.md: {SKIPPED}"]


@pytest.mark.parametrize("whole_at_first", [False, True])
def test_of_a_thought_nothing_is_lost_when_it_is_switched_amid_it(whole_at_first: bool) -> None:
    renderer = UpdatingRenderer(color=False, ascii=False)
    renderer.shows_thinking = whole_at_first
    rows = renderer.lines(events.ThinkingDelta(text="Hm.\nPer", time=10))
    renderer.shows_thinking = not whole_at_first
    rows += renderer.lines(events.ThinkingDelta(text="haps.", time=12))
    assert "thinking" not in renderer.tail
    rows += renderer.lines(events.Reply(text="Done.", tool_calls=0, time=14))
    assert rows == [*(["Hm.", "Perhaps."] if whole_at_first else ["haps."]), "", "Done."]


def test_only_the_main_agent_has_a_countdown() -> None:
    about = {"name": "explore-1", "kind": "explore", "parent_id": "c1", "task": "find"}
    again = replace(retry(2, 10), agent="explore-1")
    rows, tail = shown(call("explore", task="find"), events.AgentStarted(**about), again)
    assert rows == ["  ▶ explore-1: find"]
    assert tail == ["  ● explore-1 · asks again · find"]
    rows, _ = shown(
        events.AgentStarted(**about),
        again,
        replace(retry(3, 20), agent="explore-1"),
        events.TextDelta(text="Hi", time=30, agent="explore-1"),
    )
    assert rows[1:] == ["  ↻ explore-1: overloaded 2 times, went on after 20 s"]


@pytest.mark.parametrize("width", [40, 100])
@pytest.mark.parametrize("children", [0, 20])
@pytest.mark.parametrize("calls", [0, 20])
@pytest.mark.parametrize("lines", [1, 20])
def test_the_rows_below_are_bounded_and_what_is_left_out_is_counted(
    width: int, children: int, calls: int, lines: int
) -> None:
    text = " ".join(f"word{n}" for n in range(60))
    happened: list[Event] = [
        events.AgentStarted(name=f"explore-{n}", kind="explore", parent_id=f"a{n}", task="find")
        for n in range(children)
    ]
    happened += [replace(call("shell", command="make"), id=f"c{n}") for n in range(calls)]
    happened += [events.ToolProgress(id="c0", name="shell", text="said\n" * 40)] if calls else []
    happened += [queued(f"L{n}", text) for n in range(lines)] + [retry(2, 10)]
    _, tail = shown(*happened, width=width)
    assert len([row for row in tail if row]) <= MOST_ROWS
    for sign, count, unit in (("  ●", children, "agent"), ("→", calls, "call"), ("📤 Int", lines, "line")):
        seen = sum(row.startswith(sign) for row in tail)
        counted = [int(row.split(f" more {unit}")[0].split()[-1]) for row in tail if f" more {unit}" in row]
        assert seen + sum(counted) == count


def test_of_a_long_line_that_waits_only_the_beginning_is_processed() -> None:
    text = "focus on " + "word " * 100_000
    line = replace(queued("L1", text), adjustment=AdjustmentView("focus_query", text))
    assert sum(map(len, waiting_row(line, str))) < 3 * MAX_ROW_CHARS


def test_what_a_call_that_runs_got_without_asking_is_said_in_its_row() -> None:
    first = [question(), answer("allowed", "user"), call("research", query="owls")]
    hosts: list[Event] = []
    for id in ("Q2", "Q3"):
        hosts += [replace(question(), id=id), replace(answer("allowed", "config"), id=id, is_for_always=True)]
    rows, _ = shown(*first, *hosts, result("research", "done"))
    assert rows[-1] == '✓ research "owls" · done · Q1 allowed, allowed: you said "always" before'
    rows, _ = shown(call("research", query="owls"), *hosts, result("research", "done"))
    assert rows == ['✓ research "owls" · done · allowed: you said "always" before']


@pytest.mark.parametrize("status", ["interrupted", "cancelled_with_partial"])
def test_a_retry_that_the_user_ended_was_not_given_up(status: events.Status) -> None:
    rows, _ = shown(retry(1, 10), events.Result(status=status, result="", time=49))
    assert rows[0] == "↻ overloaded, stopped after 39 s"
    rows, _ = shown(retry(1, 10), events.Result(status="error", result="", time=49))
    assert rows[0] == "↻ overloaded, given up after 39 s"


def test_a_call_is_not_left_out_for_a_child_of_a_child_that_was_stopped() -> None:
    about = {"name": "explore-2", "kind": "explore", "parent_id": "c1", "agent": "explore-1", "task": "find"}
    stopped = [events.AgentStarted(**about), events.AgentEnded(**about, status="interrupted")]
    rows, _ = shown(*stopped, call("shell", command="make"), command())
    assert rows[-1] == "✓ shell  make"


def test_what_went_along_with_a_line_is_said_below_it() -> None:
    line = queued("L1", "see @a.txt")
    entered = landed("L1", message="see @a.txt")
    why = "with a.txt (2 lines); without ../secret: outside the workspace"
    receipt = events.Receipt(id="L1", text="see @a.txt", state="delivered", point="D", waited_s=1.0, reason=why)
    settled, left = shown(line, entered, receipt, width=50)
    assert "INTERRUPTION at iteration 3: see @a.txt" in settled[0]
    assert " ".join(" ".join(settled).split()).endswith(f"↪ {why}")
    assert not left


def test_a_call_that_starts_two_agents_tells_a_stop_once_and_shows_a_good_result() -> None:
    def agent(name: str, status: events.Status) -> list[events.Event]:
        about = {"name": name, "kind": "explore", "task": "find", "parent_id": "c1"}
        return [events.AgentStarted(**about), events.AgentEnded(**about, status=status)]

    first, second = agent("explore-1", "cancelled"), agent("explore-2", "done")
    failed, good = result("pair", "explore-1 was stopped", is_error=True), result("pair", "one did")
    rows = shown(call("pair"), *first, *second, failed)[0]
    assert sum("cancelled" in row or "stopped" in row for row in rows) == 1
    for both in ([*first, *second], [*second, *first]):
        assert any("pair" in row for row in shown(call("pair"), *both, good)[0])


@pytest.mark.parametrize(
    ("width", "rows"),
    [
        (100, ["y allow once · a allow every shell until you leave · n refuse · or say why not (a space first)"]),
        (60, ["y allow once · a allow every shell until you leave", "n refuse · or say why not (a space first)"]),
        (40, ["y allow once", "a allow every shell until you leave", "n refuse", "or say why not (a space first)"]),
        (
            24,
            ["y allow once", "a allow every shell", "until you leave", "n refuse", "or say why not (a", "space first)"],
        ),
    ],
)
def test_the_ways_to_answer_stay_whole_where_they_fit(width: int, rows: list[str]) -> None:
    assert Renderer(color=False, ascii=False, width=width).hint(question()) == [f"  {row}" for row in rows]
