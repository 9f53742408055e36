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
    """A string. Raises ``RpcError`` if it is missing and has no default, or is no string of bearable length."""
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
    """An object, empty if it is missing or is none: what it holds is optional."""
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


def prompt_text(blocks: Sequence[Any], workspace: Path) -> str:
    """The text of a prompt. Raises ``RpcError`` that names the block which cannot be used."""
    if not blocks:
        raise wrong("prompt has no content blocks")
    if len(blocks) > MAX_BLOCKS:
        raise wrong(f"prompt has more than {MAX_BLOCKS:,} content blocks")
    pieces: list[str] = []
    attached: list[str] = []
    was_text = False
    for number, block in enumerate(blocks):
        here = f"prompt[{number}]"
        type = _field(block, "type", here)
        if type == "text":
            pieces.append(("\n" if was_text else "") + _field(block, "text", here))
        elif type == "resource_link":
            pieces.append(_mention(_place(_field(block, "uri", here), workspace)))
        elif type == "resource":
            resource, here = block.get("resource"), f"{here}.resource"
            if _is_image(block):
                pieces.append(f"[{_image_name(block, number)}]")
                was_text = False
                continue
            if isinstance(resource, dict) and "blob" in resource and "text" not in resource:
                raise wrong(f"{here}: only text and images can be embedded, not another blob")
            place = _place(_field(resource, "uri", here), workspace)
            pieces.append(place)
            attached.append(f'{FILE_BEGIN.strip()}{place}">\n{_field(resource, "text", here)}\n</file>')
        elif type == "image":
            pieces.append(f"[{_image_name(block, number)}]")
        elif type == "audio":
            raise wrong(f"{here}: {type} blocks are not supported, as promptCapabilities says")
        else:
            raise wrong(f"{here}.type is unknown: {type!r:.60}")
        was_text = type == "text"
    return "\n\n".join(["".join(pieces), *attached])


def prompt_images(blocks: Sequence[Any], name: str) -> Sequence[tuple[str, bytes]]:
    """The images of a prompt, each with the name by which its text speaks of it. Raises ``RpcError``."""
    found = []
    for number, block in enumerate(blocks):
        if not _is_image(block):
            continue
        at, holder, key = f"{name}[{number}]", block, "data"
        if block["type"] == "resource":
            at, holder, key = f"{at}.resource", block["resource"], "blob"
        try:
            content = b64decode(_field(holder, key, at), validate=True)
        except ValueError:
            raise wrong(f"{at}.{key} is not base64") from None
        found.append((_image_name(block, number), content))
    return found


def _is_image(block: object) -> bool:
    match block:
        case {"type": "image"}:
            return True
        case {"type": "resource", "resource": {"blob": _, "mimeType": str(kind)}}:
            return kind.startswith("image/")
        case _:
            return False


def _image_name(block: Mapping[str, Any], number: int) -> str:
    """The name of an image's file, or its place in the prompt, counted from 1."""
    uri = mapping(block, "resource").get("uri") or block.get("uri")
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


def _place(uri: str, workspace: Path) -> str:
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
