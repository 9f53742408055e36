"""The rules of the Messages API for one request. Pure.

Texts and status codes follow https://docs.anthropic.com/en/api/errors and the answers of the service. Where the program
under test must be stricter than the service (results in two messages), the double is strict too; comments say so.
Fields that the program does not send are unknown fields here.

``temperature`` is unknown in the version 2026-10-21, and belongs to older models in the version before
(https://platform.claude.com/docs/en/api/versioning).

The first fault is reported, as by the service: headers, the form of the body, the features of the model, the order of
the messages, then counts over the whole request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from . import blocks, order, schema
from .models import MODELS, Features
from .order import Issued
from .shapes import Body, Fault, Refused, fit, refuse
from .steps import Step

__all__ = ["Body", "Fault", "Issued", "Policy", "check", "check_headers", "check_messages"]

OLD_VERSION: Final = "2023-06-01"
VERSIONS: Final = (OLD_VERSION, "2026-10-21")
MIN_THINKING_BUDGET: Final = 1024

_REQUEST: Final = {
    "model": str,
    "messages": list,
    "max_tokens": int,
    "stream?": bool,
    "system?": object,
    "tools?": list,
    "thinking?": Mapping,
    "output_config?": {"effort?": ("low", "medium", "high", "xhigh", "max")},
    "stop_sequences?": list,
}
_THINKING: Final = {
    "enabled": {"type": str, "budget_tokens": int},
    "adaptive": {"type": str},
    "disabled": {"type": str},
}
_TOOL: Final = {"name": blocks.TOOL_NAME, "input_schema": object, "description?": str, "cache_control?": Mapping}


@dataclass(frozen=True, slots=True)
class Policy:
    """The kind of service that the double is.

    ``key`` is the expected API key; ``None`` accepts any request. ``alternate`` refuses two messages in a row of one
    role, as some compatible servers do. ``window`` is the reported context window of each model in tokens; 0 reports
    none. ``lookup`` answers the requests for models, by path.
    """

    key: str | None = "test-key"
    alternate: bool = False
    window: int = 200_000
    lookup: Callable[[str], Step] | None = None


def check(
    body: object, headers: Mapping[str, str], *, issued: Issued | None = None, policy: Policy | None = None
) -> Fault | None:
    """Return why the API would refuse this request for a message, or ``None``.

    Header names are in lower case. The content ``issued`` must come back unchanged.
    """
    policy = policy or Policy()

    def all_rules() -> None:
        _check_headers(headers, policy)
        _check_request(body, issued or Issued(), policy, old=headers["anthropic-version"] == OLD_VERSION)

    return _fault_of(all_rules)


def check_messages(messages: object, *, known: int = 0) -> Fault | None:
    """Return why the API would refuse these messages, in the form in which a program stores them, or ``None``.

    Thinking and unknown blocks are not checked, since the program may leave them out. The first ``known`` messages were
    checked before.
    """

    def rules_of_messages() -> None:
        checked: list[Body] = fit(messages, list, "messages")
        for i, message in enumerate(checked[known:], known):
            blocks.check_message(message, f"messages.{i}", kept=True)
        order.check_roles(checked, Features(), alternate=False)
        order.check_pairs(checked)

    return _fault_of(rules_of_messages)


def check_headers(headers: Mapping[str, str], policy: Policy) -> Fault | None:
    """Return why the API would refuse a request without a body, or ``None``."""
    return _fault_of(lambda: _check_headers(headers, policy))


def _fault_of(rules: Callable[[], None]) -> Fault | None:
    try:
        rules()
    except Refused as refused:
        return refused.fault
    return None


def _check_headers(headers: Mapping[str, str], policy: Policy) -> None:
    if policy.key is not None:
        # The SDK sends the key as a bearer since 2.0; other clients send it in a header of its own.
        sent_key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if not sent_key:
            refuse("x-api-key header is required", 401, "authentication_error")
        if sent_key != policy.key:
            refuse("invalid x-api-key", 401, "authentication_error")
    version = headers.get("anthropic-version")
    if version not in VERSIONS:
        refuse(f'anthropic-version: "{version}" is not a valid version')
    if "anthropic-beta" in headers:
        refuse(f"Unexpected value(s) `{headers['anthropic-beta']}` for the `anthropic-beta` header.")


def _check_request(body: Any, issued: Issued, policy: Policy, *, old: bool) -> None:
    request: Body = fit(body, {**_REQUEST, "temperature?": float} if old else _REQUEST, "")
    name, messages = request["model"], request["messages"]
    features = MODELS.get(name)
    if features is None:
        refuse(f"model: {name}", 404, "not_found_error")
    _check_limits(request, name, features)
    _check_tools(json.dumps(request.get("tools", [])))
    _check_system(request.get("system", ""))
    for i, message in enumerate(messages):
        blocks.check_message(message, f"messages.{i}")
    is_thinking = _check_thinking(request, features)
    _check_settings(request, features, is_thinking)
    order.check_roles(messages, features, alternate=policy.alternate)
    order.check_pairs(messages)
    order.check_thoughts(messages, issued, is_thinking)
    blocks.check_breakpoints(request)


def _check_limits(request: Body, name: str, features: Features) -> None:
    if request.get("stream") is not True:
        refuse("stream: this test double streams only")
    max_tokens = request["max_tokens"]
    if max_tokens < 1:
        refuse("max_tokens: Input should be greater than or equal to 1")
    if max_tokens > features.max_tokens:
        refuse(
            f"max_tokens: {max_tokens} > {features.max_tokens}, which is the maximum allowed number of output tokens "
            f"for {name}"
        )
    for i, stop in enumerate(request.get("stop_sequences", [])):
        if not fit(stop, str, f"stop_sequences.{i}").strip():
            refuse("stop_sequences: each stop sequence must contain non-whitespace")


@lru_cache(maxsize=100)
def _check_tools(text: str) -> None:
    """Check the tools, which are the same ones in most requests."""
    names: set[str] = set()
    for i, tool in enumerate(json.loads(text)):
        where = f"tools.{i}.custom"
        fit(tool, _TOOL, where)
        if tool["name"] in names:
            refuse("tools: Tool names must be unique.")
        names.add(tool["name"])
        if complaint := schema.complaint(tool["input_schema"]):
            refuse(f"{where}.input_schema{complaint}")


def _check_system(raw: Any) -> None:
    if isinstance(raw, str):
        raw = [{"type": "text", "text": raw}] if raw else []  # an empty string is the same as none
    for i, block in enumerate(fit(raw, list, "system")):
        blocks.check_text(fit(block, blocks.TEXT, f"system.{i}")["text"], "system")


# ---- features of the model


def _check_thinking(request: Body, features: Features) -> bool:
    """Return whether the request turns thinking on."""
    if "thinking" not in request:
        return False
    kind: str = fit(request["thinking"].get("type"), tuple(_THINKING), "thinking.type")
    config = fit(request["thinking"], _THINKING[kind], f"thinking.{kind}")
    if kind not in features.thinking:
        refuse(f'"thinking.type.{kind}" is not supported for this model.')
    if kind == "enabled":
        if config["budget_tokens"] < MIN_THINKING_BUDGET:
            refuse(f"thinking.enabled.budget_tokens: Input should be greater than or equal to {MIN_THINKING_BUDGET}")
        if config["budget_tokens"] >= request["max_tokens"]:
            refuse("`max_tokens` must be greater than `thinking.budget_tokens`.")
    return kind != "disabled"


def _check_settings(request: Body, features: Features, is_thinking: bool) -> None:
    if "temperature" in request:
        if not 0 <= request["temperature"] <= 1:
            refuse("temperature: Input should be between 0 and 1")
        if not features.sampling:
            refuse("`temperature` is deprecated for this model.")
        if is_thinking and request["temperature"] != 1:
            refuse("`temperature` may only be set to 1 when thinking is enabled or in adaptive mode.")
    effort = request.get("output_config", {}).get("effort")
    if effort is not None and not features.efforts:
        refuse("This model does not support the effort parameter.")
    if effort is not None and effort not in features.efforts:
        refuse(f"This model does not support effort level '{effort}'.")
