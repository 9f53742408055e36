"""The exceptions of this package, split by who can fix them.

::

    ChainError
    ├── UserError               the user can fix it: a file, a key, a flag, a command
    │   ├── ConfigError         the configuration or a prompt file
    │   │   └── UnreadableFile  one of its files is missing or cannot be opened
    │   └── SessionError        a session's file, its lock, or the server that stores it
    ├── ModelError              the model's service failed, or its answer cannot be used
    │   └── ParameterRefused    the service does not accept a request parameter
    ├── ToolError               a tool call failed; the model reads why and continues
    │   └── PlanError           an invalid plan operation, such as a task number that does not exist
    ├── JournalError            a record could not be written
    └── ConversationError       our bug: a message that the conversation does not allow here

Any other exception that leaves this package is our bug, and is shown with its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

_VERBS = frozenset({"is", "has", "holds", "leads", "cannot"})
"""If a message begins with one of these verbs, the file of the error is the subject."""


class ChainError(Exception):
    """The base class of the exceptions of this package."""


class UserError(ChainError):
    """An error that the user can fix, in one sentence that names the place and what to do.

    ``str()`` gives ``FILE:LINE: message``, with the parts that are known. A ``message`` that begins with a verb (``is
    not valid YAML``) has the file as its subject.
    """

    def __init__(self, message: str, *, file: Path | str | None = None, line: int | None = None) -> None:
        self.message = message
        self.file = None if file is None else str(file)
        self.line = line
        place = "" if self.file is None else f"{self.file}: " if line is None else f"{self.file}:{line}: "
        super().__init__(place + message)

    @property
    def sentence(self) -> str:
        """The message as a whole sentence: ``handler.yaml is not valid YAML``."""
        name = "" if self.file is None else PurePath(self.file).name
        return f"{name} {self.message}" if name and self.message.split()[0] in _VERBS else self.message


class ConfigError(UserError):
    """An error in the configuration or in a file that it names."""


class UnreadableFile(ConfigError):
    """A configuration error: a file that the configuration names is missing or cannot be opened."""


class SessionError(UserError):
    """A failed operation on a session, for example because another process has the session open."""


class ModelError(ChainError):
    """A failed model call, with a message that names the cause and what to do about it.

    ``retryable``: the same request may succeed if it is sent again. ``retry_after`` is the pause in seconds that the
    service asks for, or ``None``. ``cause`` says in a few words why the service could not answer
    (``overloaded``); empty if the service answered, but the answer cannot be used. ``usage`` is the usage of the failed
    call: tokens of input, output, cache reads and cache writes, and US dollars; ``None`` if it is unknown.

    ``refused`` names the content of the request that the service does not accept. It is empty, or its first item is one
    of: ``images`` (all images), ``oldest images`` (there are too many images), ``thinking``, ``content`` (the digests
    of the blocks follow), ``tools`` (the names of the tools follow).
    """

    def __init__(
        self, message: str, *, retryable: bool = False, retry_after: float | None = None, cause: str = ""
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.refused: tuple[str, ...] = ()
        self.usage: tuple[int, int, int, int, float | None] | None = None
        self.retryable = retryable
        self.retry_after = retry_after


class ParameterRefused(ModelError):
    """A failed call whose ``parameters``, such as ``temperature`` or ``effort``, the service does not accept."""

    def __init__(self, message: str, parameters: Sequence[str]) -> None:
        super().__init__(message)
        self.parameters = tuple(parameters)


class ToolError(ChainError):
    """A failed tool call. The message is one clear sentence, which becomes the call's result with ``is_error``."""


class PlanError(ToolError):
    """A plan operation that is not valid, such as closing a task that does not exist."""


class JournalError(ChainError):
    """A record that could not be written or fsynced."""


class ConversationError(ChainError):
    """A bug in this package: a message or a request that the state of the conversation does not allow."""


def nearest_name(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the most similar of ``names``; empty if none has at least the similarity ``cutoff`` (0 to 1)."""
    import difflib  # here, since importing it at the start would delay the prompt

    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)), "")


def did_you_mean(name: str, names: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """Return a hint for an unknown name: the most similar of ``names`` (``nearest_name``), or else ``otherwise``."""
    near = nearest_name(name, names, cutoff)
    return f"did you mean {near}?" if near else otherwise
