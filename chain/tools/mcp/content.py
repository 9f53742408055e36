"""Converts the results of an MCP server for the model, and its questions for the user."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from chain.errors import ToolError
from chain.messages import Image
from chain.text.plain import sanitize
from chain.text.wording import NO_USER_CHOOSES
from chain.tools.named_files import image_of
from chain.tools.paths import MAX_WHOLE
from chain.tools.tool import ToolOutput

MAX_IMAGES = 10
"""The most images of one result."""
MAX_RESULT_IMAGE_BYTES = 10_000_000
"""The most bytes of all images of a result: services refuse requests of 32 MB, which include earlier results."""
MAX_COMPARED = 100_000
"""The most characters of texts to parse and compare with structured content. Parsing takes 20 times their memory."""
MAX_FIELDS = 10
"""The most fields of one form."""
MAX_MESSAGE = 2_000
"""The most characters of a question: a longer question does not fit on a screen."""
ACCEPT, DECLINE = "accept", "decline"

_Json: TypeAlias = Mapping[str, Any]
Choose: TypeAlias = Callable[[str, Sequence[str]], Awaitable[str]]


class NotCarriedOutError(ToolError):
    """A request that a server did not carry out, because the server was restarted and no longer knows the session."""


def output_of(result: _Json) -> ToolOutput:
    """Convert the result of a tool call. The conversion can take long: call this function in a thread."""
    content = result.get("content")
    texts, images = texts_of(content if isinstance(content, list) else ())
    if (structured := result.get("structuredContent")) is not None and not _repeats(texts, structured):
        texts.append(json.dumps(structured, ensure_ascii=False, indent=2))
    return ToolOutput("\n\n".join(texts), tuple(images), result.get("isError") is True)


def _repeats(texts: Sequence[str], structured: Any) -> bool:  # noqa: ANN401 - any JSON
    """Return whether the texts contain the structured content or, if it is ``{"result": value}``, the ``value``."""
    values: list[object] = [*texts]
    if sum(map(len, texts)) <= MAX_COMPARED:
        for n, text in enumerate(texts):
            with suppress(ValueError, RecursionError):
                values[n] = json.loads(text)
    is_wrapped = isinstance(structured, dict) and structured.keys() == {"result"}
    forms = [structured, structured["result"]] if is_wrapped else [structured]
    return any(each in (values, list(texts), *values, *texts) for each in forms)


def texts_of(content: Iterable[Any]) -> tuple[list[str], list[Image]]:
    """Return the texts and the images in the content of a message. Each image also has a text that names it."""
    texts, images = list[str](), list[Image]()
    for piece in content:
        match piece:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "image" | "audio" as kind, "data": str(data)}:
                texts.append(_binary_text(kind, str(piece.get("mimeType", "")), data, images))
            case {"type": "resource_link", "uri": str(uri)}:
                about = piece.get("description") or piece.get("title")
                described = f", {about}" if isinstance(about, str) else ""
                texts.append(f"[Resource {piece.get('name', '')}: {uri}{described}]")
            case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
                texts.append(f"[Resource {uri}]\n{text}")
            case {"type": "resource", "resource": {"uri": str(uri), "blob": str(data)} as resource}:
                binary_text = _binary_text("resource", str(resource.get("mimeType", "")), data, images)
                texts.append(f"[Resource {uri}]\n{binary_text}")
            case {"type": kind}:
                texts.append(f"[Content of the unknown kind {str(kind)[:40]}]")
            case _:
                texts.append("[Invalid content]")
    return texts, images


def _binary_text(kind: str, media_type: str, data: str, images: list[Image]) -> str:
    """Return a text that describes binary content. If the content is a usable image, add it to ``images``."""
    if len(data) > MAX_WHOLE * 4 // 3 + 4:
        return f"[{kind} {media_type[:40]}, larger than {MAX_WHOLE:,} bytes: left out]"
    try:
        content = b64decode(data, validate=True)
    except ValueError:
        return f"[{kind} {media_type[:40]}, which is not base64: left out]"
    name = f"image {len(images) + 1}"
    size = len(content) + sum(each.size for each in images)
    has_room = len(images) < MAX_IMAGES and size <= MAX_RESULT_IMAGE_BYTES
    image = image_of(name, content) if has_room else None
    if image is None:
        return f"[{kind} {media_type[:40]}, {len(content):,} bytes: left out]"
    images.append(image)
    return f"[{name}: {image.media_type}, {len(content):,} bytes]"


def messages_text(result: _Json) -> str:
    """Return the messages of a prompt as one text. Raise ``ToolError`` if ``result`` has no list of messages."""
    messages = result.get("messages")
    if not isinstance(messages, list):
        raise ToolError("its answer is not a prompt")
    texts = []
    for message in messages:
        if isinstance(message, dict):
            text = "\n\n".join(texts_of([message.get("content")])[0])
            texts.append(text if message.get("role") == "user" else f"Assistant: {text}")
    return "\n\n".join(texts)


async def ask_user(
    server: str, message: str, schema: _Json, url: str, choose: Choose
) -> tuple[str, dict[str, Any] | None]:
    """Ask the user the question of a server. Return the action (accept or decline) and the answers by field.

    The answers are ``None`` if the user declined, or accepted to open ``url``. Raise ``ToolError`` if no answer comes.
    """
    question = f"{server} asks: {one_row(message)}"
    if url:
        answer = await choose(f"{question}\nIt asks you to open {one_row(url)}", ["done", DECLINE])
        return (ACCEPT, None) if answer == "done" else (DECLINE, None)
    fields = _fields_to_ask(schema)
    if not fields:
        return (ACCEPT, {}) if await choose(question, [ACCEPT, DECLINE]) == ACCEPT else (DECLINE, None)
    if len(fields) > MAX_FIELDS:
        return DECLINE, None
    found: dict[str, Any] = {}
    for name, field in fields.items():
        title = one_row(str(field.get("description") or field.get("title") or name))
        options = _options(field)
        shown = list(options)[:MAX_FIELDS]
        # A number as an answer would choose an option, so a field for text or a number has no options.
        hint = "" if shown else f" ({DECLINE} to give no answer)"
        answer = (await choose(f"{question}\n{title}{hint}", [*shown, DECLINE] if shown else [])).strip()
        if answer.casefold() == DECLINE or answer == NO_USER_CHOOSES:
            return DECLINE, None
        found[name] = _convert_answer(answer, field, options)
    return ACCEPT, found


def one_row(text: str, most: int = MAX_MESSAGE) -> str:
    """Return a server's text on one row of at most ``most`` characters, so that it cannot imitate other rows."""
    return " ".join(sanitize(text[: 4 * most]).split())[:most]


