"""The explanation of what a line would do, which is what it does in a run.

``explain`` composes the line for an example: the third iteration of a run, whose plan has three tasks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.sessions import call_at_event, make_settings, open_session

from chain import events
from chain.app.explain import Explanation, explain, explain_line
from chain.events import Point
from chain.interruption.prompt import Composed
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
PLACE = "Iteration ${iteration}, point ${point}, ${remaining} left, "
"""The text in HANDLER that says where the line is delivered."""


def explanation(text: str, file: Path | None = None, max_iterations: int = 20) -> Explanation:
    return explain(text, PromptFile(file), max_iterations=max_iterations)


@pytest.fixture
def handler(tmp_path: Path) -> Path:
    file = tmp_path / "handler.yaml"
    file.write_text(HANDLER)
    return file


DEPLOY_ROW, NO_ROW, BRIEF_ROW = 6, 8, 10
"""The rows of the rules in HANDLER."""


@pytest.mark.parametrize(
    ("text", "kind", "urgency", "rule_row", "is_composed"),
    [
        ("use the other file", "redirect", "next", None, True),
        ("no, the other one", "redirect", "urgent", NO_ROW, True),
        ("!!wait", "redirect", "now", NO_ROW, True),
        ("deploy it", "stop", "next", DEPLOY_ROW, False),
        ("how far? brief, please?", "question", "next", BRIEF_ROW, True),
        (" no", "verbatim", "urgent", NO_ROW, True),
        ("stop", "stop", "next", None, False),
        ("then: deploy it", "follow-up", "next", None, False),
        ("/deploy", "local", "next", None, False),
        ("  ", "blank", "next", None, False),
    ],
)
def test_the_matching_rule_decides(
    text: str, kind: str, urgency: str, rule_row: int | None, is_composed: bool, handler: Path
) -> None:
    result = explanation(text, handler)
    assert (result.line.kind, result.line.urgency) == (kind, urgency)
    assert [rule.line for rule in result.rules] == [DEPLOY_ROW, NO_ROW, BRIEF_ROW]
    assert (result.rule.line if result.rule else None) == rule_row
    assert (result.file, result.mistake) == (str(handler), None)
    assert (result.composed is not None) == is_composed, "the message that the model would read"


@pytest.mark.parametrize(
    ("text", "words"),
    [("todo: add", "todo: add <task>"), ("!", "after the !"), ("x" * (MAX_LINE + 1), "100,000")],
    ids=["no task", "no text", "too long"],
)
def test_a_refused_line_says_why(text: str, words: str, handler: Path) -> None:
    result = explanation(text, handler)
    assert words in result.problem
    assert (result.is_ruled, result.rule, result.composed) == (False, None, None)


# The example is iteration 3, or the one before the last. Only an urgent line skips the call of read_file.
@pytest.mark.parametrize(
    ("text", "max_iterations", "post_prompt"),
    [
        ("hello", 20, f"Iteration 3, point {Point.AFTER_TOOLS}, 17 left, skipped: ."),
        ("!hello", 20, f"Iteration 3, point {Point.BEFORE_TOOL}, 17 left, skipped: read_file."),
        ("!!hello", 20, f"Iteration 3, point {Point.AT_ONCE}, 17 left, skipped: ."),
        ("hello", 2, f"Iteration 1, point {Point.AFTER_TOOLS}, 1 left, skipped: ."),
    ],
)
def test_the_example_fits_line_and_limit(text: str, max_iterations: int, post_prompt: str, handler: Path) -> None:
    composed = explanation(text, handler, max_iterations).composed
    assert composed
    assert composed.post_prompt == post_prompt


def test_a_run_of_one_iteration_delivers_nothing() -> None:
    result = explanation("use B", max_iterations=1)
    assert (result.composed, result.file, result.mistake) == (None, "", None)


ADD = "todo: add a licence"
PLAN_COMMANDS = {
    "done": (ADD, HANDLER, True, "(Done: task 4 added: a licence)"),
    "left to the model": (ADD, "commands: {todo: model}", False, f"USER INTERRUPTION: {ADD}"),
    "not possible": ("todo: complete 9", HANDLER, True, "(Not done: there is no task 9; the plan has 3)"),
}
"""A line, the handler prompt, whether the line is done without the model, and the end of the composed message."""


@pytest.mark.parametrize(("text", "rules", "is_direct", "end"), PLAN_COMMANDS.values(), ids=PLAN_COMMANDS)
def test_a_plan_commands_outcome_is_shown(text: str, rules: str, is_direct: bool, end: str, handler: Path) -> None:
    handler.write_text(rules)
    result = explanation(text, handler)
    assert result.composed
    assert result.composed.text.endswith(end)
    assert result.todo_direct == is_direct


def test_a_broken_handler_leaves_the_built_in_one(handler: Path) -> None:
    handler.write_text("nonsense: 1\n")
    result = explanation("no, the other one", handler)
    assert result.mistake
    assert (result.mistake.file, result.mistake.line) == (str(handler), 1)
    assert "nonsense" in str(result.mistake)
    assert (result.file, result.rules, result.line.kind, result.line.urgency) == ("", (), "redirect", "next")
    assert result.composed


def as_in_run(composed: Composed) -> Composed:
    """Return the example's message as it is in a run with an empty plan, in which no call is skipped."""
    in_empty_plan = composed.text.replace("task 4", "task 1")
    return replace(composed, text=in_empty_plan, post_prompt=composed.post_prompt.replace("read_file", ""))


@pytest.mark.parametrize(
    "text",
    ["use the other file", "no, the other one", "todo: add check it", "brief?", "context: it is late", "skip docs"],
)
async def test_a_run_composes_the_same(text: str) -> None:
    settings = make_settings(handler=HANDLER.replace(PLACE, ""))  # the run delivers the line at another place
    composed = explain_line(settings, text).composed
    assert composed
    expected = as_in_run(composed)
    rules = "rules: [{when: {user: '^go$'}, tools: [{name: plan_list}]}, {text: Done.}]"
    async with open_session(rules, settings=settings) as session:
        call_at_event(session, events.ToolCall, lambda: session.chain.submit(text))
        await session.run("go")
        answering_request = session.model.requests[1]
    assert session.sent(1).endswith(f"user: {expected.text}")
    assert answering_request.overrides == expected.overrides
    assert expected.post_prompt in answering_request.tail
