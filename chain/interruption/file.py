"""The handler prompt's file, read again when it changed, so that it can be edited while a chain runs."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from chain import yamlfile
from chain.errors import ConfigError
from chain.interruption.prompt import BUILT_IN, InterruptionPrompt
from chain.interruption.prompt_reader import parse_prompt

_State: TypeAlias = tuple[int, ...] | str
"""What identifies a state of a file: numbers of its inode, or why there are none."""


class PromptFile:
    """The handler prompt as its file, in the folder ``within``, has it now, or the built-in one."""

    def __init__(self, path: Path | None, within: Path | None = None, *, named_at: str = "") -> None:
        self._path = path
        self._named_at = named_at
        self._within = within
        self._state: _State | None = None
        self._prompt = BUILT_IN

    @property
    def is_configured(self) -> bool:
        """Whether there is meant to be a file."""
        return self._path is not None

    def current(self) -> tuple[InterruptionPrompt, ConfigError | None]:
        """The prompt that holds, and why it is not the file's; never raises and never waits for a writer.

        The error is given once for each state of the file; a rule that proves too slow breaks it too. Blocks for a
        ``stat`` and, when the file changed, for reading it, which is bounded.
        """
        state = self._read_state()
        if state == self._state:
            mistake = self._prompt.mistake
            if mistake is not None:
                self._prompt = BUILT_IN
            return self._prompt, mistake
        # The state is older than the content: a write in between makes the next call read again.
        self._state = state
        try:
            self._prompt = self._load(state)
        except ConfigError as error:
            self._prompt = BUILT_IN
            return self._prompt, error
        return self._prompt, None

    def _read_state(self) -> _State:
        if self._path is None:
            return "no file is configured for the handler prompt"
        try:
            found = self._path.stat()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            return _reason(error)
        # The change time is the only one that shows when a file became readable, or was put back with its old times.
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev, found.st_mode

    def _load(self, state: _State) -> InterruptionPrompt:
        if self._path is None:
            raise ConfigError(str(state))
        if isinstance(state, str):
            raise ConfigError(f"{state}{f'; {self._named_at} names it' if self._named_at else ''}", file=self._path)
        return parse_prompt(yamlfile.read_text(self._path, self._within), str(self._path))


def _reason(error: OSError | ValueError) -> str:
    return f"cannot be read: {(error.strerror if isinstance(error, OSError) else None) or error}"
