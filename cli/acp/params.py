"""Reads the parameters of requests. Each error names the parameter that is wrong. Pure."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from chain.text.wording import FILE_BEGIN
from cli.acp.rpc import INVALID_PARAMS, RpcError

MAX_PATH = 4_096
"""The maximum number of characters of a path, as in Linux, and of an id."""

MAX_IMAGE_NAME = 100
"""The maximum number of characters of an image's name."""

MAX_PROMPT_BLOCKS = 1_000
"""The maximum number of blocks of a prompt. Their text is limited by the maximum length of a line."""


def error(message: str) -> RpcError:
    """Return the ``RpcError`` for wrong parameters."""
    return RpcError(INVALID_PARAMS, message)


def text(params: Mapping[str, Any], name: str, *, default: str | None = None) -> str:
    """Return a parameter that is a string; ``default`` if it is missing.

    Raise ``RpcError`` if the parameter is missing without a default, too long, or not a string.
    """
    value = params.get(name)
    if value is None:
        value = default
    if not isinstance(value, str):
        raise error(f"{name} is missing" if value is None else f"{name} must be a string")
    if len(value) > MAX_PATH:
        raise error(f"{name} has more than {MAX_PATH:,} characters")
    return value


def array(params: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Return a parameter that is an array; an empty array if it is missing. Raise ``RpcError`` if it is no array."""
    value = params.get(name)
    if value is not None and not isinstance(value, list):
        raise error(f"{name} must be an array")
    return value or ()


def mapping(params: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return the nested object at a path of names; an empty object if it is missing or has another type."""
    for name in names:
        value = params.get(name)
        params = value if isinstance(value, dict) else {}
    return params


def absolute_path(params: Mapping[str, Any], name: str) -> Path:
    """Return a parameter that is an absolute path. Raise ``RpcError`` for any other value."""
    path = Path(text(params, name))
    try:
        is_possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can express
        is_possible = False
    if not is_possible:
        raise error(f"{name} has a character that no path can have: {str(path)!r:.200}")
    if not path.is_absolute():
        raise error(f"{name} must be an absolute path, not {str(path)!r:.200}")
    return path


def read_prompt(blocks: Sequence[Any], workspace: Path) -> tuple[str, Sequence[tuple[str, bytes]]]:
    """Return the text of a prompt, and its images as pairs of name and content. The text contains their names.

    The contents of embedded files follow the text of all blocks, so that they interrupt no sentence. Raise ``RpcError``
    if the prompt has no text or too many blocks, or if a block cannot be used.
    """
    if not blocks:
        raise error("prompt has no content blocks")
    if len(blocks) > MAX_PROMPT_BLOCKS:
        raise error(f"prompt has more than {MAX_PROMPT_BLOCKS:,} content blocks")
    pieces: list[str] = []
    embedded: list[str] = []
    images: list[tuple[str, bytes]] = []
    was_text = False
    for number, block in enumerate(blocks):
        location = f"prompt[{number}]"
        match block:
            case {"type": "text"}:
                pieces.append(("\n" if was_text else "") + _field(block, "text", location))
            case {"type": "resource_link"}:
                pieces.append(_mention(_path(_field(block, "uri", location), workspace)))
            case {"type": "image"}:
                images.append(_image(block, "data", location, number))
                pieces.append(f"[{images[-1][0]}]")
            case {"type": "resource", "resource": {"blob": _, **about} as resource} if "text" not in about:
                if not str(about.get("mimeType")).startswith("image/"):
                    raise error(f"{location}.resource: only text and images can be embedded, not another blob")
                images.append(_image(resource, "blob", f"{location}.resource", number))
                pieces.append(f"[{images[-1][0]}]")
            case {"type": "resource"}:
                resource = block.get("resource")
                path = _path(_field(resource, "uri", f"{location}.resource"), workspace)
                pieces.append(path)
                content = _field(resource, "text", f"{location}.resource")
                embedded.append(f'{FILE_BEGIN.strip()}{path}">\n{content}\n</file>')
            case {"type": "audio"}:
                raise error(f"{location}: audio blocks are not supported, as promptCapabilities says")
            case _:
                raise error(f"{location}.type is unknown: {_field(block, 'type', location)!r:.60}")
        was_text = block["type"] == "text"
    text = "\n\n".join(["".join(pieces), *embedded])
    if not text.strip():
        raise error("prompt has no text")
    return text, images


def _image(container: Mapping[str, Any], key: str, location: str, number: int) -> tuple[str, bytes]:
    """Return the name and content of an image. An image without a file name is named ``image N`` by its position."""
    try:
        content = b64decode(_field(container, key, location), validate=True)
    except ValueError:
        raise error(f"{location}.{key} is not base64") from None
    uri = container.get("uri")
    try:
        name = unquote(urlsplit(uri).path).rpartition("/")[2] if isinstance(uri, str) else ""
    except ValueError:
        name = ""
    return (name[:MAX_IMAGE_NAME] if name.isprintable() and name else f"image {number + 1}"), content


def _mention(path: str) -> str:
    """Return a path in the workspace as an ``@`` mention. Return any other path, and an address, unchanged."""
    if path.startswith("/") or "://" in path or '"' in path:
        return path
    return f'@"{path}"' if " " in path else f"@{path}"


def _field(block: object, name: str, location: str) -> str:
    if not isinstance(block, dict):
        raise error(f"{location} must be an object")
    value = block.get(name)
    if not isinstance(value, str):
        raise error(f"{location}.{name} must be a string")
    return value


def _path(uri: str, workspace: Path) -> str:
    """Return the path in a ``file:`` URI, relative if it is in the workspace. Return any other URI unchanged."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return uri
    path = Path(unquote(parts.path))
    lines = f":{parts.fragment}" if parts.fragment else ""
    return f"{path.relative_to(workspace)}{lines}" if path.is_relative_to(workspace) else f"{path}{lines}"
