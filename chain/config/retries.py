"""The retries of model calls: a setting of each model's definition."""

from __future__ import annotations

from dataclasses import dataclass

RETRY_S = 600.0
"""The default of ``retry_s`` in seconds: an overload or a network change lasts minutes."""


@dataclass(frozen=True, slots=True)
class Retries:
    """The limits for retries of a model call.

    A call is retried for up to ``retry_s`` seconds after its first failure. ``max_attempts`` limits the attempts,
    including the first; ``None`` is no limit.
    """

    max_attempts: int | None = None
    retry_s: float = RETRY_S
