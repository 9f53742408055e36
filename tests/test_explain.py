"""What a line would be: the same as a run makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import at, open_session, settings

from chain import events
from chain.app.explain import Explanation, explain, explain_line
from chain.interruption.prompt_file import PromptFile
from chain.lines.parse import MAX_LINE

HANDLER = """\
config: {max_tokens: 900}
messages:
  - {role: user, content: "USER INTERRUPTION: ${message}"}
  - {role: system, content: "Iteration ${iteration}, point ${point}, ${remaining} left, skipped: ${skipped}."}
rules:
  - match: '^deploy'
    action: stop
  - match: '^(no|wait)\\b'
    action: urgent
  - match: 'brief'
    config: {effort: low}
    resume: false
"""


@pytest.mark.parametrize(("limit", "told"), [(1, False), (2, True)])
def test_where_no_call_is_left_nothing_is_delivered(limit: int, told: bool) -> None:
    assert (explained("use B", max_iterations=limit).composed is not None) == told


def explained(text: str, file: Path | None = None, max_iterations: int = 20) -> Explanation:
    return explain(text, PromptFile(file), max_iterations=max_iterations)


@pytest.fixture
def handler(tmp_path: Path) -> Path:
    file = tmp_path / "handler.yaml"
    file.write_text(HANDLER)
    return file


@pytest.mark.parametrize(
    ("text", "kind", "urgency", "number", "row"),
    [
        ("use the other file", "redirect", "next", None, None),
        ("no, the other one", "redirect", "urgent", 2, 8),
        ("!!wait", "redirect", "now", 2, 8),
        ("deploy it", "stop", "next", 1, 6),
        ("how far? brief, please?", "question", "next", 3, 10),
        (" no", "verbatim", "urgent", 2, 8),
        ("stop", "stop", "next", None, None),
        ("then: deploy it", "follow-up", "next", None, None),
        ("/deploy", "local", "next", None, None),
    ],
)
def test_the_rule_that_matches_decides(
    text: str, kind: str, urgency: str, number: int | None, row: int | None, handler: Path
) -> None:
    found = explained(text, handler)
    assert (found.line.kind, found.line.urgency) == (kind, urgency)
    assert (found.rule and found.rules.index(found.rule) + 1, found.rule and found.rule.line) == (number, row)
    assert (len(found.rules), found.file) == (3, str(handler))


@pytest.mark.parametrize(
    "text", ["", "  ", "stop", "deploy it", "/queue", "then: x", "todo: add", "x" * (MAX_LINE + 1)]
)
def test_what_the_model_never_gets_is_put_in_no_words(text: str, handler: Path) -> None:
    assert explained(text, handler).composed is None


@pytest.mark.parametrize(
    ("text", "words"), [("todo: add", "todo: add <task>"), ("!", "after the !"), ("x" * (MAX_LINE + 1), "100,000")]
)
def test_a_line_that_would_be_refused_says_why_and_no_rule_sees_it(text: str, words: str, handler: Path) -> None:
    found = explained(text, handler)
    assert words in found.problem
    assert (found.is_ruled, found.rule) == (False, None)


@pytest.mark.parametrize(
    ("text", "post"),
    [
        ("hello", "Iteration 3, point D, 17 left, skipped: ."),
        ("!hello", "Iteration 3, point C, 17 left, skipped: read_file."),
        ("!!hello", "Iteration 3, point N, 17 left, skipped: ."),
    ],
)
def test_the_instructions_are_filled_in_for_a_place_where_such_a_line_is_delivered(
    text: str, post: str, handler: Path
) -> None:
    composed = explained(text, handler).composed
    assert composed
    assert composed.post_prompt == post


def test_a_run_of_few_iterations_is_an_example_too(handler: Path) -> None:
    found = explained("hello", handler, max_iterations=2)
    assert (found.situation.iteration, found.situation.remaining) == (1, 1)


def test_a_todo_line_says_what_was_done_unless_the_model_is_to_do_it(handler: Path) -> None:
    composed = explained("todo: add check the licence", handler).composed
    assert composed
    assert composed.text.endswith("(Done: task 4 added: check the licence)")
    handler.write_text("commands: {todo: model}")
    found = explained("todo: add check the licence", handler)
    assert found.composed
    assert (found.todo_direct, found.composed.text) == (False, "USER INTERRUPTION: todo: add check the licence")


def test_a_task_that_does_not_exist_is_not_done() -> None:
    composed = explained("todo: complete 9").composed
    assert composed
    assert "(Not done: there is no task 9" in composed.text


@pytest.mark.parametrize(
    ("text", "words"),
    [("nonsense: 1\n", "nonsense"), ("rules: [{match: '('}]\n", "regular expression"), (None, "No such file")],
)
def test_a_broken_file_is_named_and_the_built_in_prompt_is_used(text: str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "handler.yaml"
    if text is not None:
        file.write_text(text)
    found = explained("no, wait", file)
    assert found.mistake
    assert words in str(found.mistake)
    assert (found.file, found.rules, found.line.urgency) == ("", (), "next")
    assert found.composed


def test_a_rule_that_is_too_slow_is_a_mistake_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "handler.yaml"
    file.write_text("rules:\n  - match: '(x+x+)+y'\n    action: stop\n")
    found = explained("x" * 400, file)
    assert found.mistake
    assert found.mistake.line == 2
    assert (found.file, found.line.kind) == ("", "redirect")


def test_no_file_is_no_mistake() -> None:
    found = explained("hello")
    assert (found.mistake, found.file) == (None, "")


LINES = ["use the other file", "no, the other one", "todo: add check it", "brief?", "context: it is late", "skip docs"]


@pytest.mark.parametrize("text", LINES)
async def test_a_run_tells_the_model_the_same(text: str) -> None:
    """Where and when the line lands is of the example, so nothing here says it."""
    use = settings(handler=HANDLER.replace("Iteration ${iteration}, point ${point}, ${remaining} left, ", ""))
    told = explain_line(use, text)
    assert told.composed
    rules = "rules: [{when: {user: '^go$'}, tools: [{name: plan_list}]}, {text: Done.}]"
    async with open_session(rules, use=use) as session:
        at(session, events.ToolCall, lambda: session.chain.submit(text))
        await session.run("go")
        answering = session.model.requests[1]
    assert session.sent(1).endswith(f"user: {told.composed.text.replace('task 4', 'task 1')}")
    assert answering.overrides == told.composed.overrides
    assert told.composed.post_prompt.replace("read_file", "") in answering.tail
