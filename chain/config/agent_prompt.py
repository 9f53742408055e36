"""The file of an agent's prompt: as that of a system prompt, and it may name a handler prompt for the agent's kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from chain import yamlfile
from chain.config import system_prompt
from chain.config.trust import HANDLER, as_written
from chain.values import Values


@dataclass(frozen=True, slots=True)
class AgentPrompt:
    """What an agent of a kind is told.

    ``interruption_prompt`` is the path of its handler prompt, ``None`` for the chain's; ``written`` is how the file has
    it. ``within`` is the folder that it must be in whenever it is read, ``None`` for anywhere, and ``named_at`` the
    place that names it.
    """

    system: str = ""
    interruption_prompt: Path | None = None
    within: Path | None = None
    named_at: str = ""
    written: str = field(default="", repr=False)


def read_agent_prompt(path: Path, within: Path | None, values: Values) -> AgentPrompt:
    """The content of a prompt file in ``within``, which its handler prompt must be in, too. Raises ``ConfigError``."""
    root = yamlfile.read(path, within)
    system = system_prompt.system_text(root, (*system_prompt.KEYS, HANDLER))
    handler = root.entries().get(HANDLER)
    if handler is None:
        return AgentPrompt(system)
    return AgentPrompt(system, values.path(handler), within, f"{handler.file}:{handler.line}", as_written(handler))
