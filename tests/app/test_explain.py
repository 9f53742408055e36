"""What a line would do: the same as in a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sessions import call_at_event, make_settings, open_session

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


def explanation(text: str, file: Path | None = None, max_iterations: int = 20) -> Explanation:
    return explain(text, PromptFile(file), max_iterations=max_iterations)


@pytest.fixture
def handler(tmp_path: Path) -> Path:
    file = tmp_path / "handler.yaml"
    file.write_text(HANDLER)
    return file


@pytest.mark.parametrize(
    ("text", "kind", "urgency", "number", "row", "is_composed"),
    [
        ("use the other file", "redirect", "next", None, None, True),
        ("no, the other one", "redirect", "urgent", 2, 8, True),
        ("!!wait", "redirect", "now", 2, 8, True),
        ("deploy it", "stop", "next", 1, 6, False),
        ("how far? brief, please?", "question", "next", 3, 10, True),
        (" no", "verbatim", "urgent", 2, 8, True),
        ("stop", "stop", "next", None, None, False),
        ("then: deploy it", "follow-up", "next", None, None, False),
        ("/deploy", "local", "next", None, None, False),
        ("  ", "blank", "next", None, None, False),
    ],
)
def test_the_matching_rule_decides(
    text: str, kind: str, urgency: str, number: int | None, row: int | None, is_composed: bool, handler: Path
) -> None:
    found = explanation(text, handler)
    assert (found.line.kind, found.line.urgency) == (kind, urgency)
    assert (found.rule and found.rules.index(found.rule) + 1, found.rule and found.rule.line) == (number, row)
    assert (len(found.rules), found.file, found.mistake) == (3, str(handler), None)
    assert (found.composed is not None) == is_composed


@pytest.mark.parametrize(
    ("text", "words"), [("todo: add", "todo: add <task>"), ("!", "after the !"), ("x" * (MAX_LINE + 1), "100,000")]
)
def test_a_refused_line_says_why(text: str, words: str, handler: Path) -> None:
    found = explanation(text, handler)
    assert words in found.problem
    assert (found.is_ruled, found.rule, found.composed) == (False, None, None)


@pytest.mark.parametrize(
    ("text", "limit", "post"),
    [
        ("hello", 20, "Iteration 3, point D, 17 left, skipped: ."),
        ("!hello", 20, "Iteration 3, point C, 17 left, skipped: read_file."),
        ("!!hello", 20, "Iteration 3, point N, 17 left, skipped: ."),
        ("hello", 2, "Iteration 1, point D, 1 left, skipped: ."),
    ],
)
def test_the_example_fits_the_line_and_the_limit(text: str, limit: int, post: str, handler: Path) -> None:
    composed = explanation(text, handler, limit).composed
    assert composed
    assert composed.post_prompt == post


def test_a_run_of_one_iteration_delivers_nothing() -> None:
    found = explanation("use B", max_iterations=1)
    assert (found.composed, found.file, found.mistake) == (None, "", None)


@pytest.mark.parametrize(
    ("text", "handler_text", "ends"),
    [
        ("todo: add check the licence", HANDLER, "(Done: task 4 added: check the licence)"),
        ("todo: add check the licence", "commands: {todo: model}", "USER INTERRUPTION: todo: add check the licence"),
        ("todo: complete 9", HANDLER, "(Not done: there is no task 9; the plan has 3)"),
    ],
)
def test_a_plan_command_says_what_was_done(text: str, handler_text: str, ends: str, handler: Path) -> None:
    handler.write_text(handler_text)
    found = explanation(text, handler)
    assert found.composed
    assert found.composed.text.endswith(ends)
    assert found.todo_direct == (handler_text is HANDLER)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("nonsense: 1\n", 1, "nonsense"),
        ("rules: [{match: '('}]\n", 1, "regular expression"),
        ("rules:\n  - match: '(x+x+)+y'\n    action: stop\n", 2, "took"),
        (None, None, "No such file"),
    ],
)
def test_a_broken_handler_leaves_the_built_in_one(
    text: str | None, line: int | None, words: str, handler: Path
) -> None:
    if text is None:
        handler.unlink()
    else:
        handler.write_text(text)
    found = explanation("x" * 400, handler)
    assert found.mistake
    assert found.mistake.line == line
    assert words in str(found.mistake)
    assert (found.file, found.rules, found.line.kind, found.line.urgency) == ("", (), "redirect", "next")
    assert found.composed


@pytest.mark.parametrize(
    "text",
    ["use the other file", "no, the other one", "todo: add check it", "brief?", "context: it is late", "skip docs"],
)
async def test_a_run_composes_the_same(text: str) -> None:
    """The place where the line is delivered differs, so this handler prompt does not name it."""
    settings = make_settings(handler=HANDLER.replace("Iteration ${iteration}, point ${point}, ${remaining} left, ", ""))
    composed = explain_line(settings, text).composed
    assert composed
    rules = "rules: [{when: {user: '^go$'}, tools: [{name: plan_list}]}, {text: Done.}]"
    async with open_session(rules, settings=settings) as session:
        call_at_event(session, events.ToolCall, lambda: session.chain.submit(text))
        await session.run("go")
        answering = session.model.requests[1]
    assert session.sent(1).endswith(f"user: {composed.text.replace('task 4', 'task 1')}")
    assert answering.overrides == composed.overrides
    assert composed.post_prompt.replace("read_file", "") in answering.tail
