"""The parameters of a request, read with their types; an error names the one that is wrong. Pure but for folders.

In a prompt a link stands in the text where the user put it. What an editor sends along with a link stands behind the
text, so that a sentence is not torn apart.
"""

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
"""Characters of a path, and of an id: the system's own bound."""

MAX_NAME = 100
"""Characters of the name of an image."""

MAX_BLOCKS = 1_000
"""Blocks of a prompt; what they hold together is bounded by the length of a line."""


def wrong(message: str) -> RpcError:
    """The error for parameters that cannot be used."""
    return RpcError(INVALID_PARAMS, message)


def text(params: Mapping[str, Any], name: str, *, default: str | None = None) -> str:
    """A string. Raises ``RpcError`` if it is missing and has no default, is of another type, or is too long."""
    value = params.get(name)
    if value is None:
        value = default
    if not isinstance(value, str):
        raise wrong(f"{name} is missing" if value is None else f"{name} must be a string")
    if len(value) > MAX_PATH:
        raise wrong(f"{name} has more than {MAX_PATH:,} characters")
    return value


def array(params: Mapping[str, Any], name: str) -> Sequence[Any]:
    """An array, empty if it is missing. Raises ``RpcError``."""
    value = params.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong(f"{name} must be an array")
    return value


def mapping(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object, empty if it is missing or of another type: all that it holds is optional."""
    value = params.get(name)
    return value if isinstance(value, dict) else {}


def absolute(params: Mapping[str, Any], name: str) -> Path:
    """An absolute path. Raises ``RpcError``."""
    path = Path(text(params, name))
    try:
        is_possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can say
        is_possible = False
    if not is_possible:
        raise wrong(f"{name} has a character that no path can have: {str(path)!r:.200}")
    if not path.is_absolute():
        raise wrong(f"{name} must be an absolute path, not {str(path)!r:.200}")
    return path


def read_prompt(blocks: Sequence[Any], workspace: Path) -> tuple[str, Sequence[tuple[str, bytes]]]:
    """The text of a prompt, and its images with the names by which the text speaks of them.

    Raises ``RpcError`` that names the block which cannot be used.
    """
    if not blocks:
        raise wrong("prompt has no content blocks")
    if len(blocks) > MAX_BLOCKS:
        raise wrong(f"prompt has more than {MAX_BLOCKS:,} content blocks")
    pieces: list[str] = []
    attached: list[str] = []
    images: list[tuple[str, bytes]] = []
    was_text = False
    for number, block in enumerate(blocks):
        here = f"prompt[{number}]"
        type = _field(block, "type", here)
        holder, place, data = block, here, "data"
        if type == "resource":
            holder, place, data = block.get("resource"), f"{here}.resource", "blob"
        if type == "text":
            pieces.append(("\n" if was_text else "") + _field(block, "text", here))
        elif type == "resource_link":
            pieces.append(_mention(_path(_field(block, "uri", here), workspace)))
        elif type == "image" or (type == "resource" and _is_image(holder)):
            images.append((_image_name(holder, number), _content(holder, data, place)))
            pieces.append(f"[{images[-1][0]}]")
        elif type == "resource":
            if isinstance(holder, dict) and "blob" in holder and "text" not in holder:
                raise wrong(f"{place}: only text and images can be embedded, not another blob")
            path = _path(_field(holder, "uri", place), workspace)
            pieces.append(path)
            attached.append(f'{FILE_BEGIN.strip()}{path}">\n{_field(holder, "text", place)}\n</file>')
        elif type == "audio":
            raise wrong(f"{here}: {type} blocks are not supported, as promptCapabilities says")
        else:
            raise wrong(f"{here}.type is unknown: {type!r:.60}")
        was_text = type == "text"
    text = "\n\n".join(["".join(pieces), *attached])
    if not text.strip():
        raise wrong("prompt has no text")
    return text, images


def _is_image(resource: object) -> bool:
    match resource:
        case {"blob": _, "mimeType": str(kind)}:
            return kind.startswith("image/")
        case _:
            return False


def _content(holder: object, key: str, here: str) -> bytes:
    try:
        return b64decode(_field(holder, key, here), validate=True)
    except ValueError:
        raise wrong(f"{here}.{key} is not base64") from None


def _image_name(holder: Mapping[str, Any], number: int) -> str:
    """The name of an image's file, or its place in the prompt, counted from 1."""
    uri = holder.get("uri")
    try:
        name = unquote(urlsplit(uri).path).rpartition("/")[2] if isinstance(uri, str) else ""
    except ValueError:
        name = ""
    return name[:MAX_NAME] if name.isprintable() and name else f"image {number + 1}"


def _mention(place: str) -> str:
    """A file of the workspace as a line names it; anything else as it is."""
    if place.startswith("/") or "://" in place or '"' in place:
        return place
    return f'@"{place}"' if " " in place else f"@{place}"


def _field(block: object, name: str, here: str) -> str:
    if not isinstance(block, dict):
        raise wrong(f"{here} must be an object")
    value = block.get(name)
    if not isinstance(value, str):
        raise wrong(f"{here}.{name} must be a string")
    return value


def _path(uri: str, workspace: Path) -> str:
    """A file of the workspace by its relative path, as the tools take it; anything else as it is."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return uri
    path = Path(unquote(parts.path))
    lines = f":{parts.fragment}" if parts.fragment else ""
    return f"{path.relative_to(workspace)}{lines}" if path.is_relative_to(workspace) else f"{path}{lines}"
