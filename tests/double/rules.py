"""The rules of the Messages API for one request: what it refuses, and in which words. Pure.

Texts and status codes follow https://docs.anthropic.com/en/api/errors and what the service is known to answer; a
client may lean on the kind and on the place named at the start, never on the rest. Where the service is laxer than the
program under test may be (a last message of the assistant's, results spread over two messages), the double takes the
stricter side; the comments say so.

The version that the request names matters: sampling parameters are unknown fields since 2026-10-21, which the SDK sends
since 2.0, and belong to the older models before (https://platform.claude.com/docs/en/api/versioning).

The order is: headers, the shape of the body, the model's features, the order of the messages, then what is counted
over the whole request. The first fault wins, as with the service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from . import content, order, schema
from .fault import Body, Fault, Refused, a_choice, a_flag, a_list, a_string, an_integer, an_object, refuse
from .models import MODELS, Features
from .order import Issued

__all__ = ["Body", "Fault", "Issued", "Policy", "check", "check_count", "check_headers", "check_messages"]

MIN_THINKING_BUDGET: Final = 1024

OLD_VERSION: Final = "2023-06-01"
VERSIONS: Final = (OLD_VERSION, "2026-10-21")

_SAMPLING = {"temperature", "top_p", "top_k"}
_TOP = {
    *("model", "messages", "max_tokens", "stream", "system", "tools", "tool_choice", "thinking", "output_config"),
    *("stop_sequences", "metadata", "service_tier", "inference_geo", "cache_control"),
}
_COUNT_TOP = {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control"}


@dataclass(frozen=True, slots=True)
class Policy:
    """Which service the double plays.

    ``key`` is the API key it expects, ``None`` for a server that wants none. ``alternate`` is the strictness of
    compatible servers: no two messages in a row of one role. ``prefill`` lets the models that take a last message of
    the assistant's take it: off, because the program under test must never send one. ``betas`` are the values of
    ``anthropic-beta`` that it knows. ``window`` is what it says of each model's, in tokens; 0: nothing.
    """

    key: str | None = "test-key"
    models: Mapping[str, Features] = field(default_factory=lambda: MODELS)
    alternate: bool = False
    prefill: bool = False
    betas: frozenset[str] = frozenset()
    window: int = 200_000


def check(
    body: object, headers: Mapping[str, str], *, issued: Issued | None = None, policy: Policy | None = None
) -> Fault | None:
    """Why the API would refuse this request for a message, or ``None``. Header names are in lower case."""
    issued, policy = issued or Issued(), policy or Policy()
    try:
        _headers(headers, policy)
        _request(body, issued, policy, old=headers["anthropic-version"] == OLD_VERSION)
    except Refused as refused:
        return refused.fault
    return None


def check_count(body: object, headers: Mapping[str, str], *, policy: Policy | None = None) -> Fault | None:
    """The same for ``count_tokens``, whose body has fewer fields."""
    policy = policy or Policy()
    try:
        _headers(headers, policy)
        body = an_object(body, "body", required={"model", "messages"}, optional=_COUNT_TOP)
        _request({"max_tokens": 1, **body}, Issued(), policy, old=False, signatures=False)
    except Refused as refused:
        return refused.fault
    return None


def check_messages(messages: object, *, known: int = 0) -> Fault | None:
    """The same for messages alone, in the form in which a program keeps them.

    Which thinking and which blocks of unknown kinds it sends is not known then, so these are not looked at. Each of the
    first ``known`` messages was found to be well formed before.
    """
    try:
        messages = a_list(messages, "messages")
        for i, message in enumerate(messages[known:], known):
            content.message(message, f"messages.{i}", kept=True)
        order.roles(messages, Features(), alternate=False, prefill=False)
        order.pairs(messages)
    except Refused as refused:
        return refused.fault
    return None


def check_headers(headers: Mapping[str, str], *, policy: Policy | None = None) -> Fault | None:
    """The same for the requests without a body."""
    try:
        _headers(headers, policy or Policy())
    except Refused as refused:
        return refused.fault
    return None


def _headers(headers: Mapping[str, str], policy: Policy) -> None:
    if policy.key is not None:
        # The SDK sends the key as a bearer since 2.0; other clients send it in a header of its own.
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        given = headers.get("x-api-key") or bearer
        if not given:
            refuse("x-api-key header is required", 401, "authentication_error")
        if given != policy.key:
            refuse("invalid x-api-key", 401, "authentication_error")
    if not headers.get("anthropic-version"):
        refuse("anthropic-version: header is required")
    if headers["anthropic-version"] not in VERSIONS:
        refuse(f'anthropic-version: "{headers["anthropic-version"]}" is not a valid version')
    for beta in filter(None, (b.strip() for b in headers.get("anthropic-beta", "").split(","))):
        if beta not in policy.betas:
            refuse(f"Unexpected value(s) `{beta}` for the `anthropic-beta` header.")


def _request(body: object, issued: Issued, policy: Policy, *, old: bool, signatures: bool = True) -> None:
    known = _TOP | _SAMPLING if old else _TOP
    request = an_object(body, "body", required={"model", "messages", "max_tokens"}, optional=known)
    name = a_string(request["model"], "model")
    features = policy.models.get(name)
    if features is None:
        refuse(f"model: {name}", 404, "not_found_error")
    _limits(request, name, features)
    tools = _tools(json.dumps(request.get("tools", [])))
    _tool_choice(request.get("tool_choice"), tools, "tools" in request)
    _system(request.get("system"))
    messages = a_list(request["messages"], "messages")
    for i, message in enumerate(messages):
        content.message(message, f"messages.{i}")
    thinking = _thinking(request, features)
    _sampling(request, features, thinking)
    _output(request.get("output_config"), name, features)
    order.roles(messages, features, alternate=policy.alternate, prefill=policy.prefill)
    order.pairs(messages)
    order.thoughts(messages, issued, thinking, signatures=signatures)
    content.breakpoints(request)


def _limits(request: Body, name: str, features: Features) -> None:
    max_tokens = an_integer(request["max_tokens"], "max_tokens")
    # The service also takes 0, to fill the cache without an answer; the program under test has no use for that.
    if max_tokens < 1:
        refuse("max_tokens: Input should be greater than or equal to 1")
    if max_tokens > features.max_tokens:
        refuse(
            f"max_tokens: {max_tokens} > {features.max_tokens}, which is the maximum allowed number of output tokens "
            f"for {name}"
        )
    if "stream" in request:
        a_flag(request["stream"], "stream")
    stops = a_list(request.get("stop_sequences", []), "stop_sequences")
    for i, stop in enumerate(stops):
        if not a_string(stop, f"stop_sequences.{i}").strip():
            refuse("stop_sequences: each stop sequence must contain non-whitespace")
    if "service_tier" in request:
        a_choice(request["service_tier"], "service_tier", ("auto", "standard_only"))
    if "metadata" in request:
        metadata = an_object(request["metadata"], "metadata", required=set(), optional={"user_id"})
        if metadata.get("user_id") is not None:
            a_string(metadata["user_id"], "metadata.user_id")


@lru_cache(maxsize=100)
def _tools(text: str) -> frozenset[str]:
    """The names of the tools, which are the same ones in most requests."""
    names: set[str] = set()
    for i, tool in enumerate(a_list(json.loads(text), "tools")):
        where = f"tools.{i}"
        if isinstance(tool, Mapping) and tool.get("type", "custom") not in ("custom", None):
            refuse(f"{where}: this test double models custom tools only, not {tool['type']!r}")
        tool = an_object(
            tool,
            where,
            required={"name", "input_schema"},
            optional={
                *("type", "description", "cache_control", "strict", "input_examples", "defer_loading"),
                *("allowed_callers", "eager_input_streaming"),
            },
            tag="custom",
        )
        name = a_string(tool["name"], f"{where}.custom.name")
        if not content.TOOL_NAME.match(name):
            refuse(f"{where}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
        if name in names:
            refuse("tools: Tool names must be unique.")
        names.add(name)
        if "description" in tool:
            a_string(tool["description"], f"{where}.custom.description")
        if "strict" in tool:
            a_flag(tool["strict"], f"{where}.custom.strict")
        if complaint := schema.complaint(tool["input_schema"], strict=tool.get("strict") is True):
            refuse(f"{where}.custom.input_schema{complaint}")
        content.cache_control(tool, f"{where}.custom")
    return frozenset(names)


def _tool_choice(raw: object, tools: frozenset[str], given: bool) -> None:
    if raw is None:
        return
    kind = raw.get("type") if isinstance(raw, Mapping) else None
    kind = a_choice(kind, "tool_choice.type", ("auto", "any", "tool", "none"))
    required = {"type", "name"} if kind == "tool" else {"type"}
    optional = set() if kind == "none" else {"disable_parallel_tool_use"}
    choice = an_object(raw, "tool_choice", required=required, optional=optional, tag=kind)
    if "disable_parallel_tool_use" in choice:
        a_flag(choice["disable_parallel_tool_use"], f"tool_choice.{kind}.disable_parallel_tool_use")
    if not given:
        refuse("tool_choice: tool_choice may only be specified while providing tools.")
    if kind == "tool" and a_string(choice["name"], "tool_choice.tool.name") not in tools:
        refuse(f"tool_choice: Tool '{choice['name']}' not found in provided tools")


def _system(raw: object) -> None:
    match raw:
        case None | "":  # an empty string is the same as none
            return
        case str():
            content.not_blank(raw, "system")
        case _:
            for i, block in enumerate(a_list(raw, "system")):
                content.text_block(block, f"system.{i}", "system")


# ---- features of the model


def _thinking(request: Body, features: Features) -> bool:
    """Whether the request turns thinking on."""
    raw = request.get("thinking")
    if raw is None:
        return False
    kind = raw.get("type") if isinstance(raw, Mapping) else None
    kind = a_choice(kind, "thinking.type", ("enabled", "adaptive", "disabled", "between_tools"))
    required = {"type", "budget_tokens"} if kind == "enabled" else {"type"}
    optional = {"display"} if kind in ("enabled", "adaptive") else set()
    config = an_object(raw, "thinking", required=required, optional=optional, tag=kind)
    if "display" in config:
        a_choice(config["display"], f"thinking.{kind}.display", ("summarized", "omitted"))
    if kind not in features.thinking:
        if kind == "enabled":
            refuse(
                '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
                '"output_config.effort" to control thinking behavior.'
            )
        refuse(f"{kind} thinking is not supported on this model")
    if kind == "enabled":
        budget = an_integer(config["budget_tokens"], "thinking.enabled.budget_tokens")
        if budget < MIN_THINKING_BUDGET:
            refuse(f"thinking.enabled.budget_tokens: Input should be greater than or equal to {MIN_THINKING_BUDGET}")
        if budget >= request["max_tokens"]:
            refuse("`max_tokens` must be greater than `thinking.budget_tokens`.")
    on = kind in ("enabled", "adaptive")
    if on and (request.get("tool_choice") or {}).get("type") in ("any", "tool"):
        refuse("Thinking may not be enabled when tool_choice forces tool use.")
    return on


def _sampling(request: Body, features: Features, thinking: bool) -> None:
    for name in ("temperature", "top_p"):
        value = request.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            refuse(f"{name}: Input should be a valid number")
        if not 0 <= value <= 1:
            refuse(f"{name}: Input should be between 0 and 1")
    if request.get("top_k") is not None and an_integer(request["top_k"], "top_k") < 0:
        refuse("top_k: Input should be greater than or equal to 0")
    given = [n for n in ("temperature", "top_p", "top_k") if request.get(n) is not None]
    if given and not features.sampling:
        refuse(f"`{given[0]}` is deprecated for this model.")
    if "temperature" in given and "top_p" in given:
        refuse("`temperature` and `top_p` cannot both be specified for this model. Please use only one.")
    if thinking and request.get("temperature", 1) != 1:
        refuse("`temperature` may only be set to 1 when thinking is enabled or in adaptive mode.")
    if thinking and "top_k" in given:
        refuse("`top_k` must be unset when thinking is enabled.")
    if thinking and request.get("top_p", 1) < 0.95:
        refuse("`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled.")


def _output(raw: object, name: str, features: Features) -> None:
    if raw is None:
        return
    config = an_object(raw, "output_config", required=set(), optional={"effort", "format"})
    effort = config.get("effort")
    if effort is not None:
        a_choice(effort, "output_config.effort", ("low", "medium", "high", "xhigh", "max"))
        if not features.efforts:
            refuse("This model does not support the effort parameter.")
        if effort not in features.efforts:
            refuse(
                f"This model does not support effort level '{effort}'. Supported levels: "
                f"{', '.join(sorted(features.efforts))}."
            )
    if config.get("format") is not None:
        where = "output_config.format"
        wanted = an_object(config["format"], where, required={"type", "schema"}, optional=set())
        if wanted["type"] != "json_schema":
            refuse(f"{where}.type: Input should be 'json_schema'")
