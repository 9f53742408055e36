"""What each Claude model takes, as far as the rules need to know.

The table errs on the strict side: where it is not known whether a model takes a feature, it is refused, because a
double that accepts too much hides bugs and one that refuses too much shows itself in the first test.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """What one model takes.

    ``sampling`` is temperature, top_p and top_k, for clients of the API version before 2026-10-21; ``system_role`` is
    ``role: "system"`` inside ``messages``; ``prefill`` is a last message of the assistant's; ``efforts`` are the values
    of ``output_config.effort``; ``max_tokens`` is the most that a request may ask for.
    """

    sampling: bool = False
    system_role: bool = False
    prefill: bool = False
    thinking: frozenset[str] = frozenset({"adaptive", "disabled"})
    efforts: frozenset[str] = frozenset({"low", "medium", "high", "xhigh", "max"})
    max_tokens: int = 128_000


_PLAIN = Features()
_SYSTEM = Features(system_role=True)
_4_6 = Features(
    sampling=True,
    thinking=frozenset({"adaptive", "enabled", "disabled"}),
    efforts=frozenset({"low", "medium", "high", "max"}),
    max_tokens=64_000,
)
_4_5 = Features(
    sampling=True,
    prefill=True,
    thinking=frozenset({"enabled", "disabled"}),
    efforts=frozenset(),
    max_tokens=64_000,
)

# Boundaries, from https://platform.claude.com/docs/en/about-claude/models/migration-guide and the page on
# mid-conversation system messages: sampling went with 4.7, prefill with 4.6, manual thinking budgets with 4.7; the
# system role came with Opus 4.8, and Sonnet 5 does not take it. For Sonnet 5.5 and Haiku 5.5 that is not known.
MODELS: dict[str, Features] = {
    "claude-opus-5-5": _SYSTEM,
    "claude-fable-5-2": _SYSTEM,
    "claude-fable-5-1": _SYSTEM,
    "claude-mythos-5-2": _SYSTEM,
    "claude-mythos-5-1": _SYSTEM,
    "claude-opus-5": _SYSTEM,
    "claude-fable-5": _SYSTEM,
    "claude-mythos-5": _SYSTEM,
    "claude-opus-4-8": _SYSTEM,
    "claude-sonnet-5-5": _PLAIN,
    "claude-haiku-5-5": _PLAIN,
    "claude-sonnet-5": _PLAIN,
    "claude-opus-4-7": _PLAIN,
    "claude-opus-4-6": _4_6,
    "claude-sonnet-4-6": _4_6,
    "claude-opus-4-5": Features(
        sampling=True,
        prefill=True,
        thinking=_4_5.thinking,
        efforts=frozenset({"low", "medium", "high"}),
        max_tokens=64_000,
    ),
    "claude-sonnet-4-5": _4_5,
    "claude-haiku-4-5": _4_5,
}
"""The models that the double knows; any other name is answered with 404."""

NEWER = "claude-opus-5-5"
"""A model that refuses ``temperature`` and takes the system role."""

OLDER = "claude-sonnet-4-6"
"""A model that takes ``temperature``, in the API version before 2026-10-21, and refuses the system role."""
