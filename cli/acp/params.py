"""The parameters of a request, read with their types; an error names the one that is wrong. Pure but for folders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.acp.rpc import INVALID_PARAMS, RpcError

MAX_PATH = 4_096
"""Characters of a path, and of an id: the system's own bound."""


def wrong(message: str) -> RpcError:
    """The error for parameters that cannot be used."""
    return RpcError(INVALID_PARAMS, message)


def text(params: Mapping[str, Any], name: str, *, default: str | None = None) -> str:
    """A string. Raises ``RpcError`` if it is missing and has no default, or is no string of bearable length."""
    value = params.get(name, default)
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


def folder(params: Mapping[str, Any], name: str) -> Path:
    """A folder that exists, by its absolute path. Raises ``RpcError``."""
    path = absolute(params, name)
    try:
        is_folder = path.is_dir()
    except OSError:
        is_folder = False
    if not is_folder:
        raise wrong(f"{name} is not a folder: {path}")
    return path


def absolute(params: Mapping[str, Any], name: str) -> Path:
    """An absolute path. Raises ``RpcError``."""
    path = Path(text(params, name))
    if not _is_possible(path):
        raise wrong(f"{name} has a character that no path can have: {str(path)!r:.200}")
    if not path.is_absolute():
        raise wrong(f"{name} must be an absolute path, not {str(path)!r:.200}")
    return path


def _is_possible(path: Path) -> bool:
    """Whether the system can be asked for it: JSON also says NUL, and halves of surrogate pairs."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False
