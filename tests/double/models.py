"""The features of Claude models that the rules depend on.

A feature that a model may not have is refused: a double that accepts too much would hide bugs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """The features of one model.

    ``sampling``: it accepts ``temperature`` in the API version before 2026-10-21. ``system_role``: it accepts system
    messages. ``efforts`` are the accepted values of ``output_config.effort``.
    """

    sampling: bool = False
    system_role: bool = False
    thinking: tuple[str, ...] = ("adaptive", "disabled")
    efforts: tuple[str, ...] = ("low", "medium", "high", "xhigh", "max")
    max_tokens: int = 128_000


NEWER = "claude-opus-5-5"
"""A model that refuses ``temperature`` and accepts the system role."""

OLDER = "claude-sonnet-4-6"
"""A model that accepts ``temperature`` and refuses the system role."""

SHORT = "claude-3-haiku-20240307"
"""A model with short replies."""

# See https://platform.claude.com/docs/en/about-claude/models/migration-guide.
MODELS: dict[str, Features] = {
    NEWER: Features(system_role=True),
    "claude-sonnet-5-5": Features(),
    OLDER: Features(
        sampling=True,
        thinking=("adaptive", "enabled", "disabled"),
        efforts=("low", "medium", "high", "max"),
        max_tokens=64_000,
    ),
    "claude-sonnet-4-5": Features(sampling=True, thinking=("enabled", "disabled"), efforts=(), max_tokens=64_000),
    SHORT: Features(sampling=True, thinking=("disabled",), efforts=(), max_tokens=4_096),
}
"""The known models, one for each difference between them."""
