"""Escalations: the restrictions of the sandbox that the user can lift for one command when approving it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

Escalation: TypeAlias = Literal["network", "outside"]
"""``network``: the command may use the network. ``outside``: the command runs outside the sandbox."""

ESCALATION_KEYS: Mapping[Escalation, str] = {"network": "w", "outside": "o"}
"""For each escalation, the answer that allows a command once with it."""

ESCALATION_PHRASES: Mapping[Escalation, str] = {"network": "with network", "outside": "outside the sandbox"}
"""For each escalation, the words that a question and its outcome use."""

DENIED_BY_SANDBOX = "[sandbox: "
"""The prefix of the row in a result that names the protection of the sandbox that denied something."""


def escalation_named(answer: str) -> Escalation | None:
    """Return the escalation that an answer asks for; ``None`` for any other answer."""
    word = " ".join(answer.casefold().split())
    forms = ((each, (ESCALATION_KEYS[each], ESCALATION_PHRASES[each])) for each in ESCALATION_KEYS)
    return next((each for each, words in forms if word in words), None)
