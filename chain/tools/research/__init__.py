"""The tool ``research``: what it visits, in which order, and what of that it shows."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as Python calls it
    # Scripts that show old defects import them from here; nothing is imported for others.
    if name not in ("ResearchRules", "research_tools"):
        raise AttributeError(name)
    from chain.tools.research import visits

    return getattr(visits, name)
