"""Reads handler prompts (SPEC section 6), and again when they changed, so that one can be edited while a chain runs.

Every text of a file is a ``string.Template`` and is checked when it is read, so that ``compose`` cannot fail while a
chain runs. The choices that the format leaves open:

- Several entries of one role are one text, joined with a blank line.
- A file without a ``user`` entry gets the built-in one; a file without a ``system`` entry has no post-prompt.
- A ``user`` text without ``${message}`` gets it appended after a blank line: what the user typed is never lost.
- ``resume: true`` is the built-in text. Numbers in a ``resume`` text are those of the delivery.

Of ``rules`` the first that matches a line decides (``chain help handler-prompts``). What the format leaves open there:

- ``^`` and ``$`` are the ends of the line, however many rows it has. One that begins with a space is seen, too.
- By which rule a line is put to the model is decided as it is delivered, so that an edit of the file holds for those
  that wait. While the file stays as it is, that is the rule of its action.
- ``resume: true`` is the handler's text. An action only adds: ``deliver`` leaves a ``!`` in force.
- Where the time of all rules is not enough none decides: the one that took most of it is a mistake in the file
  (``InterruptionPrompt.mistake``), and the file is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, TypeAlias, get_args

from chain.config import yamlfile
from chain.config.yamlfile import Node
from chain.errors import ConfigError
from chain.interruption.prompt import (
    BUILT_IN_PROMPT,
    MAX_RULES_S,
    TEMPLATE_NAMES,
    Action,
    InterruptionPrompt,
    Rule,
    by_rule,
)
from chain.messages import Overrides
from chain.text.search import BadPattern, Expressions
from chain.text.wording import RESUME

if TYPE_CHECKING:
    from chain.lines.parse import Line
    from chain.text.search import Pattern

_State: TypeAlias = tuple[int, ...] | str
"""What identifies a state of a file: numbers of its inode, or why there are none."""


class PromptFile:
    """A handler prompt that is read again whenever its file has changed. Without a ``path`` it is the built-in prompt.

    The file has to be in the folder ``within``.
    """

    def __init__(self, path: Path | None, within: Path | None = None, *, named_at: str = "") -> None:
        self.path = path
        self._named_at = named_at
        self._within = within
        self._state: _State | None = None
        self._prompt = BUILT_IN_PROMPT

    def current(self) -> tuple[InterruptionPrompt, ConfigError | None]:
        """Return the prompt in force and an error if the file cannot be used.

        The error is returned once for each state of the file. Blocks for a bounded read.
        """
        state = self._read_state()
        mistake = self._prompt.mistake
        if state != self._state:
            # The state is older than the content: a write in between makes the next call read again.
            self._state, mistake = state, None
            try:
                self._prompt = self._load(state)
            except ConfigError as error:
                mistake = error
        if mistake is not None:
            self._prompt = BUILT_IN_PROMPT
        return self._prompt, mistake

    def apply_rules(self, line: Line) -> tuple[Line, InterruptionPrompt, ConfigError | None]:
        """Return the line as the rules make it, the prompt in force for it, and the error of ``current``.

        If the rules take too long to search the line, it stays unchanged, and the built-in prompt is in force.
        """
        prompt, mistake = self.current()
        line = by_rule(prompt, line)
        return (line, prompt, mistake) if prompt.mistake is None else (line, *self.current())

    def _read_state(self) -> _State:
        if self.path is None:
            return "no file is configured for the handler prompt"
        try:
            found = self.path.stat()
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"
        except ValueError as error:  # a NUL in the path
            return f"cannot be read: {error}"
        # The change time is the only one that shows when a file became readable, or was put back with its old times.
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev, found.st_mode

    def _load(self, state: _State) -> InterruptionPrompt:
        if self.path is None or isinstance(state, str):
            named = f"; {self._named_at} names it" if self.path is not None and self._named_at else ""
            raise ConfigError(f"{state}{named}", file=self.path)
        return parse_prompt(yamlfile.read_text(self.path, self._within), str(self.path))


def parse_prompt(text: str, file: str) -> InterruptionPrompt:
    """Parse a handler prompt; ``file`` is its name, for ``source`` and for errors. Raise ``ConfigError``."""
    root = yamlfile.parse(text, file)
    if root.value is None:
        raise root.error("is empty: a handler prompt needs at least messages with a role and a content")
    top = root.mapping(["version", "description", "config", "messages", "resume", "commands", "rules"])
    if "version" in top and isinstance(top["version"].value, bool | list | dict | None):
        raise top["version"].error('expected a version, such as "1.0"')
    if "description" in top:
        top["description"].text()
    prompt = _prompt(top, text, replace(BUILT_IN_PROMPT, source=f"yaml:{file}", post_prompt=""))
    todo = top["commands"].mapping(["todo"]).get("todo") if "commands" in top else None
    prompt = replace(prompt, todo_direct=todo is None or todo.choice(["direct", "model"]) == "direct")
    rules, expressions = top["rules"].items() if "rules" in top else [], Expressions()
    return replace(prompt, rules=tuple(_rule(node, text, prompt, expressions) for node in rules))


def _prompt(keys: dict[str, Node], text: str, base: InterruptionPrompt) -> InterruptionPrompt:
    """Return ``base`` with the values of these keys. A missing key leaves the value of ``base``."""
    user, system = _messages(keys["messages"], text) if "messages" in keys else ("", "")
    return replace(
        base,
        user_template=user or base.user_template,
        post_prompt=system or base.post_prompt,
        overrides=_overrides(keys["config"], base.overrides) if "config" in keys else base.overrides,
        resume=_resume(keys["resume"], text, base.resume or RESUME) if "resume" in keys else base.resume,
    )


def _rule(node: Node, text: str, handler: InterruptionPrompt, expressions: Expressions) -> Rule:
    keys = node.mapping(["match", "action", "resume", "config", "messages"])
    if "match" not in keys:
        raise node.error("has no match")
    prompt = _prompt(keys, text, handler)
    action: Action = "deliver"
    if "action" in keys:
        keys["action"].choice(get_args(Action))
        action = keys["action"].value
    slow = f"took more than {MAX_RULES_S:g} s, with the rules before it, to search a line; "
    too_slow = keys["match"].error(slow + "take repeats inside repeats apart, such as (a+)+")
    return Rule(node.line, _pattern(keys["match"], expressions), action, prompt, too_slow)


def _pattern(node: Node, expressions: Expressions) -> Pattern:
    text = node.text()
    if not text.strip():
        raise node.error("is empty; . matches every line")
    try:
        return expressions.compile(text)
    except BadPattern as error:
        raise node.error(str(error)) from None


def _overrides(node: Node, base: Overrides) -> Overrides:
    """Parse the parameters of a ``config``. A missing key leaves the value of ``base``."""
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
    """Return the texts of the roles ``user`` (with ``${message}`` in it) and ``system``; empty if a role has none."""
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
    """Return a text without outer white space. Raise ``ConfigError`` unless it is a valid template."""
    text = node.text().strip()
    if not text:
        raise node.error("is empty")
    for found in Template.pattern.finditer(text):
        name = found["named"] or found["braced"]
        before, after = text[: found.start()].rpartition("\n")[2], text[found.start() :].partition("\n")[0]
        if name is not None and name not in TEMPLATE_NAMES:
            problem = f"unknown name {found[0]}: the names are {', '.join(TEMPLATE_NAMES)}"
            raise _at(node, source, (before + after, found[0]), problem)
        if found["invalid"] is not None:
            problem = f"{after[:20].rstrip()!r} cannot be read: write $$ for a dollar sign"
            raise _at(node, source, (before + after,), problem)
    return text


def _at(node: Node, source: str, pieces: Sequence[str], message: str) -> ConfigError:
    """Return an error for a text, on the line that contains one of the pieces, or else on the line of its key."""
    rows = source.splitlines()
    lines = [n for piece in pieces for n in range(node.line, len(rows) + 1) if piece.strip() in rows[n - 1]]
    return Node(node.value, node.file, lines[0] if lines else node.line, node.key).error(message)
