"""Messages and their blocks, their JSON form, the usage of a call, and the parameters that one call can override.

The JSON form is that of the Anthropic Messages API, so that a journal can be read next to its documentation. Blocks of
unknown types are stored as they were received (``Opaque``): without them the service might not accept a reply in a
later request.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object."""

Role: TypeAlias = Literal["user", "assistant"]


_BLANK_ROWS = re.compile(r"\A(?:[^\S\n]*\n)+")


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """The model's reasoning, with the signature that the service needs to accept it in a later request."""

    text: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that the model asks for."""

    id: str
    name: str
    input: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of the tool call with the same id. ``exit_code`` and ``summary`` are for people and are never sent."""

    id: str
    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    exit_code: int | None = field(default=None, compare=False)
    summary: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Image:
    """An image. ``name`` is its file name, ``digest`` the SHA-256 of its content.

    ``data`` is the content in base64, empty if the content was deleted. ``size`` is the size of the content in bytes, 0
    if it is unknown.
    """

    media_type: str
    digest: str
    name: str
    data: str = field(default="", compare=False, repr=False)
    size: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Opaque:
    """A block of a type that this version does not know, stored as it was received."""

    raw: Mapping[str, Any]


Block: TypeAlias = Text | Thinking | ToolCall | ToolResult | Image | Opaque


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, with its tool calls and its tool results.

    ``model`` is the model that signed the thinking in the message, and the only one that accepts it; empty if unknown.
    """

    role: Role
    blocks: tuple[Block, ...]
    model: str = field(default="", compare=False)
    calls: tuple[ToolCall, ...] = field(init=False, compare=False, repr=False)
    results: tuple[ToolResult, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Computed once, since both are read several times.
        object.__setattr__(self, "calls", tuple([b for b in self.blocks if isinstance(b, ToolCall)]))
        object.__setattr__(self, "results", tuple([b for b in self.blocks if isinstance(b, ToolResult)]))

    @property
    def text(self) -> str:
        """The text blocks, joined; empty if there are none."""
        return "".join(b.text for b in self.blocks if isinstance(b, Text))

    @property
    def answer(self) -> str:
        """The text without leading blank rows and trailing white space. The first row keeps its indentation."""
        return _BLANK_ROWS.sub("", self.text).rstrip()

    @property
    def images(self) -> tuple[Image, ...]:
        """The images of the message, including those in tool results."""
        found: list[Image] = []
        for block in self.blocks:
            if isinstance(block, Image):
                found.append(block)
            elif isinstance(block, ToolResult):
                found += block.images
        return tuple(found)


def user_text(text: str) -> Message:
    """Return a user message with one text block."""
    return Message("user", (Text(text),))


def is_signed_thinking(block: Block) -> bool:
    """Return whether a block is reasoning with a signature, or encrypted reasoning.

    In a later request, only the model that wrote the block accepts it.
    """
    if isinstance(block, Thinking):
        return bool(block.signature)
    return isinstance(block, Opaque) and block.raw.get("type") == "redacted_thinking"


def digest_of(block: Block) -> str:
    """Return the digest that identifies a block in a record: of an image's content, or of any other block's JSON."""
    if isinstance(block, Image):
        return block.digest
    return hashlib.sha256(json.dumps(block_to_json(block), sort_keys=True).encode()).hexdigest()[:16]


def replace_images(block: Block, change: Callable[[Image], Block]) -> Block:
    """Return the block with each image replaced by ``change(image)``.

    An image of a tool result that becomes text is appended to the text of the result.
    """
    match block:
        case Image():
            return change(block)
        case ToolResult(images=images) if images:
            changed = [change(image) for image in images]
            text = "\n".join([block.text, *(each.text for each in changed if isinstance(each, Text))])
            return replace(block, text=text, images=tuple(each for each in changed if isinstance(each, Image)))
        case _:
            return block


def tool_results(results: Iterable[ToolResult]) -> Message:
    """Return a user message with the results of tool calls."""
    return Message("user", tuple(results))


def assistant(blocks: Iterable[Block]) -> Message:
    """Return an assistant message without its blank text blocks, which the API refuses in a request."""
    return Message("assistant", tuple(b for b in blocks if not (isinstance(b, Text) and not b.text.strip())))


def block_to_json(block: Block) -> JsonObject:
    """Return the block in the form of the Messages API. An image has its digest instead of its content."""
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case ToolCall(id, name, input):
            return {"type": "tool_use", "id": id, "name": name, "input": dict(input)}
        case ToolResult():
            return _result_to_json(block, block_to_json)
        case Image(media_type, digest, name, size=size):
            return {
                "type": "image",
                "source": {"type": "digest", "media_type": media_type, "digest": digest},
                "name": name,
                **({"size": size} if size else {}),
            }
        case Opaque(raw):
            return dict(raw)


def _result_to_json(result: ToolResult, form: Callable[[Block], JsonObject]) -> JsonObject:
    content = [form(Text(result.text)), *map(form, result.images)] if result.images else result.text
    raw: JsonObject = {"type": "tool_result", "tool_use_id": result.id, "content": content}
    return {**raw, "is_error": True} if result.is_error else raw


NO_IMAGE = "[image whose file was deleted]"
"""The text that replaces an image whose content was deleted."""


def block_to_request_json(block: Block) -> JsonObject:
    """Return the JSON of a block for a request, with the content of images."""
    match block:
        case Image(data=""):
            return {"type": "text", "text": NO_IMAGE}
        case Image(media_type=media_type, data=data):
            return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
        case ToolResult(text=text, is_error=True) if block.images:
            # Services refuse an image in a result that is marked as an error.
            return _result_to_json(replace(block, text=f"Error: {text}", is_error=False), block_to_request_json)
        case ToolResult():
            return _result_to_json(block, block_to_request_json)
        case _:
            return block_to_json(block)


def block_from_json(raw: Mapping[str, Any]) -> Block:
    """Return the block with this JSON form. JSON that ``block_to_json`` would not write becomes ``Opaque``."""
    match raw:
        case {"type": "text", "text": str(text), **rest} if not rest:
            return Text(text)
        case {"type": "thinking", "thinking": str(text), "signature": str(signature), **rest} if not rest:
            return Thinking(text, signature)
        case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict(input), **rest} if not rest:
            return ToolCall(id, name, input)
        case {"type": "tool_result", "tool_use_id": str(id), "content": str(text), **rest} if not rest.keys() - {
            "is_error"
        }:
            return ToolResult(id, text, bool(rest.get("is_error", False)))
        case {
            "type": "tool_result",
            "tool_use_id": str(id),
            "content": [{"type": "text", "text": str(text)}, *raws],
            **rest,
        } if not rest.keys() - {"is_error"}:
            blocks = [block_from_json(each) if isinstance(each, dict) else None for each in raws]
            images = tuple(each for each in blocks if isinstance(each, Image))
            if not images or len(images) < len(blocks):
                return Opaque(dict(raw))
            return ToolResult(id, text, bool(rest.get("is_error", False)), images)
        case {
            "type": "image",
            "source": {"type": "digest", "media_type": str(media_type), "digest": str(digest)},
            "name": str(name),
        }:
            size = raw.get("size")
            return Image(media_type, digest, name, size=size if isinstance(size, int) else 0)
        case _:
            return Opaque(dict(raw))


def to_json(message: Message) -> JsonObject:
    """Return the message in the form of the Messages API."""
    model = {"model": message.model} if message.model else {}
    return {"role": message.role, **model, "content": [block_to_json(b) for b in message.blocks]}


def from_json(raw: Mapping[str, Any]) -> Message:
    """Return the message with this JSON form. Raise ``ValueError`` if the JSON is not a message."""
    match raw:
        case {"role": "user" | "assistant" as role, "content": list(content)} if all(
            isinstance(block, dict) for block in content
        ):
            model = raw.get("model")
            return Message(role, tuple(map(block_from_json, content)), model if isinstance(model, str) else "")
        case _:
            raise ValueError("not a message: it needs a role and a list of content blocks")


StopReason: TypeAlias = Literal[
    "end_turn", "stop_sequence", "tool_use", "max_tokens", "refusal", "model_context_window_exceeded", "pause_turn"
]
"""The reason why a reply ended, in the words of https://docs.anthropic.com/en/api/handling-stop-reasons."""

TOO_LONG: Final = "model_context_window_exceeded"
"""The stop reason of a conversation that does not fit the model's window."""


COST_DIGITS = 9
"""The number of decimal digits of a cost in US dollars: exact for prices per million tokens with three digits."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of model calls: tokens as the service counts them, and US dollars if prices are known.

    ``input_tokens`` excludes tokens read from or written to the cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None

    def __add__(self, other: Usage) -> Usage:
        costs = [c for c in (self.cost_usd, other.cost_usd) if c is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            round(sum(costs), COST_DIGITS) if costs else None,
        )

    @property
    def total_tokens(self) -> int:
        """All tokens of the calls, cached or not."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True)
class Overrides:
    """Parameters that a handler prompt sets for one call. ``None`` leaves the model's own setting; 0 is a value."""

    max_tokens: int | None = None
    temperature: float | None = None
    effort: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The parameters that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def without(self, *names: str) -> Overrides:
        """Return a copy without these parameters, so that the model's own settings apply."""
        return replace(self, **{f.name: None for f in fields(self) if f.name in names})
