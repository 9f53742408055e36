"""A handler prompt, and the composition of messages from the lines that wait at a safe point. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from string import Template
from typing import TYPE_CHECKING, Literal, TypeAlias

from chain.errors import ConfigError
from chain.events import Point
from chain.lines.parse import Kind, Line
from chain.messages import Overrides
from chain.text.search import SearchBudget, TooSlow
from chain.text.wording import RESUME

if TYPE_CHECKING:
    from chain.text.search import Pattern

MAX_RULE_CHARS = 2_000
"""Rules search this many characters at the start of a line. The rest of a longer line rarely matters."""

MAX_RULES_S = 0.1
"""The time limit for searching one line with all rules, in seconds of processor time. Good rules need microseconds."""

TEMPLATE_NAMES = ("message", "iteration", "point", "count", "remaining", "skipped", "outcome", "agent", "query")
"""The names that a template may contain."""

Action: TypeAlias = Literal["deliver", "urgent", "stop"]
"""What a rule does with a line that matches."""

UNDELIVERABLE_KINDS: frozenset[Kind] = frozenset({"blank", "local", "stop", "follow-up"})
"""The kinds of lines that are never delivered as an interruption."""

DEFAULT_USER = "USER INTERRUPTION: ${message}"

_POST_PROMPT = """\
The user wrote to you while you were at work. Deal with that first, in this reply:

- A wish about the plan (to add, finish, fail or list tasks): use the plan tools, if you have them. Where the message
  says in brackets that something is done, it is done: do not repeat it.
- A question, or "status": answer in a sentence or two. Iteration ${iteration}, ${remaining} model calls left.
- "continue": say that you go on.
- Anything else changes what you are to do: follow it from here on, and say in one sentence how.

