"""A refusal, and the shapes of JSON that the rules ask for, each with the API's words for what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

Body: TypeAlias = Mapping[str, Any]
"""A JSON object as it came. ``Any`` stops at the functions of the rules."""

_NOT_MODELLED = {"container", "diagnostics", "speed", "mcp_servers", "context_management"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A refusal: the HTTP status, the API's error type and its message."""

    status: int
    kind: str
    message: str

    def body(self, request_id: str = "req_000000") -> dict[str, Any]:
        """The JSON that the API answers with."""
        return {
            "type": "error",
            "error": {"type": self.kind, "message": self.message},
            "request_id": request_id,
        }


class Refused(Exception):
    """Carries a fault out of the rules; their entry points catch it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def refuse(message: str, status: int = 400, kind: str = "invalid_request_error") -> NoReturn:
    """Refuse the request."""
    raise Refused(Fault(status, kind, message))


def an_object(raw: object, where: str, *, required: set[str], optional: set[str], tag: str = "") -> Body:
    """An object with exactly these fields. ``tag`` is the block's type, which the API puts into the path."""
    at = f"{where}.{tag}" if tag else where
    prefix = "" if where == "body" else f"{at}."
    if not isinstance(raw, Mapping):
        refuse(f"{at}: Input should be a valid dictionary")
    for name in raw:
        if name in required or name in optional:
            continue
        if name in _NOT_MODELLED and where == "body":
            refuse(f"{name}: this test double does not model it")
        refuse(f"{prefix}{name}: Extra inputs are not permitted")
    for name in sorted(required - raw.keys()):
        refuse(f"{prefix}{name}: Field required")
    return raw


def a_string(raw: object, where: str) -> str:
    """A string."""
    if not isinstance(raw, str):
        refuse(f"{where}: Input should be a valid string")
    return raw


def a_list(raw: object, where: str) -> list[Any]:
    """A list."""
    if not isinstance(raw, list):
        refuse(f"{where}: Input should be a valid list")
    return raw


def an_integer(raw: object, where: str) -> int:
    """An integer; ``true`` is none."""
    if not isinstance(raw, int) or isinstance(raw, bool):
        refuse(f"{where}: Input should be a valid integer")
    return raw


def a_flag(raw: object, where: str) -> None:
    """A boolean."""
    if not isinstance(raw, bool):
        refuse(f"{where}: Input should be a valid boolean")


def a_choice(raw: object, where: str, values: tuple[str, ...]) -> str:
    """One of a few strings."""
    if raw not in values:
        refuse(f"{where}: Input should be {', '.join(map(repr, values[:-1]))} or {values[-1]!r}")
    return str(raw)
