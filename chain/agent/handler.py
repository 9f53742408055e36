"""The handler prompt of an agent, as it is now."""

from __future__ import annotations

from chain import events
from chain.agent.spec import AgentSpec
from chain.interruption.prompt import InterruptionPrompt
from chain.journal.journal import Emit


def current_prompt(spec: AgentSpec, emit: Emit, iteration: int) -> InterruptionPrompt:
    """The prompt that holds now. A fault of its file is reported, and the built-in one is used."""
    prompt, error = spec.prompts.current()
    if error is not None:
        why = f"{error.sentence}; the built-in handler prompt is used"
        emit(events.Notice(agent=spec.name, iteration=iteration, message=why, file=error.file, line=error.line))
    return prompt
