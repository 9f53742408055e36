"""The modes of a session: which calls need the user's approval. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

Mode: TypeAlias = Literal["ask", "accept edits", "read only"]
"""``ask``: edits and commands need approval. ``accept edits``: edits in the workspace need none, except of protected
files. ``read only``: edits and commands are denied."""

MODES: tuple[Mode, ...] = get_args(Mode)
"""All modes, in the order in which Shift-Tab cycles through them."""

DEFAULT_MODE: Mode = "ask"

MODE_MEANINGS: Mapping[Mode, str] = {
    "ask": "edits and commands need approval",
    "accept edits": "edits in the workspace are allowed, except protected files",
    "read only": "edits and commands are denied",
}

READ_ONLY_DENIAL = (
    "Denied: the mode is read only, so no file is edited and no command runs. Only the user can change the mode."
)
"""The result of a call that the mode ``read only`` denies."""

READ_ONLY_ANSWER = "the mode is read only, so this cannot be allowed; Shift-Tab or /mode ask changes the mode"
"""The reason why the mode ``read only`` refuses an answer that approves a call."""


def next_mode(mode: Mode) -> Mode:
    """Return the mode that follows ``mode`` in ``MODES``; after the last one, return the first."""
    return MODES[(MODES.index(mode) + 1) % len(MODES)]


def mode_named(text: str) -> Mode | None:
    """Return the mode of this name, with spaces, hyphens or underscores between words; ``None`` if there is none."""
    name = " ".join(text.casefold().replace("-", " ").replace("_", " ").split())
    return next((mode for mode in MODES if mode == name), None)


def mode_sentence(mode: Mode) -> str:
    """Return a sentence that names a mode and its meaning."""
    return f"Mode {mode}: {MODE_MEANINGS[mode]}."
