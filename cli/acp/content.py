"""Content blocks and text, in both directions. Pure.

A link stands in the text where the user put it. What an editor sends along with a link stands behind the text, so that
a sentence is not torn apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from cli.acp.params import wrong

MAX_BLOCKS = 1_000
"""Blocks of a prompt; what they hold together is bounded by the length of a line."""

_NOT_SUPPORTED = ("image", "audio")


def text_block(text: str) -> Mapping[str, Any]:
    """A text as a content block."""
    return {"type": "text", "text": text}


def prompt_text(blocks: Sequence[Any], name: str, workspace: Path) -> str:
    """The text of a prompt. Raises ``RpcError`` that names the block which cannot be used."""
    if not blocks:
        raise wrong(f"{name} has no content blocks")
    if len(blocks) > MAX_BLOCKS:
        raise wrong(f"{name} has more than {MAX_BLOCKS:,} content blocks")
    pieces: list[str] = []
    attached: list[str] = []
    was_text = False
    for number, block in enumerate(blocks):
        here = f"{name}[{number}]"
        type = _field(block, "type", here)
        if type == "text":
            pieces.append(("\n" if was_text else "") + _field(block, "text", here))
        elif type == "resource_link":
            pieces.append(_place(_field(block, "uri", here), workspace))
        elif type == "resource":
            place, content = _resource(block, here, workspace)
            pieces.append(place)
            attached.append(f'<file path="{place}">\n{content}\n</file>')
        elif type in _NOT_SUPPORTED:
            raise wrong(f"{here}: {type} blocks are not supported, as promptCapabilities says")
        else:
            raise wrong(f"{here}.type is unknown: {type!r:.60}")
        was_text = type == "text"
    return "\n\n".join(["".join(pieces), *attached])


def _resource(block: Mapping[str, Any], here: str, workspace: Path) -> tuple[str, str]:
    resource = block.get("resource")
    if not isinstance(resource, dict):
        raise wrong(f"{here}.resource must be an object")
    if "blob" in resource and "text" not in resource:
        raise wrong(f"{here}.resource: only text can be embedded, not a blob")
    here = f"{here}.resource"
    return _place(_field(resource, "uri", here), workspace), _field(resource, "text", here)


def _field(block: object, name: str, here: str) -> str:
    value = block.get(name) if isinstance(block, dict) else None
    if not isinstance(block, dict):
        raise wrong(f"{here} must be an object")
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
