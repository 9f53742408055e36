"""Reads the prompt files that a configuration names, for chains and for kinds of agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import Template

from chain.agent.window import CompactionRules
from chain.config import values
from chain.config.load import Settings, require_trust
from chain.config.settings import ChainSettings
from chain.config.trust import HANDLER, named_value, written_form
from chain.config.yamlfile import Node
from chain.errors import ConfigError
from chain.interruption.prompt_file import PromptFile

FOCUS_NAME = "focus"
"""The variable of a compaction prompt that is replaced by the user's hint about what matters."""

_KEYS = ("version", "description", "messages")


@dataclass(frozen=True, slots=True)
class AgentPrompt:
    """The system prompt and the handler prompt of a kind of agent; ``None`` means the handler prompt of the chain."""

    system: str = ""
    handler: PromptFile | None = None


def system_prompt(settings: Settings, chosen: ChainSettings) -> str:
    """Return the system prompt of a chain. Raise ``ConfigError`` if its file is invalid."""
    path = chosen.system_prompt
    return "" if path is None else text_of_prompt(settings.read_file(f"chains.{chosen.name}.system_prompt", path))


def compaction_rules(settings: Settings, chosen: ChainSettings) -> CompactionRules:
    """Return the compaction settings of a chain. Raise ``ConfigError`` if the prompt's file is invalid."""
    rules = CompactionRules(chosen.compact.at, chosen.compact.keep)
    if chosen.compaction_prompt is None:
        return rules
    root = settings.read_file(f"chains.{chosen.name}.compaction_prompt", chosen.compaction_prompt)
    text = text_of_prompt(root, role="user")
    place = root.entries()["messages"]
    template = Template(text)
    if not template.is_valid():
        raise place.error("has a $ that cannot be read: write $$ for a dollar sign")
    names = {*template.get_identifiers()}
    if unknown := sorted(names - {FOCUS_NAME}):
        raise place.error(f"unknown name ${{{unknown[0]}}}; use only ${{{FOCUS_NAME}}}")
    return replace(rules, prompt=text if names else f"{text}\n\n${{{FOCUS_NAME}}}")


def prompt_file(settings: Settings, chosen: ChainSettings) -> PromptFile:
    """Return the handler prompt of a chain."""
    key = f"chains.{chosen.name}.interruption_prompt"
    place = settings.source(key)
    named_at = "" if place == "default" else place
    return PromptFile(chosen.interruption_prompt, settings.required_folder(key), named_at=named_at)


def agent_prompt(settings: Settings, name: str) -> AgentPrompt:
    """Read a kind's prompt file, by default the file of the kind ``agent``. Raise ``ConfigError`` if that fails."""
    require_trust(settings)
    kind = settings.kind(name)
    if kind.prompt is None:
        kind = settings.kind("agent")
    if kind.prompt is None:
        return AgentPrompt()
    key = f"agents.{kind.name}.prompt"
    root = settings.read_file(key, kind.prompt)
    system, handler = text_of_prompt(root, (*_KEYS, HANDLER)), root.entries().get(HANDLER)
    path = None if handler is None else values.path(handler.with_environ(settings.environ))
    if handler is None or path is None:
        return AgentPrompt(system)
    within = settings.required_folder(key, named_value(key, written_form(handler)))
    return AgentPrompt(system, PromptFile(path, within, named_at=f"{handler.file}:{handler.line}"))


def text_of_prompt(root: Node, known: Sequence[str] = _KEYS, *, role: str = "system") -> str:
    """Return the messages of one ``role`` in a prompt file, joined. Raise ``ConfigError`` if the file is invalid."""
    keys = root.mapping(known)
    if "messages" not in keys:
        missing = f"has no messages; give it one with role: {role} and content"
        raise ConfigError(missing, file=root.file, line=root.line)
    parts = []
    for node in keys["messages"].items():
        message = node.mapping(("role", "content"))
        for key in ("role", "content"):
            if key not in message:
                raise node.error(f"a message needs a {key}")
        message["role"].choice([role])
        parts.append(message["content"].text().strip())
    text = "\n\n".join(part for part in parts if part)
    if not text:
        raise keys["messages"].error("the prompt is empty" if role == "user" else "the system prompt is empty")
    return text