def _fields_to_ask(schema: _Json) -> dict[str, _Json]:
    """Return the required fields of a form; all fields if no field is required."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return {}
    fields: dict[str, _Json] = {name: field if isinstance(field, dict) else {} for name, field in properties.items()}
    wanted = required if isinstance(required, list) else []
    return {name: field for name, field in fields.items() if name in wanted} or fields


def _options(field: _Json) -> dict[str, object]:
    """Return the options of a field, from shown text to value; empty if the field takes any answer."""
    if field.get("type") == "boolean":
        return {"yes": True, "no": False}
    if isinstance(items := field.get("items"), dict):
        return _options(items)
    values, names = field.get("enum"), field.get("enumNames")
    if isinstance(values, list):
        names = names if isinstance(names, list) and len(names) == len(values) else values
        pairs = list(zip(names, values, strict=True))
    else:
        parts: Sequence[Any] = next((field[key] for key in ("oneOf", "anyOf") if isinstance(field.get(key), list)), [])
        pairs = [(p.get("title") or p["const"], p["const"]) for p in parts if isinstance(p, dict) and "const" in p]
    return {shown: value for name, value in pairs if (shown := one_row(str(name)))}


def _convert_answer(answer: str, field: _Json, options: Mapping[str, object]) -> object:
    """Convert an answer to the field's type. Return a misfit unchanged, because the server reports the error."""
    if field.get("type") == "array":
        parts = [answer] if answer in options else [part.strip() for part in answer.split(",")]
        return [options.get(part, part) for part in parts]
    if answer in options:
        return options[answer]
    if field.get("type") == "boolean":
        return {"y": True, "true": True, "n": False, "false": False}.get(answer.casefold(), answer)
    for kind, convert in (("integer", int), ("number", float)):
        with suppress(ValueError):
            if field.get("type") == kind:
                return convert(answer)
    return answer
