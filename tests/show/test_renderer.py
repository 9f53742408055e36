"""Events as rows that are never updated: of a headless run, and of a terminal that shows replies as they come."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent_events import MAIN
from support.rows import check_row, pieces_of, prompt_renderer, rows_and_tail, rows_of, without_colours

from chain import events
from chain.events import AdjustmentView, Event, Point, TaskView
from chain.lines.parse import Urgency, parse_line
from chain.lines.receipts import adjustment_view
from chain.messages import Usage
from chain.text.hunks import FileDiff, Hunk
from cli.show.renderer import FIRST, LAST, Renderer
from cli.show.signs import to_ascii
from cli.show.text_rows import LONGEST_SHOWN
from cli.show.updating_renderer import UpdatingRenderer

delta, reply = MAIN.text_delta, MAIN.reply


def headless_rows(*stream: Event, ascii: bool = False, width: int = 80) -> list[str]:
    return rows_of(Renderer(color=False, ascii=ascii, width=width), *stream)


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


def run_result(text: str, status: events.Status = "done", *replies: str) -> events.Result:
    return events.Result(status=status, result=text, replies=replies, iterations=1)


RUN = events.RunStarted(id="L1", query="count the SKUs", time=100.0)
ITERATION = events.IterationStarted(iteration=2, max_iterations=20)
USAGE = events.UsageReport(input_tokens=1, output_tokens=1, cache_read_tokens=0, cache_write_tokens=0, cost_usd=None)
RETRY = events.Retry(attempt=2, delay_s=1.0, reason="it ended too early")
RETRY_ROW = "↻ Asking again in 1.0 s (attempt 2): it ended too early"
DONE_ROW = "✓ done, 1 iteration, 0 tokens"
SAFE_POINT = "⏳ Will inject at next safe point"
DELIVERED = "✓ Message injected (before a tool, 3.2 s)"
PLAN = (TaskView(1, "find", "DONE"), TaskView(2, "fetch", "FAILED", "no\nnetwork"), TaskView(3, "count", "PENDING"))

ROWS: dict[str, tuple[Event, list[str]]] = {
    "init": (events.Init(session="s1", version="0.1.0", model="claude", workspace="/w"), ["chain 0.1.0 · claude · s1"]),
    "run": (RUN, ["▶ count the SKUs"]),
    "run without a query": (events.RunStarted(id="", query=""), []),
    "query of several lines": (events.RunStarted(id="L1", query="Count\n\n  all\n"), ["▶ Count", "", "    all"]),
    "iteration": (ITERATION, ["[2/20]"]),
    "reply": (reply("Let me look.\nThen more.", 1), ["Let me look.", "Then more."]),
    "empty reply": (reply("", 1), []),
    "tool call": (tool_call(pattern="SKU", n=3), ['→ search_files(pattern="SKU", n=3)']),
    "tool call without arguments": (tool_call("plan_list"), ["→ plan_list()"]),
    "tool output": (events.ToolProgress(id="t1", name="shell", text="one\n\n\ttwo\n"), ["  one", "    two"]),
    "tool result": (tool_result("\nfound 3\nin 2 files"), ["✓ search_files (0.3 s): found 3"]),
    "tool error": (tool_result("no such folder", is_error=True), ["✗ search_files (0.3 s): no such folder"]),
    "skipped tool": (tool_result("[Skipped]", is_error=True, seconds=0), ["✗ search_files: [Skipped]"]),
    "empty tool result": (tool_result(""), ["✓ search_files (0.3 s)"]),
    "line": (queued("use B"), [f"📤 Interrupting: use B {SAFE_POINT}"]),
    "guidance": (queued("skip docs"), [f"📤 Interrupting: skip docs ↪ skip: docs {SAFE_POINT}"]),
    "urgent line": (queued("use B", urgency="urgent"), ["📤 Interrupting: use B ⚡ Will inject ASAP (may skip tools)"]),
    "now line": (queued("!!use B", urgency="now"), ["📤 Interrupting: !!use B ⚡ Injecting now"]),
    "follow-up": (queued("then: use B"), ["📤 Interrupting: then: use B ⏳ Will start when this run has ended"]),
    "line to a child": (queued("use B", "explore"), [f"📤 Interrupting → explore: use B {SAFE_POINT}"]),
    "delivery": (interruption(), [f"[🔔 INTERRUPTION at iteration 3] use B {DELIVERED}"]),
    "delivery at the start": (
        interruption(point=Point.BEFORE_FIRST_CALL, waited_s=75),
        ["[🔔 INTERRUPTION at iteration 3] use B ✓ Message injected (at the start, 1 min 15 s)"],
    ),
    "delivery that skips tools": (
        interruption(target_agent="explore", tools_skipped=("a", "b")),
        [f"[🔔 INTERRUPTION of explore at iteration 3] use B ⏭ Skipped: a, b {DELIVERED}"],
    ),
    "refused line": (
        events.LineRefused(id="", text="use\nB", kind="redirect", urgency="next", target_agent="main", waiting=10,
                           origin="prompt", reason="Interruption channel full, try again"),
        ["⚠️ Interruption channel full, try again", "  use B"],
    ),
    "returned line": (MAIN.receipt("returned", reason="it was stopped"), ["↩ Returned (it was stopped): use B"]),
    "unsent line": (MAIN.receipt("unsent"), ["↩ Never sent: use B"]),
    "dropped line": (MAIN.receipt("dropped"), ["↩ Dropped: use B"]),
    "handled line": (MAIN.receipt("handled", "todo: add x"), ["✓ Done: todo: add x"]),
    "stop": (MAIN.receipt("handled", "halt at once", "by rule", kind="stop"), ["⏹ halt at once"]),
    **{f"receipt of a {state} line": (MAIN.receipt(state), []) for state in ("queued", "delivered", "refused")},
    "empty plan": (events.PlanChanged(tasks=(), by="user"), ["Plan: empty"]),
    "plan": (
        events.PlanChanged(tasks=PLAN, by="plan-1"),
        ["Plan: 1 done, 1 failed, 1 pending (by plan-1)", "  [✓] 1. find", "  [✗] 2. fetch (no network)",
         "  [ ] 3. count"],
    ),
    "retry": (RETRY, [RETRY_ROW]),
    "notice": (events.Notice(message="unknown key rule", file="h.yaml", line=3), ["ℹ h.yaml:3: unknown key rule"]),
    "error": (events.Error(message="no key", kind="model", file="c.yaml"), ["✗ c.yaml: no key"]),
    "usage": (USAGE, []),
    "text delta": (delta("The"), []),
    "end with a cost and a trace": (
        events.Result(status="done", result="", iterations=1, usage=Usage(1, 1, cost_usd=0.01234), trace_path="/t/1"),
        ["✓ done, 1 iteration, 2 tokens, $0.0123", "  trace: /t/1"],
    ),
    "cancelled": (run_result("", "cancelled_with_partial"), ["⏹ cancelled with partial, 1 iteration, 0 tokens"]),
    "interrupted": (run_result("", "interrupted"), ["⏹ interrupted, 1 iteration, 0 tokens"]),
    "failed": (run_result("", "error"), ["✗ error, 1 iteration, 0 tokens"]),
}  # fmt: skip


@pytest.mark.parametrize(("event", "rows"), ROWS.values(), ids=ROWS)
def test_each_event_has_its_rows(event: Event, rows: list[str]) -> None:
    assert headless_rows(event) == rows


def test_the_answer_is_left_to_the_caller() -> None:
    ended = events.Result(status="done", result="There are 5.", iterations=2, usage=Usage(1200, 34), time=103.25)
    rows = headless_rows(RUN, ITERATION, reply("There are 5."), USAGE, MAIN.receipt("handled"), ended)
    assert "There are 5." not in rows
    assert rows[-1] == "✓ done, 2 iterations, 1,234 tokens, 3.2 s"


@pytest.mark.parametrize(
    "next_event",
    [
        ITERATION,
        RUN,
        interruption(point=Point.AFTER_REPLY),
        tool_call(),
        run_result("Stopped after 2.", "max_iterations"),
    ],
    ids=lambda event: event.type,
)
def test_a_reply_before_the_answer_is_shown(next_event: Event) -> None:
    first, *others = headless_rows(reply("There are 5."), USAGE, next_event)
    assert first == "There are 5."
    assert others
    assert first not in others


def test_thinking_is_shown_row_by_row() -> None:
    renderer = Renderer(color=False, ascii=False, width=20)
    assert renderer.rows(MAIN.thinking_delta("First ")) == []
    assert renderer.rows(MAIN.thinking_delta("this.\n\nThen")) == ["First this."]
    rows = renderer.rows(MAIN.thinking_delta(" a row that is longer than the width"))
    assert rows == ["Then a row that is", "longer than the"]
    assert renderer.rows(ITERATION) == ["width", "[2/20]"]
    assert renderer.rows(ITERATION) == ["[2/20]"]


def test_a_retry_drops_the_unfinished_row_of_thinking() -> None:
    assert headless_rows(MAIN.thinking_delta("half a th"), RETRY, ITERATION) == [RETRY_ROW, "[2/20]"]


# ---------------------------------------------------------------------------------------------------------- long texts


def test_long_tool_output_is_cut_in_the_middle() -> None:
    outputs = [MAIN.progress(f"{n}\n") for n in range(40)]
    *rows_of_output, _ = headless_rows(*outputs, tool_result("x"))
    rows = [f"  {n}" for n in range(40)]
    assert rows_of_output == [*rows[:FIRST], f"  … {40 - FIRST - LAST} more lines", *rows[-LAST:]]


def test_arguments_and_returned_lines_are_cut() -> None:
    [row] = headless_rows(tool_call(text="x" * 100_000, more="y" * 100_000), width=40)
    assert len(row) == 40
    assert row.endswith("…")
    wide = headless_rows(MAIN.receipt("returned", "漢" * 50), width=30)
    assert wide == ["↩ Returned: " + "漢" * 8 + "…"], "each of these characters has two columns"


PASTED = "\n".join(f"row {n}" for n in range(100))


def test_queued_lines_are_shown_whole() -> None:
    [row] = headless_rows(queued("word " * 1000))
    assert row.count("word") == 1000
    rows = ["📤 Interrupting: row 0", *(f"  row {n}" for n in range(1, 99)), f"  row 99 {SAFE_POINT}"]
    assert headless_rows(queued(PASTED)) == rows


def test_queries_are_shown_whole() -> None:
    rows, _ = rows_and_tail(events.RunStarted(id="L1", query="word " * 100), width=40)
    assert " ".join(rows).split() == ["▶", *["word"] * 100]
    assert max(map(len, rows)) <= 40


def test_a_delivered_line_is_shortened() -> None:
    rows = headless_rows(interruption(PASTED + "\n" + "x" * 100_000))
    line_count = 100 + 1
    assert rows == [
        "[🔔 INTERRUPTION at iteration 3] row 0",
        *(f"  row {n}" for n in range(1, LONGEST_SHOWN)),
        f"  … {line_count - LONGEST_SHOWN} more lines {DELIVERED}",
    ]
    one_long_row, max_characters = "x" * 100_000, 3_000
    assert len("".join(headless_rows(interruption(one_long_row)))) < max_characters, "a long row is shortened too"


# ------------------------------------------------------------------------------------------------------ any text at all


def events_with(text: str, agent: str) -> list[Event]:
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


CONTROL_CHARACTERS = st.sampled_from("\x1b[];?0m\x07\x9b\\\r\n\t\u202e\ud800 ")


@given(st.text(CONTROL_CHARACTERS | st.characters()), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 100))
def test_no_text_reaches_the_terminal_unsanitized(
    text: str, is_child: bool, color: bool, ascii: bool, width: int
) -> None:
    renderer = Renderer(color=color, ascii=ascii, width=width)
    for event in events_with(text, text if is_child else "main"):
        for row in renderer.rows(event):
            check_row(row.replace("\t", " "), width=10_000)  # whole texts are not cut


def test_ascii_rows_are_ascii() -> None:
    rows = headless_rows(*events_with("text", "explore"), *events_with("text " * 100, "main"), ascii=True)
    assert "".join(rows).isascii()
    assert "[! INTERRUPTION of text at iteration 3]" in "\n".join(rows)
    _, done, failed, _ = headless_rows(events.PlanChanged(tasks=PLAN, by="main"), ascii=True)
    assert [done, failed] == ["  [x] 1. find", "  [-] 2. fetch (no network)"]


def test_signs_have_ascii_replacements() -> None:
    assert to_ascii("[✓] [✗] [ ] ✓ »? Ünï ≤ 3") == "[x] [-] [ ] ok: :? Ünï <= 3"


def test_an_edits_lines_are_counted_in_ascii() -> None:
    diff = FileDiff("a.py", (Hunk(1, 1, ("-x", "+y")),))
    question = replace(MAIN.question(diff.text), text="Allow edit_file: a.py", name="edit_file", diff=diff)
    edit = replace(tool_result("x"), name="edit_file", summary=(diff.counts,))
    rows = "\n".join(rows_of(UpdatingRenderer(color=False, ascii=True), question, edit))
    assert rows.isascii()
    assert rows.count("+1 -1") == 2


def test_colours_are_added_only_around_rows() -> None:
    plain, colored = (Renderer(color=color, ascii=False) for color in (False, True))
    stream = events_with("some text", "main")
    rows = [row for event in stream for row in colored.rows(event)]
    rows_with_colours = [row for row in rows if "\x1b" in row]
    assert [without_colours(row) for row in rows] == rows_of(plain, *stream)
    assert rows_with_colours
    assert all(row.endswith("\x1b[0m") for row in rows_with_colours)


# ------------------------------------------------------------------------------------------------- replies that stream

STREAMS: dict[str, tuple[list[Event], list[str], list[str]]] = {
    "first words": ([delta("There are ")], [], ["There are"]),
    "two rows": ([delta("There are "), delta("5.\nNo")], ["There are 5."], ["No"]),
    "answer": ([delta("a\nb"), reply("a\nb"), run_result("a\nb", "done", "a\nb")], ["a", "b", DONE_ROW], []),
    "not streamed": ([reply("a"), run_result("a", "done", "a")], ["a", DONE_ROW], []),
    "cut off": ([delta("One row\nThere"), RETRY], ["One row", "↻ That reply was cut off; ignore it.", RETRY_ROW], []),
    "stopped": (
        [delta("There are"), reply("There are"), run_result("There are\n\nWhat instead?", "cancelled", "There are")],
        ["There are", "What instead?", "⏹ cancelled, 1 iteration, 0 tokens"], [],
    ),
    "no reply": (
        [run_result("Interrupted.", "interrupted")], ["Interrupted.", "⏹ interrupted, 1 iteration, 0 tokens"], []
    ),
    "error once": (
        [events.Error(message="it is gone", kind="model"), run_result("it is gone", "error")],
        ["✗ it is gone", "✗ error, 1 iteration, 0 tokens"], [],
    ),
    "limit": (
        [delta("Half a"), run_result("Stopped after 5 s.", "limit_reached")],
        ["Half a", "Stopped after 5 s.", "✗ limit reached, 1 iteration, 0 tokens"], [],
    ),
    "thought around a notice": (
        [MAIN.thinking_delta("Hm, "), MAIN.notice(), MAIN.thinking_delta("yes.\n")], ["ℹ no file", "Hm, yes."], []
    ),
    "thought": ([MAIN.thinking_delta("Hm")], [], ["Hm"]),
    "thought before a reply": ([MAIN.thinking_delta("Hm"), delta("So")], ["Hm"], ["So"]),
}  # fmt: skip


@pytest.mark.parametrize(("stream", "rows", "tail"), STREAMS.values(), ids=STREAMS)
def test_a_reply_is_shown_as_it_comes(stream: list[Event], rows: list[str], tail: list[str]) -> None:
    assert rows_and_tail(*stream) == (rows, tail)


BLOCKS = {
    "paragraph": ("One row of it\nand one more.\n\n", "A second paragraph."),
    "item": ("- one item\n  of two rows\n", "- another item"),
    "long item": ("- one\n", "- another item that is longer than one row of the terminal is wide, also when it wraps"),
    "table": ("| a | b |\n|---|---|\n| 1 | 2 |\n\n", "Below it."),
    "code": ("```python\nfor n in range(3):\n\n    print(n)\n```\n\n", "After it."),
}


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize(("first_block", "second_block"), BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("piece_length", [1, 3, 1000])
@pytest.mark.parametrize("width", [20, 80])
def test_other_rows_wait_for_a_blocks_end(
    first_block: str, second_block: str, color: bool, piece_length: int, width: int
) -> None:
    def rows_with_text(*stream: Event) -> list[str]:
        return [row for row in rows_of(prompt_renderer(color=color, ascii=False, width=width), *stream) if row]

    text = first_block + second_block
    deltas = [delta(piece) for piece in pieces_of(text, piece_length)]
    rows_of_reply = rows_with_text(delta(text), reply(text))
    first_words_of_second = second_block.removeprefix("- ")[:8]  # rendering changes the sign of an item
    last_word_of_line = SAFE_POINT.split()[-1]  # the row of a waiting line wraps in a narrow terminal
    start_of_second = next(n for n, row in enumerate(rows_of_reply) if first_words_of_second in row)
    for count in range(1, len(deltas) + 1):
        rows = rows_with_text(*deltas[:count], queued("use B"), *deltas[count:], reply(text))
        start = next(n for n, row in enumerate(rows) if "Interrupting" in row)
        end = next(n for n, row in enumerate(rows) if last_word_of_line in row.split()) + 1
        assert rows[:start] + rows[end:] == rows_of_reply
        assert start in (start_of_second, len(rows_of_reply)), rows


@pytest.mark.parametrize(
    "end",
    [reply("One row\nand"), RETRY, run_result("Stopped.", "limit_reached"), ITERATION],
    ids=lambda event: event.type,
)
def test_rows_that_waited_follow_the_reply(end: Event) -> None:
    rows, _ = rows_and_tail(delta("One row\nand"), queued("use B"), end)
    assert sum("Interrupting" in row for row in rows) == 1


def test_the_answer_to_a_command_waits_too() -> None:
    renderer = prompt_renderer(color=False, ascii=False)
    assert renderer.rows(delta("One row\nand")) == ["One row"]
    assert renderer.answer("/todo", "The plan is empty.") == []
    assert renderer.rows(delta(" more\n\n")) == ["and more", "» /todo", "The plan is empty."]
    assert renderer.answer("/todo", "The plan is empty.") == ["» /todo", "The plan is empty."]
