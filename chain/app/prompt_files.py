"""The prompts that a configuration names: a chain's system prompt, and the handler prompts of chains and agents."""

from __future__ import annotations

from dataclasses import replace

from chain.agent.window import CompactionRules
from chain.config.load import Settings
from chain.config.settings import ChainSettings
from chain.config.system_prompt import AgentPrompt, read_compaction_prompt, read_system_prompt
from chain.errors import UnreadableFile
from chain.interruption.prompt_file import PromptFile


def system_prompt(settings: Settings, chosen: ChainSettings) -> str:
    """The system prompt of a chain. Raises ``ConfigError``; that the file cannot be read is told where it is named."""
    if chosen.system_prompt is None:
        return ""
    key = f"chains.{chosen.name}.system_prompt"
    try:
        return read_system_prompt(chosen.system_prompt, settings.within(key))
    except UnreadableFile as error:
        raise settings.error(key, f"{error.file} {error.message}") from None


def compaction_rules(settings: Settings, chosen: ChainSettings) -> CompactionRules:
    """How the conversations of a chain are compacted. Raises ``ConfigError`` as ``system_prompt`` does."""
    rules = CompactionRules(chosen.compact.at, chosen.compact.keep)
    if chosen.compaction_prompt is None:
        return rules
    key = f"chains.{chosen.name}.compaction_prompt"
    try:
        return replace(rules, prompt=read_compaction_prompt(chosen.compaction_prompt, settings.within(key)))
    except UnreadableFile as error:
        raise settings.error(key, f"{error.file} {error.message}") from None


def prompt_file(settings: Settings, chosen: ChainSettings) -> PromptFile:
    """The handler prompt of a chain."""
    key = f"chains.{chosen.name}.interruption_prompt"
    place = settings.source(key)
    named_at = "" if place == "default" else place
    return PromptFile(chosen.interruption_prompt, settings.within(key), named_at=named_at)


def handler_of(prompt: AgentPrompt) -> PromptFile | None:
    """The handler prompt that the prompt file of a kind names; ``None`` where the chain's is used."""
    if prompt.interruption_prompt is None:
        return None
    return PromptFile(prompt.interruption_prompt, prompt.within, named_at=prompt.named_at)
