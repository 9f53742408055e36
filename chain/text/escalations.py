"""Escalations: the restrictions of the sandbox that the user can lift for one command when approving it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

Escalation: TypeAlias = Literal["network", "outside"]
"""``network``: the command may use the network. ``outside``: the command runs outside the sandbox."""

ESCALATION_KEYS: Mapping[Escalation, str] = {"network": "w", "outside": "o"}
"""The answers that allow a command once with an escalation."""

ESCALATION_PHRASES: Mapping[Escalation, str] = {"network": "with network", "outside": "outside the sandbox"}
"""The escalations in words, for a question."""

DENIED_BY_SANDBOX = "[sandbox: "
"""The prefix of a result's row that names what the sandbox denied."""


def escalation_named(answer: str) -> Escalation | None:
    """Return the escalation that an answer asks for; ``None`` for any other answer."""
    word = " ".join(answer.casefold().split())
    forms = ((each, (ESCALATION_KEYS[each], ESCALATION_PHRASES[each])) for each in ESCALATION_KEYS)
    return next((each for each, words in forms if word in words), None)
