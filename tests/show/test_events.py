"""What people see of each event, and what they must never see."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.renderers import above_a_prompt
from support.tellers import MAIN

from chain import events
from chain.events import AdjustmentView, Event, TaskView
from chain.lines.parse import Urgency, parse_line
from chain.lines.receipts import adjustment_view
from chain.messages import Usage
from chain.text.hunks import FileDiff, Hunk
from chain.text.plain import sanitize
from cli.show.renderer import Renderer
from cli.show.signs import in_ascii
from cli.show.text_rows import LONGEST_SHOWN
from cli.show.updating import UpdatingRenderer


def shown(*happened: Event, color: bool = False, ascii: bool = False, width: int = 80) -> list[str]:
    renderer = Renderer(color=color, ascii=ascii, width=width)
    return [row for event in happened for row in renderer.lines(event)]


def queued(text: str, agent: str = "main", urgency: Urgency = "next") -> events.LineQueued:
    """The event of a line as a chain tells it; ``urgency`` is what a key or a rule makes of it."""
    line = parse_line(text, urgency=urgency)
    return events.LineQueued(
        id="L1", text=text, kind=line.kind, urgency=line.urgency, target_agent=agent, waiting=1, origin="prompt",
        adjustment=adjustment_view(line),
    )  # fmt: skip


def interruption(**changes: Any) -> events.UserInterruption:
    return replace(MAIN.interruption(id="L1"), **{"iteration": 3, "waited_s": 3.21, **changes})


def receipt(state: events.State, text: str = "use B", reason: str = "", kind: str = "redirect") -> events.Receipt:
    return events.Receipt(id="L1", text=text, state=state, reason=reason, kind=kind)


def tool(name: str = "search_files", **input: Any) -> events.ToolCall:
    return events.ToolCall(id="t1", name=name, input=input)


def tool_result(text: str, *, is_error: bool = False, seconds: float = 0.3) -> events.ToolResult:
    return events.ToolResult(id="t1", name="search_files", text=text, is_error=is_error, seconds=seconds)


RUN = events.RunStarted(id="L1", query="count the SKUs", time=100.0)
ITERATION = events.IterationStarted(iteration=2, max_iterations=20)
USAGE = events.UsageReport(
    input_tokens=1, output_tokens=1, cache_read_tokens=0, cache_write_tokens=0, cost_usd=None
)  # fmt: skip
ANSWER = events.Reply(text="There are 5.", tool_calls=0)
RESULT = events.Result(
    status="done", result="There are 5.", iterations=2, usage=Usage(input_tokens=1200, output_tokens=34), time=103.25
)


@pytest.mark.parametrize(
    ("event", "rows"),
    [
        (
            events.Init(session="s1", version="0.1.0", model="claude", workspace="/w"),
            ["chain 0.1.0 · claude · s1"],
        ),
        (RUN, ["▶ count the SKUs"]),
        (events.RunStarted(id="", query=""), []),
        (ITERATION, ["[2/20]"]),
        (events.Reply(text="Let me look.\nThen more.", tool_calls=1), ["Let me look.", "Then more."]),
        (events.Reply(text="", tool_calls=1), []),
        (tool(pattern="SKU", n=3), ['→ search_files(pattern="SKU", n=3)']),
        (tool("plan_list"), ["→ plan_list()"]),
        (events.ToolProgress(id="t1", name="shell", text="one\n\n\ttwo\n"), ["  one", "    two"]),
        (tool_result("\nfound 3\nin 2 files"), ["✓ search_files (0.3 s): found 3"]),
        (tool_result("no such folder", is_error=True), ["✗ search_files (0.3 s): no such folder"]),
        (tool_result("[Skipped: user interrupted]", is_error=True, seconds=0),
         ["✗ search_files: [Skipped: user interrupted]"]),
        (tool_result(""), ["✓ search_files (0.3 s)"]),
        (queued("use B"), ["📤 Interrupting: use B ⏳ Will inject at next safe point"]),
        (queued("skip docs"), ["📤 Interrupting: skip docs ↪ skip: docs ⏳ Will inject at next safe point"]),
        (queued("prefer X"), ["📤 Interrupting: prefer X ↪ prefer: X ⏳ Will inject at next safe point"]),
        (queued("!use B"), ["📤 Interrupting: !use B ⚡ Will inject ASAP (may skip tools)"]),
        (queued("!todo: add x"), ["📤 Interrupting: !todo: add x ⚡ Will inject ASAP (may skip tools)"]),
        (queued("use B", urgency="urgent"), ["📤 Interrupting: use B ⚡ Will inject ASAP (may skip tools)"]),
        (queued("!!use B", urgency="now"), ["📤 Interrupting: !!use B ⚡ Injecting now"]),
        (queued("then: use B"), ["📤 Interrupting: then: use B ⏳ Will start when this run has ended"]),
        (queued("use B", "explore"),
         ["📤 Interrupting → explore: use B ⏳ Will inject at next safe point"]),
        (interruption(), ["[🔔 INTERRUPTION at iteration 3] use B ✓ Message injected (before a tool, 3.2 s)"]),
        (interruption(point="B"),
         ["[🔔 INTERRUPTION at iteration 3] use B ✓ Message injected (after the reply, 3.2 s)"]),
        (interruption(point="A", waited_s=75),
         ["[🔔 INTERRUPTION at iteration 3] use B ✓ Message injected (at the start, 1 min 15 s)"]),
        (interruption(target_agent="explore", tools_skipped=("a", "b")),
         ["[🔔 INTERRUPTION of explore at iteration 3] use B ⏭ Skipped: a, b "
          "✓ Message injected (before a tool, 3.2 s)"]),
        (receipt("returned", reason="the run was stopped"), ["↩ Returned (the run was stopped): use B"]),
        (receipt("unsent"), ["↩ Never sent: use B"]),
        (receipt("dropped"), ["↩ Dropped: use B"]),
        (receipt("handled", "todo: add x"), ["✓ Done: todo: add x"]),
        (receipt("handled", "halt at once", "by rule", "stop"), ["⏹ halt at once"]),
        (receipt("queued"), []),
        (receipt("delivered"), []),
        (receipt("refused"), []),
        (events.PlanChanged(tasks=(), by="user"), ["Plan: empty"]),
        (events.Retry(attempt=2, delay_s=1.5, reason="overloaded"),
         ["↻ Asking again in 1.5 s (attempt 2): overloaded"]),
        (events.Notice(message="unknown key rule", file="h.yaml", line=3), ["ℹ h.yaml:3: unknown key rule"]),
        (events.Notice(message="no file"), ["ℹ no file"]),
        (events.Error(message="no key", kind="model", file="c.yaml"), ["✗ c.yaml: no key"]),
        (USAGE, []),
        (events.TextDelta(text="The"), []),
        (events.Result(status="done", result="", iterations=1, usage=Usage(1, 1, cost_usd=0.01234), trace_path="/t/1"),
         ["✓ done, 1 iteration, 2 tokens, $0.0123", "  trace: /t/1"]),
    ],
)  # fmt: skip
def test_what_an_event_looks_like(event: Event, rows: list[str]) -> None:
    assert shown(event) == rows


def test_a_line_is_shown_as_its_event_describes_it_whatever_its_text_looks_like() -> None:
    plain = events.LineQueued(
        id="L1", text="!focus on Docs", kind="redirect", urgency="next", target_agent="main", waiting=1, origin="json"
    )

    assert shown(plain) == ["📤 Interrupting: !focus on Docs ⏳ Will inject at next safe point"]


def test_a_full_channel_is_told_with_the_line_that_was_refused() -> None:
    refused = events.LineRefused(
        id="", text="use\nB", kind="redirect", urgency="next", target_agent="main", waiting=10, origin="prompt",
        reason="Interruption channel full, try again",
    )  # fmt: skip

    assert shown(refused) == ["⚠️ Interruption channel full, try again", "  use B"]


def test_the_plan_is_a_list_with_counts() -> None:
    plan = events.PlanChanged(
        tasks=(
            TaskView(1, "find", "DONE"),
            TaskView(2, "fetch", "FAILED", "no\nnetwork"),
            TaskView(3, "count", "PENDING"),
        ),
        by="main",
    )

    assert shown(plan) == [
        "Plan: 1 done, 1 failed, 1 pending",
        "  [✓] 1. find",
        "  [✗] 2. fetch (no network)",
        "  [ ] 3. count",
    ]
    assert shown(plan, ascii=True)[1:] == ["  [x] 1. find", "  [-] 2. fetch (no network)", "  [ ] 3. count"]


def test_an_injection_names_the_tool_that_ran_before_it() -> None:
    assert shown(tool(), interruption())[-1].endswith("use B ✓ Message injected (after search_files, 3.2 s)")
    assert shown(tool(), ITERATION, interruption(point="C"))[-1].endswith(" ✓ Message injected (before a tool, 3.2 s)")


@pytest.mark.parametrize(
    ("status", "start"),
    [
        ("done", "✓ done, "),
        ("cancelled_with_partial", "⏹ cancelled with partial, "),
        ("interrupted", "⏹ interrupted, "),
        ("max_iterations", "✗ max iterations, "),
        ("error", "✗ error, "),
    ],
)
def test_the_sign_of_a_summary_says_how_the_run_went(status: events.Status, start: str) -> None:
    assert shown(events.Result(status=status, result=""))[0].startswith(start)


def test_the_answer_is_left_to_the_caller() -> None:
    rows = shown(RUN, ITERATION, ANSWER, USAGE, receipt("handled"), RESULT)
    assert "There are 5." not in rows
    assert rows[-1] == "✓ done, 2 iterations, 1,234 tokens, 3.2 s"


@pytest.mark.parametrize(
    "next_event",
    [
        ITERATION,
        RUN,
        interruption(point="B"),
        tool(),
        events.Result(status="max_iterations", result="Stopped after 2 iterations without a final answer."),
    ],
)
def test_a_reply_that_was_not_the_last_word_is_shown_before_what_follows_it(next_event: Event) -> None:
    rows = shown(ANSWER, USAGE, next_event)

    assert rows[0] == "There are 5."
    assert rows.count("There are 5.") == 1
    assert len(rows) > 1


def test_thinking_is_shown_row_by_row_as_it_comes() -> None:
    renderer = Renderer(color=False, ascii=False, width=20)

    def think(text: str) -> list[str]:
        return renderer.lines(events.ThinkingDelta(text=text))

    assert think("First ") == []
    assert think("this.\n\nThen") == ["First this."]
    assert think(" a row that is longer than the width") == ["Then a row that is", "longer than the"]
    assert think("x" * 45) == ["widthxxxxxxxxxxxxxxx", "x" * 20]
    assert renderer.lines(ITERATION) == ["x" * 10, "[2/20]"]
    assert renderer.lines(ITERATION) == ["[2/20]"]


def test_unfinished_thinking_is_forgotten_when_the_reply_is_asked_for_again() -> None:
    rows = shown(events.ThinkingDelta(text="half a th"), events.Retry(attempt=1, delay_s=0, reason="broken"), ITERATION)

    assert rows == ["↻ Asking again in 0.0 s (attempt 1): broken", "[2/20]"]


def test_long_texts_are_cut_with_a_mark() -> None:
    [row] = shown(tool(text="x" * 100_000, more="y" * 100_000), width=40)
    assert len(row) == 40
    assert row.endswith("…")


def test_wide_characters_count_twice() -> None:
    [row] = shown(receipt("returned", "漢" * 50), width=30)

    assert row == "↩ Returned: " + "漢" * 8 + "…"


PASTED = "\n".join(f"row {n}" for n in range(100))


def test_the_users_own_texts_are_shown_whole() -> None:
    assert shown(queued("word " * 1000))[0].count("word") == 1000
    assert shown(queued(PASTED)) == [
        "📤 Interrupting: row 0",
        *(f"  row {n}" for n in range(1, 99)),
        "  row 99 ⏳ Will inject at next safe point",
    ]
    query = "Count the lines\n\n  of every file\n"
    assert shown(events.RunStarted(id="L1", query=query)) == ["▶ Count the lines", "", "    of every file"]
    rows, _ = live(events.RunStarted(id="L1", query="word " * 100), width=40)
    assert " ".join(" ".join(rows).split()) == f"▶ {'word ' * 100}".strip()
    assert max(map(len, rows)) <= 40


def test_what_is_delivered_is_shortened_since_it_was_shown_whole_before() -> None:
    rows = shown(interruption(message=PASTED + "\n" + "x" * 100_000))

    assert rows[0] == "[🔔 INTERRUPTION at iteration 3] row 0"
    assert rows[1:-1] == [f"  row {n}" for n in range(1, LONGEST_SHOWN)]
    assert rows[-1] == f"  … {101 - LONGEST_SHOWN} more lines ✓ Message injected (before a tool, 3.2 s)"
    assert len("".join(shown(interruption(message="x" * 100_000)))) < 3000


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("plain ✓ 漢字 é\n\ttext", "plain ✓ 漢字 é\n\ttext"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1H\x1b[?25lgone", "gone"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9d0;title\x9ctext", "text"),
        ("\x1bPq#0\x1b\\text", "text"),
        ("\x1b_apc\x1b\\text", "text"),
        ("\x1bc\x1b7\x1b(0text", "text"),
        ("\x1b]0;unended", "0;unended"),
        ("\x1b[12", "12"),
        ("\x1b\x1b[31m[2J", "[2J"),
        ("a\rb\x08c\x07d\x00e\x7ff", "abcdef"),
        ("a\x85b\x9fc", "abc"),
        ("a\u202eb\u2066c\u2069d", "abcd"),
        ("a\ud800b\udfff", "ab"),
        ("line\r\nline", "line\nline"),
        ("\x1b", ""),
    ],
)
def test_clean_takes_out_what_a_terminal_would_obey(text: str, rest: str) -> None:
    assert sanitize(text) == rest


FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
nasty = st.text(st.one_of(st.sampled_from("\x1b[];?0m\x07\x9b\x9c\x9d\\\r\n\t\u202e\ud800 "), st.characters()))


@given(nasty)
def test_clean_leaves_nothing_to_obey_and_is_done_in_one_go(text: str) -> None:
    assert not FORBIDDEN.search(sanitize(text))
    assert sanitize(sanitize(text)) == sanitize(text)


@given(st.text(st.characters(exclude_categories=["C"], exclude_characters="\x7f")))
def test_clean_keeps_everything_else(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("piece", ["\x1b]", "\x9d", "\x1b[", "\x1b[0", "\x1b ", "\x1bP\x9b", "\x9d\x1b"])
def test_clean_takes_linear_time(piece: str) -> None:
    # In the square of its length this would take minutes.
    assert not FORBIDDEN.search(sanitize(piece * 200_000))


def every_event(text: str, agent: str) -> list[Event]:
    """One of each, with the text wherever somebody else can put one."""
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
        interruption(agent=agent, target_agent=text, message=text, tools_skipped=(text,)),
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


@given(text=nasty, child=st.booleans(), color=st.booleans(), ascii=st.booleans(), width=st.integers(0, 100))
def test_no_event_brings_an_escape_sequence_or_a_second_row(
    text: str, child: bool, color: bool, ascii: bool, width: int
) -> None:
    rows = shown(*every_event(text, text if child else "main"), color=color, ascii=ascii, width=width)

    for row in rows:
        plain = re.sub(r"\x1b\[\d+m", "", row) if color else row
        assert not FORBIDDEN.search(plain)
        assert "\n" not in row


def test_ascii_has_no_other_sign() -> None:
    rows = shown(*every_event("text", "explore"), *every_event("text " * 100, "main"), ascii=True)

    assert "".join(rows).isascii()
    assert "[! INTERRUPTION of text at iteration 3]" in "\n".join(rows)


def test_how_a_file_changes_is_counted_in_ascii_too() -> None:
    diff = FileDiff("a.py", (Hunk(1, 1, ("-x", "+y")),))
    asked = events.Question(
        id="Q1", kind="approval", text="Allow edit_file: a.py", options=(), tool_call_id="c1", name="edit_file",
        preview=diff.text, subject="a.py", diff=diff,
    )  # fmt: skip
    ended = events.ToolResult(id="c1", name="edit_file", text="x", is_error=False, seconds=0, summary=(diff.counts,))
    renderer = UpdatingRenderer(color=False, ascii=True)
    rows = "\n".join(row for event in (asked, ended) for row in renderer.lines(event))

    assert rows.isascii()
    assert rows.count("+1 -1") == 2


def test_a_text_in_ascii_has_the_signs_of_the_rows() -> None:
    assert in_ascii("[✓] [✗] ✓ »? Ünï ≤ 3") == "[x] [-] ok: :? Ünï <= 3"


def test_colour_is_only_added_around_rows() -> None:
    plain = shown(*every_event("some text", "main"))
    colored = shown(*every_event("some text", "main"), color=True)

    assert colored != plain
    assert [re.sub(r"\x1b\[\d+m", "", row) for row in colored] == plain
    assert all(row.endswith("\x1b[0m") for row in colored if "\x1b" in row)


# ------------------------------------------------------------------------------------------------------ at a terminal


def live(*happened: Event, width: int = 80) -> tuple[list[str], str]:
    """The rows, and what is left as the unfinished one."""
    renderer = above_a_prompt(color=False, ascii=False, width=width)
    return [row for event in happened for row in renderer.lines(event)], renderer.tail


def delta(text: str) -> events.TextDelta:
    return events.TextDelta(text=text)


def result(text: str, status: events.Status = "done", *replies: str) -> events.Result:
    return events.Result(status=status, result=text, replies=replies, iterations=1)


def test_a_reply_is_shown_as_it_comes() -> None:
    assert live(delta("There are ")) == ([], "There are")
    assert live(delta("There are "), delta("5.\nNo")) == (["There are 5."], "No")
    answer = "There are 5.\nNo more."
    shown, tail = live(delta(answer), events.Reply(text=answer, tool_calls=0), result(answer, "done", answer))
    assert (shown[:-1], tail) == (["There are 5.", "No more."], "")


def test_a_reply_that_did_not_stream_is_shown_whole() -> None:
    shown, _ = live(events.Reply(text="There are 5.", tool_calls=0), result("There are 5.", "done", "There are 5."))
    assert shown[:-1] == ["There are 5."]


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
def test_other_rows_wait_for_the_end_of_a_block(kind: str, color: bool, size: int, width: int) -> None:
    first, second = BLOCKS[kind]
    text = f"{first}\n{'' if 'item' in kind else chr(10)}{second}"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    whole = [row for row in rows_of(color, [delta(text), replied(text)], width) if row]
    for when in range(1, len(pieces) + 1):
        sent = [delta(piece) for piece in pieces]
        sent.insert(when, queued("use B"))
        rows = [row for row in rows_of(color, [*sent, replied(text)], width) if row]
        at = next(n for n, row in enumerate(rows) if "Interrupting" in row)
        after = next(n for n, row in enumerate(rows) if "safe point" in row or "point" in row.split()) + 1
        assert rows[:at] + rows[after:] == whole
        assert at in (rows_in(whole, second), len(whole)), rows


def rows_of(color: bool, happened: list[Event], width: int) -> list[str]:
    renderer = above_a_prompt(color=color, ascii=False, width=width)
    rows = [row for event in happened for row in renderer.lines(event)]
    return [re.sub(r"\x1b\[[\d;]*m", "", row) for row in rows]


def rows_in(rows: list[str], second: str) -> int:
    """Where the second block begins."""
    return next(n for n, row in enumerate(rows) if second.removeprefix("- ")[:8] in row)


def replied(text: str) -> events.Reply:
    return events.Reply(text=text, tool_calls=0)


def test_rows_that_waited_are_not_lost_however_a_reply_ends() -> None:
    begun = [delta("One row\nand"), queued("use B")]
    again = events.Retry(attempt=2, delay_s=1.0, reason="it ended too early")
    for end in (replied("One row\nand"), again, result("Stopped.", "limit_reached"), ITERATION):
        rows = live(*begun, end)[0]
        assert sum("Interrupting" in row for row in rows) == 1, end


def test_an_answer_to_a_command_waits_too() -> None:
    renderer = above_a_prompt(color=False, ascii=False)
    assert renderer.lines(delta("One row\nand")) == ["One row"]
    assert renderer.answer("/todo", "The plan is empty.") == []
    assert renderer.lines(delta(" more\n\n")) == ["and more", "» /todo", "The plan is empty."]
    assert renderer.answer("/todo", "The plan is empty.") == ["» /todo", "The plan is empty."]


def test_a_reply_that_is_asked_for_again_is_void() -> None:
    again = events.Retry(attempt=2, delay_s=1.0, reason="it ended too early")
    shown, tail = live(delta("One row\nThere"), again)
    assert tail == ""
    assert shown == [
        "One row",
        "↻ That reply was cut off; ignore it.",
        "↻ Asking again in 1.0 s (attempt 2): it ended too early",
    ]
    assert live(again)[0] == ["↻ Asking again in 1.0 s (attempt 2): it ended too early"]


def test_what_a_stop_adds_to_the_text_so_far_is_shown_once() -> None:
    cut = events.Reply(text="There are", tool_calls=0)
    text = "There are\n\nWhat would you like to do instead?"
    shown, _ = live(delta("There are"), cut, result(text, "cancelled", "There are"))
    assert shown[:-1] == ["There are", "What would you like to do instead?"]


def test_the_result_is_shown_where_no_reply_did() -> None:
    assert live(result("Interrupted. Tell the chain what to do instead.", "interrupted"))[0][0].startswith(
        "Interrupted."
    )


def test_an_error_is_told_once() -> None:
    error = events.Error(message="the service is gone", kind="model")
    assert [row for row in live(error, result("the service is gone", "error"))[0] if "gone" in row] == [
        "✗ the service is gone"
    ]


def test_text_that_was_cut_without_a_reply_is_not_lost() -> None:
    shown, tail = live(delta("Half a"), result("Stopped after 5 s, the time limit.", "limit_reached"))
    assert (shown[:2], tail) == (["Half a", "Stopped after 5 s, the time limit."], "")


def test_a_line_that_is_queued_does_not_cut_a_thought() -> None:
    thinking = [events.ThinkingDelta(text="Hm, "), queued("use B"), events.ThinkingDelta(text="yes.\n")]
    assert live(*thinking)[0][-1] == "Hm, yes."


def test_thinking_is_the_unfinished_row_until_the_reply_begins() -> None:
    assert live(events.ThinkingDelta(text="Hm"))[1] == "Hm"
    assert live(events.ThinkingDelta(text="Hm"), delta("So")) == (["Hm"], "So")
