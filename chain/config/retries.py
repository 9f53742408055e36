"""How often a model is asked again that could not answer: a setting of each definition."""

from __future__ import annotations

from dataclasses import dataclass

RETRY_S = 600.0
"""Seconds: an overload, and a network that is changed, last minutes and seldom longer than a person waits for them."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a model is asked again that could not answer.

    ``retry_s`` are the seconds since the first failure of a call in which others are made. ``max_attempts`` counts the
    first one too, and ``None`` is no bound.
    """

    max_attempts: int | None = None
    retry_s: float = RETRY_S
