"""The prompts that a configuration names: a chain's system prompt, and the handler prompts of chains and agents."""

from __future__ import annotations

from chain.config.load import Settings
from chain.config.settings import ChainSettings
from chain.config.system_prompt import AgentPrompt, read_system_prompt
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
