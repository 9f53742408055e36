"""The contract between the executor and a model.

A model turns one request into one reply. While it does so it hands over pieces of text as they come; they are for
people to watch, and only the returned reply counts. It never retries; a ``ModelError`` says whether that makes sense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from chain.messages import Message, Overrides, StopReason, Usage

Memory: TypeAlias = dict[object, Any]
"""What models keep about one conversation between its requests, each under a key of its own, such as itself. It lives
and goes with the conversation, since several conversations may share a model."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model knows it; ``input_schema`` is a JSON schema of type object."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One model call.

    ``messages`` is the conversation, ready to be answered; ``tail`` are texts that this request alone carries after it
    (SPEC section 5), never blank. ``memory`` is the same object in every request of a conversation; without one the
    request is a conversation of its own.
    """

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    tail: tuple[str, ...] = ()
    overrides: Overrides = field(default_factory=Overrides)
    memory: Memory = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole reply. ``cut_calls`` are the ids of tool calls whose input the token limit cut off.

    ``asked_tokens`` is how many tokens a request has that is too long, where the service says it.
    """

    message: Message
    stop_reason: StopReason
    usage: Usage = field(default_factory=Usage)
    cut_calls: frozenset[str] = frozenset()
    asked_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply, to be shown while the rest is on its way.

    ``usage`` is the last of a reply that is cut: what it has used until then, as far as that is known.
    """

    kind: Literal["text", "thinking", "usage"]
    text: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Window:
    """How many tokens a model can take in, those of its reply among them, and how many that may have at most."""

    tokens: int
    longest_reply: int = 0


def window_of(model: object) -> Window | None:
    """Return the window of a model, or ``None`` if it is not known or the model has no property ``window``."""
    window = getattr(model, "window", None)
    return window if isinstance(window, Window) else None


class Model(Protocol):
    """Something that answers requests, of any number of conversations. ``window_of`` says how it tells its window."""

    @property
    def name(self) -> str:
        """The model's name, for people."""

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Answer one request, calling ``on_delta`` for every piece as it comes.

        Raises ``ModelError``; whatever else it raises ends the run with an error, too, and is not tried again. It may
        be cancelled at any await, and is then usable again at once.
        """

    async def prepare(self) -> None:
        """Do ahead of the first call what takes long, such as importing a library, while nobody has to wait for it.

        It may be left out, and be cancelled at any time. What it raises is nothing yet: the first call meets it again.
        """

    async def aclose(self) -> None:
        """Give up what it holds, such as connections; it is not asked again."""
