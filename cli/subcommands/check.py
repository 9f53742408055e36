"""``chain check``: shows every value and its source, then the problems."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from chain.app import (
    build_model,
    check_model,
    check_state,
    configured_tools,
    explain_allowance,
    prompt_file,
    read_allowances,
    shell_protections,
    system_prompt,
    tool_groups,
)
from chain.config.load import require_trust
from chain.config.settings import Price
from chain.errors import ConfigError, SessionError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from chain import Tool
    from chain.app import ToolGroups
    from chain.config.load import Settings
    from chain.config.settings import ChainSettings, ModelSettings

_SCRIPTED = ("provider", "script")
_ANTHROPIC = (
    *("provider", "model", "api_key", "base_url", "max_tokens", "effort", "temperature", "thinking", "stop_sequences"),
    *("timeout_s", "idle_timeout_s", "max_attempts", "system_messages", "extra_body", "extra_headers", "price"),
)
_CHAIN = ("model", "system_prompt", "interruption_prompt", "tools", "max_iterations", "timeout_s")
_SHELL = ("sandbox", "network", "env", "writable")
_SECRET = ("api_key", "extra_headers", "extra_body")
"""Shown only as set or not set. ``extra_body`` is one of them because some servers expect their key there."""


def check(settings: Settings, state: Path | None = None, tools: Sequence[Tool] = ()) -> tuple[list[str], bool]:
    """Check the configuration, its prompts and its models; returns the rows to show, and whether all is well.

    ``state`` is the folder of the sessions: with it, also checks that they can be written there. ``tools`` are those
    that the program adds to the configured ones.

    Nothing of a file that is not trusted yet is shown, as its values may contain any environment variable.
    """
    lines = [f"config: {settings.file or 'built in'}"]
    lines += [] if settings.passed_over is None else [f"note: {settings.passed_over}"]
    groups = tool_groups(settings)
    problems: list[str] = []
    try:
        require_trust(settings)
    except ConfigError as error:
        return [*lines, f"problem: {error}"], False
    lines += [
        _line(settings, "models.default", settings.default_model),
        _line(settings, "chain", settings.default_chain),
    ]
    if state is not None:
        try:
            check_state(state)
        except SessionError as error:
            problems.append(str(error))
    for name in settings.model_names:
        try:
            model = settings.model(name)
        except ConfigError as error:
            problems.append(str(error))
            continue
        lines += _model_lines(settings, model)
        if model.provider == "scripted":
            problems += _problem(build_model, model)
    for name in settings.chain_names:
        try:
            chain = settings.chain(name)
        except ConfigError as error:
            problems.append(str(error))
            continue
        lines += _chain_lines(settings, chain)
        problems += _chain_problems(settings, chain, tools, groups)
    lines += [
        _line(settings, "inbox.size", settings.inbox_size),
        _line(settings, "tools.timeout_s", settings.tool_timeout_s),
        _line(settings, "tools.result_limit", settings.tool_result_limit),
        *_allowance_lines(settings),
        *(_line(settings, f"tools.shell.{key}", getattr(settings.shell, key)) for key in _SHELL),
        *_fence_lines(settings, groups),
        _line(settings, "tools.research.hosts", settings.research_hosts),
    ]
    problems += _problem(read_allowances, settings, tools, groups)
    problems += _problem(shell_protections, settings)
    # Chains share models and prompts: each problem is shown once.
    return lines + [f"problem: {problem}" for problem in dict.fromkeys(problems)], not problems


async def check_service(settings: Settings) -> tuple[list[str], bool]:
    """Ask the service of the chain's model whether it accepts the key and has the model; rows, and whether all is well.

    Only for a configuration in which ``check`` found no problem. What the service does not say, or cannot say because
    it is out of order, is not a fault of the configuration.
    """
    model = settings.model(settings.chain().model)
    if model.provider != "anthropic":
        return ["all is well"], True
    verdict = await check_model(model)
    if verdict.is_good is None:
        return [f"no problem was found, but the model could not be checked: {verdict.message}"], True
    if not verdict.is_good:
        return [f"problem: {verdict.message}"], False
    return [f"all is well: {verdict.message}"], True


def _model_lines(settings: Settings, model: ModelSettings) -> list[str]:
    keys = _SCRIPTED if model.provider == "scripted" else _ANTHROPIC
    return [_line(settings, f"models.definitions.{model.name}.{key}", getattr(model, key)) for key in keys]


def _chain_lines(settings: Settings, chain: ChainSettings) -> list[str]:
    prefix = f"chains.{chain.name}"
    lines = [_line(settings, f"{prefix}.{key}", getattr(chain, key)) for key in _CHAIN]
    limits = {"max_tokens": chain.budget.max_tokens, "max_cost_usd": chain.budget.max_cost_usd}
    return lines + [_line(settings, f"{prefix}.budget.{key}", limit) for key, limit in limits.items()]


def _allowance_lines(settings: Settings) -> list[str]:
    """The allowances, and below them what each of them means."""
    rows = [_line(settings, "tools.allow", settings.allow)]
    for text in settings.allow:
        with suppress(UserError):  # it is one of the problems
            rows.append(f"  {text}: {explain_allowance(text)}")
    return rows


def _fence_lines(settings: Settings, groups: ToolGroups) -> list[str]:
    """What fences commands in on this machine, and what they can do all the same."""
    if not groups["shell"]:
        return ["  the shell is left out here: it needs Linux"]
    with suppress(ConfigError):  # it is one of the problems
        held, open_to = shell_protections(settings)
        rows = [f"  fenced in: {', '.join(held)}"] if held else []
        return [*rows, *(f"  not fenced in: {sentence}" for sentence in open_to)]
    return []


def _chain_problems(settings: Settings, chain: ChainSettings, tools: Sequence[Tool], groups: ToolGroups) -> list[str]:
    problems = []
    problems += _problem(system_prompt, settings, chain)
    problems += _problem(configured_tools, settings, chain, tools, groups)
    if chain.interruption_prompt is not None:
        _, error = prompt_file(settings, chain).current()
        problems += [] if error is None else [str(error)]
    try:
        model = settings.model(chain.model)
    except ConfigError as error:
        return [*problems, str(error)]
    if model.lacks_key and chain.name == settings.default_chain:
        problems += _problem(model.require_key)
    if chain.budget.max_cost_usd is not None and model.price is None and model.provider != "scripted":
        hint = f"it cannot hold without a price: give models.definitions.{model.name} a price"
        problems.append(str(settings.error(f"chains.{chain.name}.budget.max_cost_usd", hint)))
    return problems


def _problem(attempt: Callable[..., object], *arguments: object) -> list[str]:
    try:
        attempt(*arguments)
    except ConfigError as error:
        return [str(error)]
    return []


def _line(settings: Settings, key: str, value: object) -> str:
    return f"{key}: {_shown(key.rpartition('.')[2], value)}  ({settings.source(key)})"


def _shown(name: str, value: object) -> str:
    if name in _SECRET:
        return "set" if value else "not set"
    if value is None:
        return "not set"
    if name == "base_url":
        # Without a user, a password or a query, any of which may be a key.
        url = urlsplit(str(value))
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"
    if isinstance(value, Price):
        return ", ".join(f"{kind} {dollars:g}" for kind, dollars in asdict(value).items())
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
