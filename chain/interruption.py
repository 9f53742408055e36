"""How an interruption is put to the model: the handler prompt, and what it makes of waiting lines.

Pure: text in, text out. Who reads the file, and when, is ``chain.promptfile``.

``parse`` turns a handler file (SPEC section 6) into an ``InterruptionPrompt``, or raises. Every text of the file is a
``string.Template`` and is checked when it is read, so that ``compose`` cannot fail while a chain runs. The choices that
the format leaves open:

- Several entries of one role are one text, joined with a blank line.
- A file without a ``user`` entry gets the built-in one; a file without a ``system`` entry has no post-prompt.
- A ``user`` text without ``${message}`` gets it appended after a blank line: what the user typed is never lost.
- ``resume: true`` is the built-in text. Numbers in a ``resume`` text are those of the delivery.

Of ``rules`` the first that matches a line decides. What the format leaves open there:

- A rule looks at what ``${message}`` gives, so without the line's marker, and at no more than its beginning
  (``MAX_SEARCHED``). ``^`` and ``$`` are the ends of the line, however many rows it has.
- Rules see every line that can be put to the model as an interruption, one that begins with a space too; no follow-up,
  which is the query of a run.
- The action is decided as the line is accepted. By which rule the line is put to the model is decided as it is
  delivered, so that an edit of the file holds for the lines that wait. While the file stays as it is, that is the same
  rule.
- What a rule leaves out is the handler's, each setting and each role by itself. ``resume: true`` is the handler's text.
- An action only adds: ``deliver`` leaves a ``!`` in force.
- The rules together have ``MAX_SEARCH_S`` for a line. If that is not enough, no rule decides, and the rule that took
  most of it is a mistake in the file that shows only in use: ``mistake`` tells of it, for the file to be given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from string import Template
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from chain import yamlfile
from chain.messages import Overrides
from chain.search import BadPattern, Expressions, Patience, TooSlow

if TYPE_CHECKING:
    from chain.errors import ConfigError
    from chain.lines import Kind, Line
    from chain.search import Pattern
    from chain.yamlfile import Node

MAX_SEARCHED = 2_000
"""Characters of a line that rules look at: what somebody types has fewer, and what is pasted says little by its end."""

MAX_SEARCH_S = 0.1
"""Seconds of processor time that all rules together have for a line: good ones need microseconds."""

NAMES = ("message", "iteration", "point", "count", "remaining", "skipped", "outcome", "agent", "query")
"""What a template may name."""

Action: TypeAlias = Literal["deliver", "urgent", "stop"]

_NOT_PUT: frozenset[Kind] = frozenset({"blank", "local", "stop", "follow-up"})
"""Kinds that are never put to the model as an interruption."""

_USER = "USER INTERRUPTION: ${message}"

_RESUME = (
    "Your reply was shown to the user. Continue the task, as the user's messages changed it. "
    "If it is already complete, give the final answer."
)

_POST_PROMPT = """\
The user wrote to you while you were at work. Deal with that first, in this reply:

- A wish about the plan (to add, finish, fail or list tasks): use the plan tools, if you have them. Where the message
  says in brackets that something is done, it is done: do not repeat it.
- A question, or "status": answer in a sentence or two. Iteration ${iteration}, ${remaining} model calls left.
- "continue": say that you go on.
- Anything else changes what you are to do: follow it from here on, and say in one sentence how.

