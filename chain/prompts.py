"""The handler prompts of the kinds of agents, as the configuration names them."""

from __future__ import annotations

from chain.config.agent_prompt import AgentPrompt
from chain.interruption.file import PromptFile


def handler_of(prompt: AgentPrompt) -> PromptFile | None:
    """The handler prompt that the prompt file of a kind names; ``None`` where the chain's is used."""
    if prompt.interruption_prompt is None:
        return None
    return PromptFile(prompt.interruption_prompt, prompt.within, named_at=prompt.named_at)
