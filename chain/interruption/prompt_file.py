"""Reading of handler prompts (SPEC section 6). A changed file is read again, so that it can be edited during a run.

Every text of a file is a ``string.Template`` and is checked when it is read, so that ``compose`` cannot fail during a
run. Where the format leaves a choice:

- Several entries of one role are one text, joined with a blank line.
- A file without a ``user`` entry gets the built-in one; a file without a ``system`` entry has no post-prompt.
- A ``user`` text without ``${message}`` gets it appended after a blank line, so that the user's text is never lost.
- ``resume: true`` means the built-in text. Numbers in a ``resume`` text are those at the delivery of the line.

The first of the ``rules`` that matches a line decides (``chain help handler-prompts``). Where the rules leave a choice:

- ``^`` and ``$`` match the start and the end of the whole line, even if it has several rows. Lines that begin with a
  space are matched, too.
- The rule for the action is selected when a line is accepted. The rule for the text is selected when the line is
  delivered, so that an edit of the file applies to waiting lines. If the file is unchanged, both are the same rule.
- ``resume: true`` in a rule means the ``resume`` text of the file. The action ``deliver`` does not remove the urgency
  of a ``!``.
- If the time for all rules is exceeded, no rule applies, and the file is no longer used. The reported error names the
  rule that took most of the time (``InterruptionPrompt.mistake``).
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
    apply_rule,
)
from chain.messages import Overrides
from chain.text.search import BadPattern, Expressions
from chain.text.wording import RESUME

if TYPE_CHECKING:
    from chain.lines.parse import Line
    from chain.text.search import Pattern

_FileState: TypeAlias = tuple[int, ...] | str
"""The state of a file: numbers from its inode, or the reason why the file cannot be read."""


class PromptFile:
    """A handler prompt that is read again when its file has changed. Without ``path`` it is the built-in prompt.

    The file must be in the folder ``within``. ``named_at`` says where the configuration names the file, for messages.
    """

    def __init__(self, path: Path | None, within: Path | None = None, *, named_at: str = "") -> None:
        self.path = path
        self._named_at = named_at
        self._within = within
        self._state: _FileState | None = None
        self._prompt = BUILT_IN_PROMPT

    def current(self) -> tuple[InterruptionPrompt, ConfigError | None]:
        """Return the current prompt and an error or ``None``. If the file cannot be used, return the built-in prompt.

        Each error is returned only once until the file changes again. The call may block while it reads the file, whose
        size is limited.
        """
        state = self._read_state()
        mistake = self._prompt.mistake
        if state != self._state:
            # The state is read before the content, so that a write in between makes the next call read again.
            self._state, mistake = state, None
            try:
                self._prompt = self._load(state)
            except ConfigError as error:
                mistake = error
        if mistake is not None:
            self._prompt = BUILT_IN_PROMPT
        return self._prompt, mistake

    def apply_rules(self, line: Line) -> tuple[Line, InterruptionPrompt, ConfigError | None]:
        """Apply the rules to a line. Return the resulting line, the current prompt, and an error or ``None``.

        If the rules take too long, return the line unchanged, the built-in prompt and the error.
        """
        prompt, mistake = self.current()
        line = apply_rule(prompt, line)
        return (line, prompt, mistake) if prompt.mistake is None else (line, *self.current())

    def _read_state(self) -> _FileState:
        """Return the current state of the file: numbers from its inode, or the reason why it cannot be read."""
        if self.path is None:
            return "no file is configured for the handler prompt"
        try:
            found = self.path.stat()
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"
        except ValueError as error:  # a NUL in the path
            return f"cannot be read: {error}"
        # Only the change time shows that a file became readable, or was restored with its old modification time.
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev, found.st_mode

    def _load(self, state: _FileState) -> InterruptionPrompt:
        if self.path is None or isinstance(state, str):
            named = f"; {self._named_at} names it" if self.path is not None and self._named_at else ""
            raise ConfigError(f"{state}{named}", file=self.path)
        return parse_prompt(yamlfile.read_text(self.path, self._within), str(self.path))


def parse_prompt(text: str, file: str) -> InterruptionPrompt:
    """Parse the text of a handler prompt and return the prompt. Raise ``ConfigError`` if it is invalid.

    ``file`` is the name of the file, for ``source`` and error messages.
    """
    root = yamlfile.parse(text, file)
    if root.value is None:
        raise root.error("is empty: a handler prompt needs at least messages with a role and a content")
    top = root.mapping(["version", "description", "config", "messages", "resume", "commands", "rules"])
    if "version" in top and isinstance(top["version"].value, bool | list | dict | None):
        raise top["version"].error('expected a version, such as "1.0"')
    if "description" in top:
        top["description"].text()
    prompt = _override_prompt(top, text, replace(BUILT_IN_PROMPT, source=f"yaml:{file}", post_prompt=""))
    todo = top["commands"].mapping(["todo"]).get("todo") if "commands" in top else None
    prompt = replace(prompt, todo_direct=todo is None or todo.choice(["direct", "model"]) == "direct")
    rules, expressions = top["rules"].items() if "rules" in top else [], Expressions()
    return replace(prompt, rules=tuple(_parse_rule(node, text, prompt, expressions) for node in rules))


def _override_prompt(keys: dict[str, Node], text: str, base: InterruptionPrompt) -> InterruptionPrompt:
    """Return a copy of ``base`` with the values of these keys. Without a key, the value in ``base`` stays."""
    user, system = _parse_messages(keys["messages"], text) if "messages" in keys else ("", "")
    return replace(
        base,
        user_template=user or base.user_template,
        post_prompt=system or base.post_prompt,
        overrides=_parse_overrides(keys["config"], base.overrides) if "config" in keys else base.overrides,
        resume=_parse_resume(keys["resume"], text, base.resume or RESUME) if "resume" in keys else base.resume,
    )


def _parse_rule(node: Node, text: str, handler: InterruptionPrompt, expressions: Expressions) -> Rule:
    keys = node.mapping(["match", "action", "resume", "config", "messages"])
    if "match" not in keys:
        raise node.error("has no match")
    prompt = _override_prompt(keys, text, handler)
    action: Action = "deliver"
    if "action" in keys:
        keys["action"].choice(get_args(Action))
        action = keys["action"].value
    slow = f"took more than {MAX_RULES_S:g} s, with the rules before it, to search a line; "
    too_slow = keys["match"].error(slow + "avoid repeats inside repeats, such as (a+)+")
    return Rule(node.line, _compile_pattern(keys["match"], expressions), action, prompt, too_slow)


def _compile_pattern(node: Node, expressions: Expressions) -> Pattern:
    text = node.text()
    if not text.strip():
        raise node.error("is empty; . matches every line")
    try:
        return expressions.compile(text)
    except BadPattern as error:
        raise node.error(str(error)) from None


def _parse_overrides(node: Node, base: Overrides) -> Overrides:
    """Parse the parameters under a ``config`` key. Missing parameters have the values of ``base``."""
    keys = node.mapping(["max_tokens", "temperature", "effort"])
    effort = keys.get("effort")
    if effort is not None and not effort.text().strip():
        raise effort.error("is empty; remove the key to leave the effort unchanged")
    return Overrides(
        max_tokens=keys["max_tokens"].integer(minimum=1) if "max_tokens" in keys else base.max_tokens,
        temperature=keys["temperature"].number() if "temperature" in keys else base.temperature,
        effort=effort.text().strip() if effort is not None else base.effort,
    )


def _parse_messages(node: Node, source: str) -> tuple[str, str]:
    """Return the text of the role ``user``, then that of the role ``system``; empty if a role has no entries.

    ``${message}`` is appended to a ``user`` text that does not contain it.
    """
    if not node.items():
        raise node.error("is empty; write a message with a role and a content, or remove the key")
    texts: dict[str, list[str]] = {"user": [], "system": []}
    for entry in node.items():
        keys = entry.mapping(["role", "content"])
        for key in ("role", "content"):
            if key not in keys:
                raise entry.error(f"has no {key}")
        role = keys["role"].choice(texts)
        texts[role].append(_checked_template(keys["content"], source))
    user = "\n\n".join(texts["user"])
    if user and "message" not in Template(user).get_identifiers():
        user += "\n\n${message}"
    return user, "\n\n".join(texts["system"])


def _parse_resume(node: Node, source: str, default: str) -> str | None:
    if isinstance(node.value, bool):
        return default if node.value else None
    if not isinstance(node.value, str):
        raise node.error("expected a text, or false to turn resuming off")
    return _checked_template(node, source)


def _checked_template(node: Node, source: str) -> str:
    """Return the stripped text of a node. Raise ``ConfigError`` if it is empty or not a valid template."""
    text = node.text().strip()
    if not text:
        raise node.error("is empty")
    for found in Template.pattern.finditer(text):
        name = found["named"] or found["braced"]
        before, after = text[: found.start()].rpartition("\n")[2], text[found.start() :].partition("\n")[0]
        if name is not None and name not in TEMPLATE_NAMES:
            problem = f"unknown name {found[0]}: the names are {', '.join(TEMPLATE_NAMES)}"
            raise _error_at(node, source, (before + after, found[0]), problem)
        if found["invalid"] is not None:
            problem = f"{after[:20].rstrip()!r} cannot be read: write $$ for a dollar sign"
            raise _error_at(node, source, (before + after,), problem)
    return text


def _error_at(node: Node, source: str, pieces: Sequence[str], message: str) -> ConfigError:
    """Return an error about the text of a node.

    The error names the first line that contains the first of ``pieces``. If there is none, the next piece is searched
    for. If no piece is found, the error names the line of the node's key.
    """
    rows = source.splitlines()
    lines = [n for piece in pieces for n in range(node.line, len(rows) + 1) if piece.strip() in rows[n - 1]]
    return Node(node.value, node.file, lines[0] if lines else node.line, node.key).error(message)