Then go on with the task in the same reply. Do not start it afresh, and do not ask whether you may continue."""

MAX_CACHED_LINES = 32
"""The maximum number of lines for which the matching rule is cached. Fewer lines wait in an inbox."""


@dataclass(frozen=True, slots=True)
class InterruptionPrompt:
    """A handler prompt: how lines are delivered to the model in the middle of a task.

    ``source`` is ``default`` or ``yaml:<path>``. ``user_template`` is the message for a line. ``post_prompt`` is the
    instruction for the reply, or empty. ``resume`` is the message that resumes the task after an answer; ``None`` if
    this is turned off. ``todo_direct``: code carries out plan commands, not the model.
    """

    source: str
    user_template: str
    post_prompt: str
    overrides: Overrides
    resume: str | None
    todo_direct: bool
    rules: tuple[Rule, ...] = ()
    _rule_cache: dict[str, Rule | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _slow_rules: list[Rule] = field(default_factory=list, init=False, repr=False, compare=False)

    def rule_for(self, line: Line) -> Rule | None:
        """Return the first rule that matches a line, or ``None``.

        The result is cached, since it is needed at the acceptance and at the delivery of a line.
        """
        if line.kind in UNDELIVERABLE_KINDS or self.mistake is not None or not self.rules:
            return None
        if line.message not in self._rule_cache:
            if len(self._rule_cache) >= MAX_CACHED_LINES:
                del self._rule_cache[next(iter(self._rule_cache))]
            self._rule_cache[line.message] = self._find_rule(line)
        return self._rule_cache[line.message]

    def _find_rule(self, line: Line) -> Rule | None:
        budget = SearchBudget(MAX_RULES_S)
        try:
            return next((r for r in self.rules if budget.search(r.pattern, line.message, MAX_RULE_CHARS)), None)
        except TooSlow:
            self._slow_rules.extend(rule for rule in self.rules if rule.pattern is budget.slowest)
            return None

    @property
    def mistake(self) -> ConfigError | None:
        """The error of a rule whose search took too long, or ``None``."""
        return self._slow_rules[0].too_slow if self._slow_rules else None


@dataclass(frozen=True, eq=False, slots=True)
class Rule:
    """The action and the prompt for lines that match ``pattern``.

    ``line`` is the line of the rule in its file. ``too_slow`` is the error to report if the search takes too long.
    """

    line: int
    pattern: Pattern
    action: Action
    prompt: InterruptionPrompt
    too_slow: ConfigError


BUILT_IN_PROMPT = InterruptionPrompt(
    source="default",
    user_template=DEFAULT_USER,
    post_prompt=_POST_PROMPT,
    overrides=Overrides(),
    resume=RESUME,
    todo_direct=True,
)
"""The prompt that is used if no file is configured or the file cannot be used."""

JOB_PROMPT = InterruptionPrompt(
    source="default", user_template="${message}", post_prompt="", overrides=Overrides(), resume=None, todo_direct=False
)
"""The prompt for lines that report the end of a job. No user wrote them, so the reply needs no instructions."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The circumstances of a delivery.

    ``remaining`` is the number of model calls that are left, ``skipped`` are the names of skipped tools.
    """

    iteration: int
    point: Point
    remaining: int
    skipped: tuple[str, ...]
    agent: str
    query: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """A line that is delivered. If code carried it out, ``outcome`` describes the result: ``(Done: ...)``."""

    line: Line
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Composed:
    """A composed user message, and the parameters of the call that answers it.

    ``post_prompt`` is the text of instructions after the message. ``resume`` is the message that resumes the task after
    the reply; ``None`` if the message ends or changes the task.
    """

    text: str
    post_prompt: str
    overrides: Overrides
    resume: str | None


def apply_rule(prompt: InterruptionPrompt, line: Line) -> Line:
    """Apply the action of the rule that matches a line. Return the line unchanged, urgent, or as a stop."""
    rule = prompt.rule_for(line)
    match rule.action if rule is not None else "deliver":
        case "deliver":
            return line
        case "urgent":
            return line if line.skips_tools else replace(line, urgency="urgent")
        case "stop":
            return replace(line, kind="stop", urgency="next", command=None, adjustment=None)


def compose(
    prompt: InterruptionPrompt, arrivals: Sequence[Arrival], situation: Situation, unanswered: Sequence[Arrival] = ()
) -> Composed:
    """Compose one message from the lines of a safe point (``arrivals``), each with the prompt of the rule it matches.

    The parameters also depend on ``unanswered``: earlier lines that the same reply answers. The temperature and the
    effort are those of the last line that sets them, and ``max_tokens`` is the largest one. If several lines have the
    same ``post_prompt``, it occurs once, with the messages of all of them. There is a ``resume`` text only if the task
    continues after each line; a text from a rule is preferred. Raise ``ValueError`` if ``arrivals`` is empty.
    """
    if not arrivals:
        raise ValueError("a message needs at least one line")
    handled = [(arrival, _prompt_for(prompt, arrival.line)) for arrival in arrivals]
    answered = [*((arrival, _prompt_for(prompt, arrival.line)) for arrival in unanswered), *handled]
    answered = [each for each in answered if each[1] is not JOB_PROMPT]
    facts = {**asdict(situation), "skipped": ", ".join(situation.skipped), "count": len(arrivals)}
    resumes_task = bool(answered) and all(
        chosen.resume is not None and arrival.line.is_aside for arrival, chosen in answered
    )
    posts: dict[str, list[Arrival]] = {}
    resumes: dict[str, list[Arrival]] = {}
    for arrival, chosen in answered:
        posts.setdefault(chosen.post_prompt, []).append(arrival)
        if chosen.resume is not None:
            resumes.setdefault(chosen.resume, []).append(arrival)
    own = [text for text in resumes if text != prompt.resume] or list(resumes)
    post_prompts = [_render(template, sharing, facts) for template, sharing in posts.items()]
    return Composed(
        text="\n\n".join(_render_user_text(chosen.user_template, arrival, facts) for arrival, chosen in handled),
        post_prompt="\n\n".join(dict.fromkeys(text for text in post_prompts if text)),
        overrides=_combine([chosen.overrides for _, chosen in answered]),
        resume=(_render(own[0], resumes[own[0]], facts) or RESUME) if resumes_task else None,
    )


def _prompt_for(prompt: InterruptionPrompt, line: Line) -> InterruptionPrompt:
    if line.kind == "job":
        return JOB_PROMPT
    rule = prompt.rule_for(line)
    return prompt if rule is None else rule.prompt


def _render_user_text(template: str, arrival: Arrival, facts: dict[str, object]) -> str:
    text = _render(template, [arrival], facts) or _render(DEFAULT_USER, [arrival], facts)
    outcome = arrival.outcome.strip()
    if not outcome or "outcome" in Template(template).get_identifiers():
        return text
    return f"{text}\n{outcome}" if "\n" in text + outcome else f"{text} {outcome}"


def _render(template: str, arrivals: Sequence[Arrival], facts: dict[str, object]) -> str:
    """Substitute the names in a template. Substituted texts are not interpreted as templates."""
    message = "\n\n".join(a.line.message for a in arrivals)
    outcome = "\n".join(a.outcome.strip() for a in arrivals if a.outcome.strip())
    return Template(template).substitute(facts, message=message, outcome=outcome).strip()


def _combine(overrides: Sequence[Overrides]) -> Overrides:
    temperatures = [each.temperature for each in overrides if each.temperature is not None]
    efforts = [each.effort for each in overrides if each.effort is not None]
    limits = [each.max_tokens for each in overrides if each.max_tokens is not None]
    return Overrides(
        max(limits, default=None), temperatures[-1] if temperatures else None, efforts[-1] if efforts else None
    )
