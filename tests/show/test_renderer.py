"""Events as rows that are never updated: of a headless run, and of a terminal that shows replies as they come."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent_events import MAIN
from support.painted import bare, check_row
from support.renderers import above_a_prompt, rendered, tail_of

from chain import events
from chain.events import AdjustmentView, Event, TaskView
from chain.lines.parse import Urgency, parse_line
from chain.lines.receipts import adjustment_view
from chain.messages import Usage
from chain.text.hunks import FileDiff, Hunk
from cli.show.renderer import FIRST, LAST, Renderer
from cli.show.signs import to_ascii
from cli.show.text_rows import LONGEST_SHOWN
from cli.show.updating_renderer import UpdatingRenderer


def shown(*happened: Event, ascii: bool = False, width: int = 80) -> list[str]:
    return rendered(Renderer(color=False, ascii=ascii, width=width), *happened)


def streamed(*happened: Event, width: int = 80) -> tuple[list[str], list[str]]:
    """Return the rows at a terminal, and the unsettled ones."""
    renderer = above_a_prompt(color=False, ascii=False, width=width)
    return rendered(renderer, *happened), tail_of(renderer)


def queued(text: str, agent: str = "main", urgency: Urgency = "next") -> events.LineQueued:
    """Return the event of a line as a chain publishes it. A key or a rule may set ``urgency``."""
    line = parse_line(text, urgency=urgency)
    more = {"urgency": line.urgency, "target_agent": agent, "adjustment": adjustment_view(line)}
    return MAIN.queued(text, kind=line.kind, **more)


def interruption(text: str = "use B", **changes: Any) -> events.UserInterruption:
    return MAIN.interruption(text, **{"iteration": 3, "waited_s": 3.21, **changes})


def tool_call(name: str = "search_files", **input: Any) -> events.ToolCall:
    return events.ToolCall(id="t1", name=name, input=input)


def tool_result(text: str, *, is_error: bool = False, seconds: float = 0.3) -> events.ToolResult:
    return events.ToolResult(id="t1", name="search_files", text=text, is_error=is_error, seconds=seconds)


def delta(text: str) -> events.TextDelta:
    return events.TextDelta(text=text)


def reply(text: str, tool_calls: int = 0) -> events.Reply:
    return events.Reply(text=text, tool_calls=tool_calls)


def run_result(text: str, status: events.Status = "done", *replies: str) -> events.Result:
    return events.Result(status=status, result=text, replies=replies, iterations=1)


RUN = events.RunStarted(id="L1", query="count the SKUs", time=100.0)
ITERATION = events.IterationStarted(iteration=2, max_iterations=20)
USAGE = events.UsageReport(input_tokens=1, output_tokens=1, cache_read_tokens=0, cache_write_tokens=0, cost_usd=None)
AGAIN = events.Retry(attempt=2, delay_s=1.0, reason="it ended too early")
SAFE_POINT = "⏳ Will inject at next safe point"
IN = "✓ Message injected (before a tool, 3.2 s)"
PLAN = (TaskView(1, "find", "DONE"), TaskView(2, "fetch", "FAILED", "no\nnetwork"), TaskView(3, "count", "PENDING"))


@pytest.mark.parametrize(
    ("event", "rows"),
    [
        (events.Init(session="s1", version="0.1.0", model="claude", workspace="/w"), ["chain 0.1.0 · claude · s1"]),
        (RUN, ["▶ count the SKUs"]),
        (events.RunStarted(id="", query=""), []),
        (events.RunStarted(id="L1", query="Count\n\n  every file\n"), ["▶ Count", "", "    every file"]),
        (ITERATION, ["[2/20]"]),
        (reply("Let me look.\nThen more.", 1), ["Let me look.", "Then more."]),
        (reply("", 1), []),
        (tool_call(pattern="SKU", n=3), ['→ search_files(pattern="SKU", n=3)']),
        (tool_call("plan_list"), ["→ plan_list()"]),
        (events.ToolProgress(id="t1", name="shell", text="one\n\n\ttwo\n"), ["  one", "    two"]),
        (tool_result("\nfound 3\nin 2 files"), ["✓ search_files (0.3 s): found 3"]),
        (tool_result("no such folder", is_error=True), ["✗ search_files (0.3 s): no such folder"]),
        (tool_result("[Skipped]", is_error=True, seconds=0), ["✗ search_files: [Skipped]"]),
        (tool_result(""), ["✓ search_files (0.3 s)"]),
        (queued("use B"), [f"📤 Interrupting: use B {SAFE_POINT}"]),
        (queued("skip docs"), [f"📤 Interrupting: skip docs ↪ skip: docs {SAFE_POINT}"]),
        (MAIN.queued("!focus on Docs"), [f"📤 Interrupting: !focus on Docs {SAFE_POINT}"]),
        (queued("use B", urgency="urgent"), ["📤 Interrupting: use B ⚡ Will inject ASAP (may skip tools)"]),
        (queued("!!use B", urgency="now"), ["📤 Interrupting: !!use B ⚡ Injecting now"]),
        (queued("then: use B"), ["📤 Interrupting: then: use B ⏳ Will start when this run has ended"]),
        (queued("use B", "explore"), [f"📤 Interrupting → explore: use B {SAFE_POINT}"]),
        (interruption(), [f"[🔔 INTERRUPTION at iteration 3] use B {IN}"]),
        (interruption(point="A", waited_s=75),
         ["[🔔 INTERRUPTION at iteration 3] use B ✓ Message injected (at the start, 1 min 15 s)"]),
        (interruption(target_agent="explore", tools_skipped=("a", "b")),
         [f"[🔔 INTERRUPTION of explore at iteration 3] use B ⏭ Skipped: a, b {IN}"]),
        (events.LineRefused(id="", text="use\nB", kind="redirect", urgency="next", target_agent="main", waiting=10,
                            origin="prompt", reason="Interruption channel full, try again"),
         ["⚠️ Interruption channel full, try again", "  use B"]),
        (MAIN.receipt("returned", reason="the run was stopped"), ["↩ Returned (the run was stopped): use B"]),
        (MAIN.receipt("unsent"), ["↩ Never sent: use B"]),
        (MAIN.receipt("dropped"), ["↩ Dropped: use B"]),
        (MAIN.receipt("handled", "todo: add x"), ["✓ Done: todo: add x"]),
        (MAIN.receipt("handled", "halt at once", "by rule", kind="stop"), ["⏹ halt at once"]),
        *((MAIN.receipt(state), []) for state in ("queued", "delivered", "refused")),
        (events.PlanChanged(tasks=(), by="user"), ["Plan: empty"]),
        (events.PlanChanged(tasks=PLAN, by="plan-1"),
         ["Plan: 1 done, 1 failed, 1 pending (by plan-1)", "  [✓] 1. find", "  [✗] 2. fetch (no network)",
          "  [ ] 3. count"]),
        (AGAIN, ["↻ Asking again in 1.0 s (attempt 2): it ended too early"]),
        (events.Notice(message="unknown key rule", file="h.yaml", line=3), ["ℹ h.yaml:3: unknown key rule"]),
        (events.Error(message="no key", kind="model", file="c.yaml"), ["✗ c.yaml: no key"]),
        (USAGE, []),
        (delta("The"), []),
        (events.Result(status="done", result="", iterations=1, usage=Usage(1, 1, cost_usd=0.01234), trace_path="/t/1"),
         ["✓ done, 1 iteration, 2 tokens, $0.0123", "  trace: /t/1"]),
        (run_result("", "cancelled_with_partial"), ["⏹ cancelled with partial, 1 iteration, 0 tokens"]),
        (run_result("", "interrupted"), ["⏹ interrupted, 1 iteration, 0 tokens"]),
        (run_result("", "max_iterations"), ["✗ max iterations, 1 iteration, 0 tokens"]),
        (run_result("", "error"), ["✗ error, 1 iteration, 0 tokens"]),
    ],
)  # fmt: skip
def test_each_event_has_its_rows(event: Event, rows: list[str]) -> None:
    assert shown(event) == rows


def test_the_answer_is_left_to_the_caller() -> None:
    ended = events.Result(status="done", result="There are 5.", iterations=2, usage=Usage(1200, 34), time=103.25)
    rows = shown(RUN, ITERATION, reply("There are 5."), USAGE, MAIN.receipt("handled"), ended)
    assert "There are 5." not in rows
    assert rows[-1] == "✓ done, 2 iterations, 1,234 tokens, 3.2 s"


@pytest.mark.parametrize(
    "next_event",
    [ITERATION, RUN, interruption(point="B"), tool_call(), run_result("Stopped after 2.", "max_iterations")],
)
def test_a_reply_before_the_answer_is_shown(next_event: Event) -> None:
    rows = shown(reply("There are 5."), USAGE, next_event)
    assert (rows[0], rows.count("There are 5.")) == ("There are 5.", 1)
    assert len(rows) > 1


def test_thinking_is_shown_row_by_row() -> None:
    renderer = Renderer(color=False, ascii=False, width=20)

    def think(text: str) -> list[str]:
        return renderer.rows(events.ThinkingDelta(text=text))

    assert think("First ") == []
    assert think("this.\n\nThen") == ["First this."]
    assert think(" a row that is longer than the width") == ["Then a row that is", "longer than the"]
    assert renderer.rows(ITERATION) == ["width", "[2/20]"]
    assert renderer.rows(ITERATION) == ["[2/20]"]
    assert think("half a th") == []
    assert renderer.rows(AGAIN) == shown(AGAIN), "the thought will be repeated"
    assert renderer.rows(ITERATION) == ["[2/20]"]


# ---------------------------------------------------------------------------------------------------------- long texts


def test_long_progress_is_cut_in_the_middle() -> None:
    said = [MAIN.progress(f"{n}\n") for n in range(1, 41)]
    first, last = [f"  {n}" for n in range(1, FIRST + 1)], [f"  {n}" for n in range(41 - LAST, 41)]
    assert shown(*said, tool_result("x"))[:-1] == [*first, f"  … {40 - FIRST - LAST} more lines", *last]


def test_arguments_and_returned_lines_are_cut() -> None:
    [row] = shown(tool_call(text="x" * 100_000, more="y" * 100_000), width=40)
    assert (len(row), row[-1]) == (40, "…")
    assert shown(MAIN.receipt("returned", "漢" * 50), width=30) == ["↩ Returned: " + "漢" * 8 + "…"]


PASTED = "\n".join(f"row {n}" for n in range(100))


def test_queued_lines_and_queries_are_shown_whole() -> None:
    assert shown(queued("word " * 1000))[0].count("word") == 1000
    assert shown(queued(PASTED)) == [
        "📤 Interrupting: row 0",
        *(f"  row {n}" for n in range(1, 99)),
        f"  row 99 {SAFE_POINT}",
    ]
    rows, _ = streamed(events.RunStarted(id="L1", query="word " * 100), width=40)
    assert " ".join(" ".join(rows).split()) == f"▶ {'word ' * 100}".strip()
    assert max(map(len, rows)) <= 40


def test_a_delivered_line_is_shortened() -> None:
    rows = shown(interruption(PASTED + "\n" + "x" * 100_000))
    assert rows[0] == "[🔔 INTERRUPTION at iteration 3] row 0"
    assert rows[1:-1] == [f"  row {n}" for n in range(1, LONGEST_SHOWN)]
    assert rows[-1] == f"  … {101 - LONGEST_SHOWN} more lines {IN}"
    assert len("".join(shown(interruption("x" * 100_000)))) < 3000


# ------------------------------------------------------------------------------------------------------ any text at all


def every_event(text: str, agent: str) -> list[Event]:
    """Return an event of each type, with the text wherever a model, a tool or a user can put one."""
    line: Any = {"id": text, "text": text, "urgency": text, "target_agent": text, "waiting": 1, "origin": "json"}
    line["adjustment"] = AdjustmentView(text, text)
    return [
        events.Init(agent=agent, session=text, version=text, model=text, workspace=text),
        events.RunStarted(agent=agent, id=text, query=text),
        events.ThinkingDelta(agent=agent, text=text),
        events.TextDelta(agent=agent, text=text),
        events.Reply(agent=agent, text=text, tool_calls=0),
        events.IterationStarted(agent=agent, iteration=1, max_iterations=2),
        events.Reply(agent=agent, text=text, tool_calls=1),
        events.ToolCall(agent=agent, id=text, name=text, input={text: text, "list": [text, {text: None}]}),
        events.ToolProgress(agent=agent, id=text, name=text, text=text),
        interruption(text, agent=agent, target_agent=text, tools_skipped=(text,)),
        events.ToolResult(agent=agent, id=text, name=text, text=text, is_error=True, seconds=1),
        events.LineQueued(agent=agent, kind="guidance", **line),
        events.LineRefused(agent=agent, kind="", reason=text, **line),
        events.Receipt(agent=agent, id=text, text=text, state="returned", reason=text),
        events.PlanChanged(agent=agent, tasks=(TaskView(1, text, text, text),), by="user"),
        events.Retry(agent=agent, attempt=1, delay_s=1, reason=text),
        events.Notice(agent=agent, message=text, file=text, line=1),
        events.Error(agent=agent, message=text, kind="model", file=text, line=1),
        USAGE,
        events.Reply(agent=agent, text=text, tool_calls=0),
        events.Result(agent=agent, status="done", result="", trace_path=text),
    ]


hostile = st.text(st.one_of(st.sampled_from("\x1b[];?0m\x07\x9b\\\r\n\t\u202e\ud800 "), st.characters()))


@given(hostile, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 100))
def test_no_text_reaches_the_terminal_unsanitized(text: str, child: bool, color: bool, ascii: bool, width: int) -> None:
    renderer = Renderer(color=color, ascii=ascii, width=width)
    for event in every_event(text, text if child else "main"):
        for row in renderer.rows(event):
            check_row(row.replace("\t", " "), 10_000)


def test_ascii_rows_are_ascii() -> None:
    rows = shown(*every_event("text", "explore"), *every_event("text " * 100, "main"), ascii=True)
    assert "".join(rows).isascii()
    assert "[! INTERRUPTION of text at iteration 3]" in "\n".join(rows)
    assert shown(events.PlanChanged(tasks=PLAN, by="main"), ascii=True)[1:3] == [
        "  [x] 1. find",
        "  [-] 2. fetch (no network)",
    ]
    assert to_ascii("[✓] [✗] ✓ »? Ünï ≤ 3") == "[x] [-] ok: :? Ünï <= 3"


def test_an_edits_lines_are_counted_in_ascii() -> None:
    diff = FileDiff("a.py", (Hunk(1, 1, ("-x", "+y")),))
    asked = replace(MAIN.question(diff.text), text="Allow edit_file: a.py", name="edit_file", diff=diff)
    ended = replace(tool_result("x"), name="edit_file", summary=(diff.counts,))
    rows = "\n".join(rendered(UpdatingRenderer(color=False, ascii=True), asked, ended))
    assert rows.isascii()
    assert rows.count("+1 -1") == 2


def test_colours_are_added_only_around_rows() -> None:
    plain, colored = (Renderer(color=color, ascii=False) for color in (False, True))
    happened = every_event("some text", "main")
    rows = [row for event in happened for row in colored.rows(event)]
    assert [bare(row) for row in rows] == rendered(plain, *happened) != rows
    assert all(row.endswith("\x1b[0m") for row in rows if "\x1b" in row)


# ------------------------------------------------------------------------------------------------- replies that stream


@pytest.mark.parametrize(
    ("happened", "rows", "tail"),
    [
        ([delta("There are ")], [], ["There are"]),
        ([delta("There are "), delta("5.\nNo")], ["There are 5."], ["No"]),
        ([delta("a\nb"), reply("a\nb"), run_result("a\nb", "done", "a\nb")], ["a", "b", "✓"], []),
        ([reply("a"), run_result("a", "done", "a")], ["a", "✓"], []),
        ([delta("One row\nThere"), AGAIN], ["One row", "↻ That reply was cut off; ignore it.", "↻"], []),
        ([delta("There are"), reply("There are"), run_result("There are\n\nWhat instead?", "cancelled", "There are")],
         ["There are", "What instead?", "⏹"], []),
        ([run_result("Interrupted.", "interrupted")], ["Interrupted.", "⏹"], []),
        ([events.Error(message="it is gone", kind="model"), run_result("it is gone", "error")], ["✗ it is gone", "✗"], []),
        ([delta("Half a"), run_result("Stopped after 5 s.", "limit_reached")], ["Half a", "Stopped after 5 s.", "✗"], []),
        ([events.ThinkingDelta(text="Hm, "), MAIN.notice(), events.ThinkingDelta(text="yes.\n")],
         ["ℹ", "Hm, yes."], []),
        ([events.ThinkingDelta(text="Hm")], [], ["Hm"]),
        ([events.ThinkingDelta(text="Hm"), delta("So")], ["Hm"], ["So"]),
    ],
    ids=[
        "begun", "two rows", "answer", "not streamed", "cut off", "stopped", "no reply", "error once", "limit",
        "thought beside a notice", "thinking", "thought before a reply",
    ],
)  # fmt: skip
def test_a_reply_is_shown_as_it_comes(happened: list[Event], rows: list[str], tail: list[str]) -> None:
    found, unsettled = streamed(*happened)
    assert [row if text[1:] else row[0] for row, text in zip(found, rows, strict=True)] == rows
    assert unsettled == tail


BLOCKS = {
    "paragraph": ("One row of it\nand one more.", "A second paragraph."),
    "item": ("- one item\n  of two rows", "- another item"),
    "long item": (
        "- one",
        "- another item that is longer than one row of the terminal is wide, also when it wraps",
    ),
    "table": ("| a | b |\n|---|---|\n| 1 | 2 |", "Below it."),
    "code": ("```python\nfor n in range(3):\n\n    print(n)\n```", "After it."),
}


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("width", [20, 80])
def test_other_rows_wait_for_a_blocks_end(kind: str, color: bool, size: int, width: int) -> None:
    def rows_of(*happened: Event) -> list[str]:
        return [row for row in rendered(above_a_prompt(color=color, ascii=False, width=width), *happened) if row]

    first, second = BLOCKS[kind]
    text = f"{first}\n{'' if 'item' in kind else chr(10)}{second}"
    pieces = [delta(text[at : at + size]) for at in range(0, len(text), size)]
    whole = rows_of(delta(text), reply(text))
    starts = next(n for n, row in enumerate(whole) if second.removeprefix("- ")[:8] in row)
    for when in range(1, len(pieces) + 1):
        rows = rows_of(*pieces[:when], queued("use B"), *pieces[when:], reply(text))
        at = next(n for n, row in enumerate(rows) if "Interrupting" in row)
        after = next(n for n, row in enumerate(rows) if "point" in row.split()) + 1
        assert rows[:at] + rows[after:] == whole
        assert at in (starts, len(whole)), rows


@pytest.mark.parametrize("end", [reply("One row\nand"), AGAIN, run_result("Stopped.", "limit_reached"), ITERATION])
def test_rows_that_waited_follow_the_reply(end: Event) -> None:
    rows, _ = streamed(delta("One row\nand"), queued("use B"), end)
    assert sum("Interrupting" in row for row in rows) == 1


def test_the_answer_to_a_command_waits_too() -> None:
    renderer = above_a_prompt(color=False, ascii=False)
    assert renderer.rows(delta("One row\nand")) == ["One row"]
    assert renderer.answer("/todo", "The plan is empty.") == []
    assert renderer.rows(delta(" more\n\n")) == ["and more", "» /todo", "The plan is empty."]
    assert renderer.answer("/todo", "The plan is empty.") == ["» /todo", "The plan is empty."]
