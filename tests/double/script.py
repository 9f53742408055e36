"""Scripts as JSON, for a double in a process of its own. Pure.

    {"key": "test-key", "lean": false, "continuity": true, "steps": [
        {"type": "say", "blocks": [{"type": "tool_use", "name": "echo", "input": {}}], "times": 99},
        {"type": "status", "code": 429, "headers": {"retry-after": "1"}},
        {"type": "say", "blocks": [{"type": "text", "text": "done"}]}]}

A step has the fields of its class, and ``times``. With ``"repeat": true`` the steps begin again after the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .rules import Body
from .steps import Cut, ErrorEvent, Garbage, Html, Reset, Say, Stall, Status, Step

_STEPS: dict[str, Callable[..., Step]] = {
    "say": Say,
    "status": Status,
    "error": ErrorEvent,
    "reset": Reset,
    "cut": Cut,
    "stall": Stall,
    "garbage": Garbage,
    "html": Html,
}


@dataclass(frozen=True, slots=True)
class Setup:
    """A whole script file."""

    script: list[Step] | Callable[[Body, int], Step]
    key: str | None = "test-key"
    lean: bool = False
    continuity: bool = True


def setup(raw: Mapping[str, Any]) -> Setup:
    """Read a script. Raises ``ValueError`` or ``TypeError`` for what is none."""
    settings = dict(raw)
    steps = [step for item in settings.pop("steps") for step in _times(item)]
    if settings.pop("repeat", False):
        return Setup(lambda _, n: steps[n % len(steps)], **settings)
    return Setup(steps, **settings)


def _times(raw: Mapping[str, Any]) -> list[Step]:
    fields = dict(raw)
    times = fields.pop("times", 1)
    return [_step(fields)] * times


def _step(raw: Mapping[str, Any]) -> Step:
    fields = dict(raw)
    kind = fields.pop("type")
    if kind not in _STEPS:
        raise ValueError(f"no such step: {kind!r}; there are {', '.join(_STEPS)}")
    if "blocks" in fields:
        fields["blocks"] = tuple(fields["blocks"])
    if "reply" in fields:
        fields["reply"] = _step({"type": "say", **fields["reply"]})
    return _STEPS[kind](**fields)
