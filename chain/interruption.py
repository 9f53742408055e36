"""How an interruption is put to the model: the handler prompt, and what it makes of waiting lines.

Pure: text in, text out. Who reads the file, and when, is ``chain.promptfile``.

``parse`` turns a handler file (SPEC section 6) into an ``InterruptionPrompt``, or raises. Every text of the file is a
``string.Template`` and is checked when it is read, so that ``compose`` cannot fail while a chain runs. The choices that
the format leaves open:

- Several entries of one role are one text, joined with a blank line.
- A file without a ``user`` entry gets the built-in one; a file without a ``system`` entry has no post-prompt.
- A ``user`` text without ``${message}`` gets it appended after a blank line: what the user typed is never lost.
- ``resume: true`` is the built-in text. Numbers in a ``resume`` text are those of the delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING

from chain import yamlfile
from chain.messages import Overrides

if TYPE_CHECKING:
    from chain.errors import ConfigError
    from chain.lines import Line
    from chain.yamlfile import Node

NAMES = ("message", "iteration", "point", "count", "remaining", "skipped", "outcome", "agent", "query")
"""What a template may name."""

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


def compose(prompt: InterruptionPrompt, arrivals: Sequence[Arrival], situation: Situation) -> Composed:
    """Put all lines of one safe point into one message, which is never blank.

    Of the lines' settings the later wins, except ``max_tokens``, where the largest does, so that no answer is cut for
    another line's sake. Texts that several lines share are there once, with the messages of all these lines in it.
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
    return Composed(
        text="\n\n".join(_user_text(chosen.user_template, arrival, situation, count) for arrival, chosen in handled),
        post_prompt=_shared(posts, situation, count),
        overrides=_combined([chosen.overrides for _, chosen in handled]),
        resume=(_shared(resumes, situation, count) or _RESUME) if comes_back else None,
    )


def _prompt_for(prompt: InterruptionPrompt, line: Line) -> InterruptionPrompt:
    """What holds for this line. Until a file can have rules, one prompt holds for all."""
    return prompt


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
    top = root.mapping(["version", "description", "config", "messages", "resume", "commands"])
    if "version" in top and isinstance(top["version"].value, bool | list | dict | None):
        raise top["version"].error('expected a version, such as "1.0"')
    if "description" in top:
        top["description"].text()
    user, system = _messages(top["messages"], text) if "messages" in top else ("", "")
    if not user:
        user = _USER
    elif "message" not in Template(user).get_identifiers():
        user += "\n\n${message}"
    todo = top["commands"].mapping(["todo"]).get("todo") if "commands" in top else None
    return InterruptionPrompt(
        source=f"yaml:{file}",
        user_template=user,
        post_prompt=system,
        overrides=_overrides(top["config"]) if "config" in top else Overrides(),
        resume=_resume(top["resume"], text) if "resume" in top else _RESUME,
        todo_direct=todo is None or todo.choice(["direct", "model"]) == "direct",
    )


def _overrides(node: Node) -> Overrides:
    keys = node.mapping(["max_tokens", "temperature", "effort"])
    effort = keys.get("effort")
    if effort is not None and not effort.text().strip():
        raise effort.error("is empty; take the key away to leave the effort as it is")
    return Overrides(
        max_tokens=keys["max_tokens"].integer(minimum=1) if "max_tokens" in keys else None,
        temperature=keys["temperature"].number() if "temperature" in keys else None,
        effort=effort.text().strip() if effort is not None else None,
    )


def _messages(node: Node, source: str) -> tuple[str, str]:
    """The texts for the roles ``user`` and ``system``; empty where there is none."""
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
    return "\n\n".join(texts["user"]), "\n\n".join(texts["system"])


def _resume(node: Node, source: str) -> str | None:
    if isinstance(node.value, bool):
        return _RESUME if node.value else None
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
