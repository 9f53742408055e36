"""What each Claude model takes, as far as the rules need to know.

The table errs on the strict side: where it is not known whether a model takes a feature, it is refused, because a
double that accepts too much hides bugs and one that refuses too much shows itself in the first test.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """What one model takes.

    ``sampling`` is temperature, for clients of the API version before 2026-10-21; ``system_role`` is ``role: "system"``
    inside ``messages``; ``efforts`` are the values of ``output_config.effort``; ``max_tokens`` is the most that a
    request may ask for.
    """

    sampling: bool = False
    system_role: bool = False
    thinking: tuple[str, ...] = ("adaptive", "disabled")
    efforts: tuple[str, ...] = ("low", "medium", "high", "xhigh", "max")
    max_tokens: int = 128_000


NEWER = "claude-opus-5-5"
"""A model that refuses ``temperature`` and takes the system role."""

OLDER = "claude-sonnet-4-6"
"""A model that takes ``temperature``, in the API version before 2026-10-21, and refuses the system role."""

SHORT = "claude-3-haiku-20240307"
"""A model with short replies."""

# Boundaries, from https://platform.claude.com/docs/en/about-claude/models/migration-guide and the page on
# mid-conversation system messages: sampling and thinking budgets went with 4.7; the system role came with Opus 4.8, and
# for Sonnet 5.5 it is not known.
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
"""The models that the double knows, one for each difference between them; any other name is answered with 404."""
