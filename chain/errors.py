"""The exceptions of this package, split by whose doing each one was.

::

    ChainError
    ├── UserError            the user can mend it: a file, a key, a flag, a command
    │   ├── ConfigError      the configuration or a prompt file
    │   │   └── UnreadableFile  one of its files is not there, or cannot be opened
    │   └── SessionError     the session's file or its lock
    ├── ModelError           the model's service failed, or answered what cannot be used
    │   └── ParameterRefused the service does not accept a parameter that was sent
    ├── ToolError            a tool could not do what it was asked; the model reads why and goes on
    │   └── PlanError        a plan operation that makes no sense, such as a task number that does not exist
    ├── JournalError         a record could not be written
    └── ConversationError    our bug: a message that the conversation does not allow here

An exception of any other type that leaves this package is our bug, and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

_VERBS = frozenset({"is", "has", "holds", "leads", "cannot"})
"""How a message begins that has its file as the subject."""


class ChainError(Exception):
    """The root of the tree above."""


class UserError(ChainError):
    """Something that the user can mend, said in one sentence that names the place and what to do.

    ``str()`` gives ``FILE:LINE: message`` with as much of the place as is known. A ``message`` that begins with
    its verb (``is not valid YAML``) has the file as its subject.
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
    """The configuration, or a file that it names, cannot be used."""


class UnreadableFile(ConfigError):
    """A file that the configuration names is not there, or cannot be opened."""


class SessionError(UserError):
    """A session cannot be opened: its folder is not writable, or another process holds it."""


class ModelError(ChainError):
    """A model call failed.

    The message names the cause and what to do about it. ``retryable`` says whether the same request may succeed if it
    is sent again, ``retry_after`` how many seconds the service asked us to wait first (``None``: it did not say).
    ``cause`` says in a few words why the service could not answer (``overloaded``), and is empty where it did answer,
    though with nothing of use. ``usage`` is what the call had used by then: input, output, cache read and cache write
    tokens, and US dollars. ``refused`` says which content of the request the service does not accept: ``images``
    (whichever), ``oldest images`` (there are too many), ``thinking``, ``content`` and the digests of the blocks, or
    ``tools`` and their names.
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
    """The service refused these request parameters by name (``temperature``, ``effort``, ``max_tokens``)."""

    def __init__(self, message: str, parameters: Sequence[str]) -> None:
        super().__init__(message)
        self.parameters = tuple(parameters)


class ToolError(ChainError):
    """Raised by a tool: the message, one clear sentence, becomes its result with ``is_error``."""


class PlanError(ToolError):
    """A plan operation that cannot be carried out."""


class JournalError(ChainError):
    """A record could not be written or brought to disk."""


class ConversationError(ChainError):
    """A message was offered that the conversation does not allow next."""


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the name that is most like ``name``, for an error message; empty if none is similar."""
    import difflib  # only for a mistake, and the prompt waits for every import

    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)), "")


def did_you_mean(name: str, names: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """Return a hint for an unknown name: the most similar known name, or ``otherwise`` if none is similar."""
    near = nearest(name, names, cutoff)
    return f"did you mean {near}?" if near else otherwise