Then go on with the task in the same reply. Do not start it afresh, and do not ask whether you may continue."""


MAX_FOUND = 32
"""Lines whose rules are remembered: more than wait in a channel."""


@dataclass(frozen=True, slots=True)
class InterruptionPrompt:
    """A handler prompt.

    ``source`` is ``default`` or ``yaml:<path>``. ``post_prompt`` is empty where there is none, ``resume`` is ``None``
    where coming back to the task is off, and ``todo_direct`` says whether code carries out plan commands.
    """

    source: str
    user_template: str
    post_prompt: str
    overrides: Overrides
    resume: str | None
    todo_direct: bool
    rules: tuple[Rule, ...] = ()
    _found: dict[str, Rule | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def rule_for(self, line: Line) -> Rule | None:
        """The first rule that matches a line; none for one that is not put to the model as an interruption.

        A line is asked for when it comes and when it is delivered, and searched once.
        """
        if line.kind in _NOT_PUT or self.mistake is not None or not self.rules:
            return None
        if line.message not in self._found:
            if len(self._found) >= MAX_FOUND:
                del self._found[next(iter(self._found))]
            self._found[line.message] = self._search(line)
        return self._found[line.message]

    def _search(self, line: Line) -> Rule | None:
        patience = Patience(MAX_SEARCH_S)
        try:
            return next((r for r in self.rules if patience.search(r.pattern, line.message, MAX_SEARCHED)), None)
        except TooSlow:
            # Every rule with that pattern: a file may have it twice.
            for rule in self.rules:
                rule.was_too_slow = rule.pattern is patience.slowest
            return None

    @property
    def mistake(self) -> ConfigError | None:
        """What showed only in use: a rule whose search took too long."""
        return next((rule.too_slow for rule in self.rules if rule.was_too_slow), None)


@dataclass(eq=False, slots=True)
class Rule:
    """What holds for the lines that ``pattern`` is found in.

    ``prompt`` is the handler prompt with the rule's own parts in it. ``was_too_slow`` is set when searching for it took
    too long, and ``too_slow`` is what to tell the user then.
    """

    pattern: Pattern
    action: Action
    prompt: InterruptionPrompt
    too_slow: ConfigError
    was_too_slow: bool = False


BUILT_IN = InterruptionPrompt(
    source="default",
    user_template=_USER,
    post_prompt=_POST_PROMPT,
    overrides=Overrides(),
    resume=_RESUME,
    todo_direct=True,
)
"""The prompt where no file can be used."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Where the lines are delivered: at ``point`` of ``iteration``, with ``remaining`` model calls left to the run.

    ``skipped`` are the names of the tools that an urgent line kept from starting, ``query`` is the run's.
    """

    iteration: int
    point: str
    remaining: int
    skipped: tuple[str, ...]
    agent: str
    query: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """A line that is delivered now; ``outcome`` tells what code already did about it, such as ``(Done: ...)``."""

    line: Line
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Composed:
    """What the model gets: ``text`` as a user message, the rest for the one call that answers it.

    ``post_prompt`` may be empty. ``resume`` brings the model back to its task; ``None`` if the reply may end the run.
    """

    text: str
    post_prompt: str
    overrides: Overrides
    resume: str | None


def by_rule(prompt: InterruptionPrompt, line: Line) -> Line:
    """A line as the action of its rule makes it: the same one, an urgent one or a stop."""
    rule = prompt.rule_for(line)
    match rule.action if rule is not None else "deliver":
        case "deliver":
            return line
        case "urgent":
            return replace(line, kind="urgent" if line.kind == "redirect" else line.kind, urgent=True)
        case "stop":
            return replace(line, kind="stop", urgent=False, command=None, adjustment=None)


def compose(prompt: InterruptionPrompt, arrivals: Sequence[Arrival], situation: Situation) -> Composed:
    """Put all lines of one safe point into one message, which is never blank. Each is put by its own rule.

    Of the lines' settings the later wins, except ``max_tokens``, where the largest does, so that no answer is cut for
    another line's sake; a line that sets none has no say. Texts that several lines share are there once, with the
    messages of all these lines in it. The model can be brought back to its task only once, so of several ``resume``
    texts the first that a rule has of its own is used, with the messages of the lines that it is for.
    """
    if not arrivals:
        raise ValueError("a message needs at least one line")
    handled = [(arrival, _prompt_for(prompt, arrival.line)) for arrival in arrivals]
    count = len(arrivals)
    posts: dict[str, list[Arrival]] = {}
    resumes: dict[str, list[Arrival]] = {}
    comes_back = True
    for arrival, chosen in handled:
        posts.setdefault(chosen.post_prompt, []).append(arrival)
        if chosen.resume is None or not arrival.line.is_aside:
            comes_back = False
        else:
            resumes.setdefault(chosen.resume, []).append(arrival)
    own = [text for text in resumes if text != prompt.resume] or list(resumes)
    return Composed(
        text="\n\n".join(_user_text(chosen.user_template, arrival, situation, count) for arrival, chosen in handled),
        post_prompt=_shared(posts, situation, count),
        overrides=_combined([chosen.overrides for _, chosen in handled]),
        resume=(_render(own[0], resumes[own[0]], situation, count) or _RESUME) if comes_back else None,
    )


def _prompt_for(prompt: InterruptionPrompt, line: Line) -> InterruptionPrompt:
    rule = prompt.rule_for(line)
    return prompt if rule is None else rule.prompt


def _user_text(template: str, arrival: Arrival, situation: Situation, count: int) -> str:
    text = _render(template, [arrival], situation, count) or _render(_USER, [arrival], situation, count)
    outcome = arrival.outcome.strip()
    if not outcome or "outcome" in Template(template).get_identifiers():
        return text
    return f"{text}\n{outcome}" if "\n" in text + outcome else f"{text} {outcome}"


def _shared(texts: dict[str, list[Arrival]], situation: Situation, count: int) -> str:
    rendered = [_render(template, arrivals, situation, count) for template, arrivals in texts.items()]
    return "\n\n".join(dict.fromkeys(text for text in rendered if text))


def _render(template: str, arrivals: Sequence[Arrival], situation: Situation, count: int) -> str:
    """Fill a template in. What is filled in is never read as a template itself."""
    values = {
        "message": "\n\n".join(a.line.message for a in arrivals),
        "outcome": "\n".join(a.outcome.strip() for a in arrivals if a.outcome.strip()),
        "count": str(count),
        "iteration": str(situation.iteration),
        "point": situation.point,
        "remaining": str(situation.remaining),
        "skipped": ", ".join(situation.skipped),
        "agent": situation.agent,
        "query": situation.query,
    }
    return Template(template).substitute(values).strip()


def _combined(overrides: Sequence[Overrides]) -> Overrides:
    temperature, effort = None, None
    for each in overrides:
        temperature = temperature if each.temperature is None else each.temperature
        effort = effort if each.effort is None else each.effort
    limits = [each.max_tokens for each in overrides if each.max_tokens is not None]
    return Overrides(max_tokens=max(limits, default=None), temperature=temperature, effort=effort)


def parse(text: str, file: str) -> InterruptionPrompt:
    """Read a handler file; ``file`` is its name, for ``source`` and for errors. Raises ``ConfigError``."""
    root = yamlfile.parse(text, file)
    if root.value is None:
        raise root.error("is empty: a handler prompt needs at least messages with a role and a content")
    top = root.mapping(["version", "description", "config", "messages", "resume", "commands", "rules"])
    if "version" in top and isinstance(top["version"].value, bool | list | dict | None):
        raise top["version"].error('expected a version, such as "1.0"')
    if "description" in top:
        top["description"].text()
    user, system = _messages(top["messages"], text) if "messages" in top else ("", "")
    todo = top["commands"].mapping(["todo"]).get("todo") if "commands" in top else None
    handler = InterruptionPrompt(
        source=f"yaml:{file}",
        user_template=user or _USER,
        post_prompt=system,
        overrides=_overrides(top["config"], Overrides()) if "config" in top else Overrides(),
        resume=_resume(top["resume"], text, _RESUME) if "resume" in top else _RESUME,
        todo_direct=todo is None or todo.choice(["direct", "model"]) == "direct",
    )
    rules, expressions = top["rules"].items() if "rules" in top else [], Expressions()
    return replace(handler, rules=tuple(_rule(node, text, handler, expressions) for node in rules))


def _rule(node: Node, source: str, handler: InterruptionPrompt, expressions: Expressions) -> Rule:
    keys = node.mapping(["match", "action", "resume", "config", "messages"])
    if "match" not in keys:
        raise node.error("has no match")
    user, system = _messages(keys["messages"], source) if "messages" in keys else ("", "")
    action: Action = "deliver"
    if "action" in keys:
        keys["action"].choice(get_args(Action))
        action = keys["action"].value
    return Rule(
        pattern=_pattern(keys["match"], expressions),
        action=action,
        prompt=replace(
            handler,
            user_template=user or handler.user_template,
            post_prompt=system or handler.post_prompt,
            overrides=_overrides(keys["config"], handler.overrides) if "config" in keys else handler.overrides,
            resume=_resume(keys["resume"], source, handler.resume or _RESUME) if "resume" in keys else handler.resume,
        ),
        too_slow=keys["match"].error(
            f"took more than {MAX_SEARCH_S:g} s, with the rules before it, to search a line; "
            "take repeats inside repeats apart, such as (a+)+"
        ),
    )


def _pattern(node: Node, expressions: Expressions) -> Pattern:
    text = node.text()
    if not text.strip():
        raise node.error("is empty; . matches every line")
    try:
        return expressions.compile(text)
    except BadPattern as error:
        raise node.error(str(error)) from None


def _overrides(node: Node, base: Overrides) -> Overrides:
    """The settings of a ``config``; what it leaves out is from ``base``."""
    keys = node.mapping(["max_tokens", "temperature", "effort"])
    effort = keys.get("effort")
    if effort is not None and not effort.text().strip():
        raise effort.error("is empty; take the key away to leave the effort as it is")
    return Overrides(
        max_tokens=keys["max_tokens"].integer(minimum=1) if "max_tokens" in keys else base.max_tokens,
        temperature=keys["temperature"].number() if "temperature" in keys else base.temperature,
        effort=effort.text().strip() if effort is not None else base.effort,
    )


def _messages(node: Node, source: str) -> tuple[str, str]:
    """The texts for the roles ``user``, with the message in it, and ``system``; empty where there is none."""
    if not node.items():
        raise node.error("is empty; write a message with a role and a content, or take the key away")
    texts: dict[str, list[str]] = {"user": [], "system": []}
    for entry in node.items():
        keys = entry.mapping(["role", "content"])
        for key in ("role", "content"):
            if key not in keys:
                raise entry.error(f"has no {key}")
        role = keys["role"].choice(texts)
        texts[role].append(_template(keys["content"], source))
    user = "\n\n".join(texts["user"])
    if user and "message" not in Template(user).get_identifiers():
        user += "\n\n${message}"
    return user, "\n\n".join(texts["system"])


def _resume(node: Node, source: str, default: str) -> str | None:
    if isinstance(node.value, bool):
        return default if node.value else None
    if not isinstance(node.value, str):
        raise node.error("expected a text, or false to turn coming back off")
    return _template(node, source)


def _template(node: Node, source: str) -> str:
    """A text of the file, without the outer space that YAML's block style leaves, and known to be a good template."""
    text = node.text().strip()
    if not text:
        raise node.error("is empty")
    for found in Template.pattern.finditer(text):
        name = found["named"] or found["braced"]
        before, after = text[: found.start()].rpartition("\n")[2], text[found.start() :].partition("\n")[0]
        if name is not None and name not in NAMES:
            problem = f"unknown name {found[0]}: the names are {', '.join(NAMES)}"
            raise _at(node, source, (before + after, found[0]), problem)
        if found["invalid"] is not None:
            problem = f"{after[:20].rstrip()!r} cannot be read: write $$ for a dollar sign"
            raise _at(node, source, (before + after,), problem)
    return text


def _at(node: Node, source: str, pieces: Sequence[str], message: str) -> ConfigError:
    """An error in a text, on the line where one of the pieces stands as it was written, else on its key's."""
    rows = source.splitlines()
    lines = [n for piece in pieces for n in range(node.line, len(rows) + 1) if piece.strip() in rows[n - 1]]
    return yamlfile.Node(node.value, node.file, lines[0] if lines else node.line, node.key).error(message)
