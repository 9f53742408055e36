"""The interface between the executor and a model.

A model answers one request with one reply. While the reply arrives, the model reports pieces of text for display; only
the returned reply counts. A model never retries: its ``ModelError`` says whether a retry may succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from chain.messages import Message, Overrides, StopReason, Usage

Memory: TypeAlias = dict[object, Any]
"""Data about one conversation. Each model that answers the conversation stores its data under its own key."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it; ``input_schema`` is a JSON schema of type object."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One model call.

    ``messages`` is the conversation, which ends with a user message. ``tail`` are texts after the conversation, in this
    request only (SPEC section 5); none is blank. ``memory`` is the same object in every request of a conversation. A
    request that is created without ``memory`` starts a new conversation.
    """

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    tail: tuple[str, ...] = ()
    overrides: Overrides = field(default_factory=Overrides)
    memory: Memory = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """One complete reply. ``cut_calls`` are the ids of tool calls whose input was cut off by the token limit.

    ``asked_tokens`` is the size in tokens of a request that is too long, if the service reports it; otherwise 0.
    """

    message: Message
    stop_reason: StopReason
    usage: Usage = field(default_factory=Usage)
    cut_calls: frozenset[str] = frozenset()
    asked_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply, to be shown before the whole reply has arrived.

    If a reply is cancelled, its last delta may have the kind ``usage``. Then ``usage`` is the usage so far.
    """

    kind: Literal["text", "thinking", "usage"]
    text: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Window:
    """The context window of a model in tokens, including the reply, and the maximum length of a reply."""

    tokens: int
    longest_reply: int = 0


def window_of(model: object) -> Window | None:
    """Return the window of a model, or ``None`` if it is unknown or the model has no property ``window``."""
    window = getattr(model, "window", None)
    return window if isinstance(window, Window) else None


class Model(Protocol):
    """A language model that answers the requests of any number of conversations.

    A model may also have a property ``window``: its context window, a ``Window`` or ``None``.
    """

    @property
    def name(self) -> str:
        """The model's name, for people."""

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Return the reply to one request, and call ``on_delta`` with every piece as it arrives.

        Raise ``ModelError`` if the call failed. Any other exception ends the run with an error and is not retried. The
        call may be cancelled at any await. After that, the model must be usable immediately.
        """

    async def prepare(self) -> None:
        """Do slow work, such as importing a library, before the first call. The call may be cancelled at any time.

        A model may do nothing here. Exceptions are ignored: the first call raises them again.
        """

    async def aclose(self) -> None:
        """Release resources such as connections. The model is not called again."""
