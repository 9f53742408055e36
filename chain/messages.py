"""Messages, the blocks they are made of, and their JSON form; what a call costs, and what may be set for one call.

The JSON form is that of the Anthropic Messages API, so that a journal can be read next to its documentation. Blocks of
unknown types are kept as they came (``Opaque``): dropping them could make a reply unusable as history.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object. ``Any`` stops here: everything inside the package has a type of its own."""

Role: TypeAlias = Literal["user", "assistant"]


_BLANK_ROWS = re.compile(r"\A(?:[^\S\n]*\n)+")


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """The model's reasoning, with the signature that the service needs to accept it back."""

    text: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asks for a tool."""

    id: str
    name: str
    input: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What became of the tool call with the same id. ``exit_code`` and ``summary`` are for people, and never sent."""

    id: str
    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    exit_code: int | None = field(default=None, compare=False)
    summary: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Image:
    """A picture that the user sends: ``name`` is what it is called, ``digest`` the SHA-256 of its content.

    ``data`` is the content in base64; it is empty where the content is no longer there. ``size`` is that of the
    content in bytes, 0 where it is not known.
    """

    media_type: str
    digest: str
    name: str
    data: str = field(default="", compare=False, repr=False)
    size: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Opaque:
    """A block of a type that this version does not know, exactly as it came."""

    raw: Mapping[str, Any]


Block: TypeAlias = Text | Thinking | ToolCall | ToolResult | Image | Opaque


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation.

    ``calls`` and ``results`` are the tool calls and tool results in it; ``text`` is its text blocks, joined as they
    stand. ``model`` is the model that signed the thinking in it, which no other accepts; empty where that is not known.
    """

    role: Role
    blocks: tuple[Block, ...]
    model: str = field(default="", compare=False)
    calls: tuple[ToolCall, ...] = field(init=False, compare=False, repr=False)
    results: tuple[ToolResult, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Once, since both are asked for several times.
        object.__setattr__(self, "calls", tuple([b for b in self.blocks if isinstance(b, ToolCall)]))
        object.__setattr__(self, "results", tuple([b for b in self.blocks if isinstance(b, ToolResult)]))

    @property
    def text(self) -> str:
        """The text blocks, joined; empty when there are none."""
        return "".join(b.text for b in self.blocks if isinstance(b, Text))

    @property
    def answer(self) -> str:
        """Its text without blank rows before it, and without space behind it: the first row keeps its indent."""
        return _BLANK_ROWS.sub("", self.text).rstrip()

    @property
    def images(self) -> tuple[Image, ...]:
        """The pictures in this message, also those that tools gave back."""
        found: list[Image] = []
        for block in self.blocks:
            if isinstance(block, Image):
                found.append(block)
            elif isinstance(block, ToolResult):
                found += block.images
        return tuple(found)


def user_text(text: str) -> Message:
    """A user message of one text block."""
    return Message("user", (Text(text),))


def is_signed_thinking(block: Block) -> bool:
    """Return whether a block is reasoning that the model which had it accepts back."""
    if isinstance(block, Thinking):
        return bool(block.signature)
    return isinstance(block, Opaque) and block.raw.get("type") == "redacted_thinking"


def digest_of(block: Block) -> str:
    """Return what identifies a block in a record: of an image the digest of its content, else of its JSON."""
    if isinstance(block, Image):
        return block.digest
    return hashlib.sha256(json.dumps(block_to_json(block), sort_keys=True).encode()).hexdigest()[:16]


def with_images(block: Block, change: Callable[[Image], Block]) -> Block:
    """The block with its images as ``change`` makes them; one of a result that is no image any more joins its text."""
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
    """The user message that answers tool calls."""
    return Message("user", tuple(results))


def assistant(blocks: Iterable[Block]) -> Message:
    """A reply, without the blank text blocks, which the API refuses as history."""
    return Message("assistant", tuple(b for b in blocks if not (isinstance(b, Text) and not b.text.strip())))


def block_to_json(block: Block) -> JsonObject:
    """The block as the Messages API writes it, but that a picture is named by its digest (``sent_form`` has it all)."""
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


NO_IMAGE = "[image, no longer there]"
"""Stands for a picture whose content is gone."""


def sent_form(block: Block) -> JsonObject:
    """The block as it is sent to a service."""
    match block:
        case Image(data=""):
            return {"type": "text", "text": NO_IMAGE}
        case Image(media_type=media_type, data=data):
            return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
        case ToolResult(text=text, is_error=True) if block.images:
            # Services refuse a picture in a result that is marked as an error.
            return _result_to_json(replace(block, text=f"Error: {text}", is_error=False), sent_form)
        case ToolResult():
            return _result_to_json(block, sent_form)
        case _:
            return block_to_json(block)


def block_from_json(raw: Mapping[str, Any]) -> Block:
    """The inverse of ``block_to_json``; a block that it cannot read whole becomes ``Opaque``."""
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
    """The message as the Messages API writes it."""
    model = {"model": message.model} if message.model else {}
    return {"role": message.role, **model, "content": [block_to_json(b) for b in message.blocks]}


def from_json(raw: Mapping[str, Any]) -> Message:
    """The inverse of ``to_json``. Raises ``ValueError`` for anything that is not a message."""
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
"""Why a reply ended, in the words of https://docs.anthropic.com/en/api/handling-stop-reasons."""

TOO_LONG: Final = "model_context_window_exceeded"
"""The conversation does not fit the model's window."""


COST_DIGITS = 9
"""Digits of a cost in US dollars: exact where prices per million tokens have three."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What model calls cost, in tokens as the service counts them, and in US dollars where prices are known.

    ``input_tokens`` are those that no cache held.
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
        """Every token of the calls, cached or not."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a handler prompt changes for one call. ``None`` leaves the model's own setting; 0 is a value."""

    max_tokens: int | None = None
    temperature: float | None = None
    effort: str | None = None

    @property
    def given(self) -> dict[str, object]:
        """What is set, by the names of the parameters."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def without(self, *names: str) -> Overrides:
        """The same, with these parameters left to the model's own settings."""
        return replace(self, **{f.name: None for f in fields(self) if f.name in names})
