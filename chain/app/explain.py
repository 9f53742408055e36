"""Explains what a line would do during a run, for authors of handler prompts.

The line is parsed, changed by rules and composed for the model by the functions that a run uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.app.prompt_files import prompt_file
from chain.config.load import Settings, require_trust
from chain.errors import ConfigError
from chain.events import Point
from chain.interruption.prompt import UNDELIVERABLE_KINDS, Arrival, Composed, Rule, Situation, compose
from chain.interruption.prompt_file import PromptFile
from chain.lines.parse import Line, parse_line, problem_of
from chain.plan import Task, outcome_of
from chain.text.wording import MAIN

# The example run: its iteration, query and plan, and the tools that an urgent line skips.
_ITERATION = 3
_QUERY = "Summarise the notes"
_TASKS = ("read the notes", "check the dates", "write the summary")
_SKIPPED = ("read_file",)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The effects of a line during a run.

    ``typed`` is the parsed line, and ``line`` the line after its ``rule`` was applied. ``problem`` is the reason why
    the line would be refused; empty if it would be accepted. ``is_ruled`` says whether the ``rules`` apply to lines of
    this kind. ``file`` is the path of the handler prompt; empty for the built-in one. ``mistake`` is the reason why the
    configured handler prompt is not used, if so. ``composed`` is the message for the model in the example
    ``situation``; ``None`` if the model would read no message.
    """

    typed: Line
    line: Line
    problem: str
    file: str
    mistake: ConfigError | None
    rules: tuple[Rule, ...]
    is_ruled: bool
    rule: Rule | None
    todo_direct: bool
    situation: Situation
    composed: Composed | None


def explain_line(settings: Settings, text: str) -> Explanation:
    """Return what a line would do if the user typed it during a run of the configured chain."""
    require_trust(settings)
    chosen = settings.chain()
    return explain(text, prompt_file(settings, chosen), max_iterations=chosen.max_iterations)


def explain(text: str, prompts: PromptFile, *, max_iterations: int) -> Explanation:
    """Return how a line is parsed, which rule applies, and what the model would read. Nothing is sent.

    ``max_iterations`` is the limit of the example run.
    """
    typed = parse_line(text)
    problem = problem_of(typed)
    is_ruled = not problem and typed.kind not in UNDELIVERABLE_KINDS
    line, prompt, mistake = prompts.apply_rules(typed) if is_ruled else (typed, *prompts.current())
    situation = _example_situation(line, max_iterations)
    composed = None
    if not problem and line.kind not in UNDELIVERABLE_KINDS and situation.remaining:
        outcome = _command_outcome(line) if prompt.todo_direct else ""
        composed = compose(prompt, [Arrival(line, outcome)], situation)
    return Explanation(
        typed=typed,
        line=line,
        problem=problem,
        file=prompt.source.removeprefix("yaml:") if prompt.source != "default" else "",
        mistake=None if prompts.path is None else mistake,
        rules=prompt.rules,
        is_ruled=is_ruled,
        rule=prompt.rule_for(typed) if is_ruled else None,
        todo_direct=prompt.todo_direct,
        situation=situation,
        composed=composed,
    )


def _example_situation(line: Line, max_iterations: int) -> Situation:
    """Return the example situation for the line's urgency: an urgent line skips tools, a now line cancels the work."""
    iteration = max(1, min(_ITERATION, max_iterations - 1))
    point = {"next": Point.AFTER_TOOLS, "urgent": Point.BEFORE_TOOL, "now": Point.AT_ONCE}[line.urgency]
    skipped = _SKIPPED if line.urgency == "urgent" else ()
    return Situation(iteration, point, max_iterations - iteration, skipped, MAIN, _QUERY)


def _command_outcome(line: Line) -> str:
    if line.command is None:
        return ""
    return outcome_of(line.command, map(Task, _TASKS))
