"""Parsing and encoding of JSON-RPC 2.0 messages, one per row. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CANCELLED = -32800
"""The request was cancelled (Agent Client Protocol, "Cancellation")."""
NOT_FOUND = -32002
"""The session or file does not exist (Agent Client Protocol, "ErrorCode")."""

_BEGINNING = re.compile(r'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(-?\d{1,18}|"[^"\\]{1,200}")\s*,')
"""Matches the beginning of a request as libraries write it, with the id, also if the end of the row is missing."""

Id: TypeAlias = int | str | None


class RpcError(Exception):
    """An error answer: ``message`` for people, ``data`` for programs. ``id`` is the id of a malformed message."""

    def __init__(self, code: int, message: str, data: Mapping[str, Any] | None = None, id: Id = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.id = id


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A request or a notification of the peer. A notification gets no answer."""

    id: Id
    method: str
    params: object
    is_notification: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """The peer's answer to a request of this program: a result, or an ``RpcError``."""

    id: Id
    result: object


def read_message(text: str, *, is_utf8: bool = True, is_cut: bool = False, limit: int = 0) -> RpcRequest | Response:
    """Parse a row as a message. If the row is malformed, raise ``RpcError``, with the message's id if known.

    If ``is_cut``, ``text`` is only the beginning of a row that had more than ``limit`` bytes, which is an error.
    """
    if is_cut:
        begun = _BEGINNING.match(text)
        raise RpcError(
            INVALID_REQUEST, f"the message is longer than {limit:,} bytes", id=json.loads(begun[1]) if begun else None
        )
    if not is_utf8:
        raise RpcError(PARSE_ERROR, "the message is not UTF-8")
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise RpcError(INVALID_REQUEST, "the message is nested too deeply") from None
    except ValueError as error:
        raise RpcError(PARSE_ERROR, f"the message is not JSON: {error}") from None
    if isinstance(found, list):
        raise RpcError(INVALID_REQUEST, "batches are not supported; send each message on a row of its own")
    if not isinstance(found, dict):
        raise RpcError(INVALID_REQUEST, "a message is a JSON object")
    id, method = found.get("id"), found.get("method")
    if not isinstance(id, int | str | None) or isinstance(id, bool):
        raise RpcError(INVALID_REQUEST, "an id is a string or a whole number")
    if found.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'jsonrpc must be "2.0"', id=id)
    if isinstance(method, str):
        return RpcRequest(id, method, found.get("params", {}), is_notification="id" not in found)
    if "method" in found:
        raise RpcError(INVALID_REQUEST, "method must be a string", id=id)
    if "id" not in found or ("result" in found) == ("error" in found):
        raise RpcError(INVALID_REQUEST, "a message has a method, or it is an answer: a result or an error", id=id)
    return Response(id, found["result"] if "result" in found else _parse_error(found["error"]))


def _parse_error(error: object) -> RpcError:
    fields = error if isinstance(error, dict) else {}
    code, message = fields.get("code"), fields.get("message")
    known = code if isinstance(code, int) and not isinstance(code, bool) else INTERNAL_ERROR
    return RpcError(known, message if isinstance(message, str) else "no reason was given")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def response_row(id: Id, result: Mapping[str, Any] | RpcError) -> bytes:
    """Return the row that answers the request ``id``, with a newline."""
    if not isinstance(result, RpcError):
        return message_row(id=id, result=result)
    data = {} if result.data is None else {"data": result.data}
    return message_row(id=id, error={"code": result.code, "message": result.message, **data})


def message_row(**fields: object) -> bytes:
    """Return the row of a message with these fields, with a newline."""
    # ASCII only: UTF-8 cannot express half of a surrogate pair, which JSON can.
    return json.dumps({"jsonrpc": "2.0", **fields}, separators=(",", ":")).encode() + b"\n"
