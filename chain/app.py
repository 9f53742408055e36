"""The one place that wires a chain together: ``open_chain`` gives a ``Chain`` that is ready to take lines."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from chain.chain import Chain
from chain.config import ChainSettings, ModelSettings, Settings
from chain.errors import ConfigError, JournalError, SessionError, UserError
from chain.model import Model
from chain.promptfile import read_system_prompt
from chain.run import Limits
from chain.session import Journal, new_journal, sessions_folder
from chain.tools import Registry, Tool, calling
from chain.version import VERSION


@asynccontextmanager
async def open_chain(
    settings: Settings,
    *,
    workspace: Path,
    state: Path,
    tools: Iterable[Tool] = (),
    model: Model | None = None,
    journal: Journal | None = None,
    interactive: bool = False,
) -> AsyncIterator[Chain]:
    """Open a new session and keep it running; leaving the block interrupts what runs and closes the session.

    ``workspace`` is the folder that the tools work in, ``state`` the one for the journals (``config.state_folder``).
    ``tools`` are added to those of the configuration; ``model`` and ``journal`` replace the configured ones. Raises
    ``UserError`` for anything in the configuration that cannot be used.
    """
    make = _prepare(settings, workspace, tools, model, interactive)
    async with AsyncExitStack() as stack:
        if journal is None:
            journal = stack.enter_context(new_journal(sessions_folder(state)))
        chain = make(journal=journal)
        opened = {"id": chain.session_id, "version": VERSION, "model": chain.model_name}
        try:
            journal.record("session", {**opened, "workspace": str(chain.workspace)})
        except JournalError as error:
            raise SessionError(f"{error}; make room or set XDG_STATE_HOME") from None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            nursery.start_soon(chain.run_forever)
            try:
                yield chain
            finally:
                await chain.close()
                nursery.cancel_scope.cancel()


def _prepare(
    settings: Settings, workspace: Path, tools: Iterable[Tool], model: Model | None, interactive: bool
) -> partial[Chain]:
    """Check everything that can be wrong before a session exists. The rest is a function of its journal."""
    if not workspace.is_dir():
        raise UserError("the workspace is not a folder; give one that exists with --workspace", file=workspace)
    chosen = settings.chain()
    definition = settings.model(chosen.model)
    limits = Limits(
        max_iterations=chosen.max_iterations,
        timeout_s=chosen.timeout_s,
        max_attempts=definition.max_attempts,
        max_tokens=chosen.budget.max_tokens,
        max_cost_usd=chosen.budget.max_cost_usd,
    )
    registry = Registry.of([*configured_tools(chosen), *tools])
    _check_allowed(settings.allow, registry)
    rules = calling.Rules(settings.tool_timeout_s, settings.tool_result_limit, frozenset(settings.allow))
    return partial(
        Chain,
        model=build_model(definition) if model is None else model,
        system="" if chosen.system_prompt is None else read_system_prompt(chosen.system_prompt),
        registry=registry,
        workspace=workspace.resolve(),
        interruption_prompt=chosen.interruption_prompt,
        limits=limits,
        tool_rules=rules,
        inbox_size=settings.inbox_size,
        interactive=interactive,
    )


def _check_allowed(allow: Iterable[str], registry: Registry) -> None:
    known = {*registry.tools, *(tool.name for group in _groups().values() for tool in group)}
    for name in allow:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the tools are {', '.join(sorted(known))}"
            raise ConfigError(f"tools.allow: there is no tool {name!r}; {hint}")


def _groups() -> dict[str, tuple[Tool, ...]]:
    from chain.tools import files, plan

    return {"todo": plan.TOOLS, "files": files.TOOLS}


def build_model(settings: ModelSettings) -> Model:
    """The model of a definition. Raises ``ConfigError``."""
    from chain.providers.scripted import ScriptedModel

    settings.require_key()
    if settings.provider == "scripted":
        assert settings.script is not None
        return ScriptedModel.load(settings.script)
    raise ConfigError("the anthropic provider is not built yet; use --model offline")


def configured_tools(settings: ChainSettings) -> list[Tool]:
    """The tools that a chain's ``tools`` key names, by group or one by one. Raises ``ConfigError``."""
    groups = _groups()
    single = {tool.name: tool for group in groups.values() for tool in group}
    chosen: dict[str, Tool] = {}
    for name in settings.tools:
        if name not in groups and name not in single:
            near = difflib.get_close_matches(name, [*groups, *single], n=1)
            hint = f"did you mean {near[0]}?" if near else f"the groups are {', '.join(groups)}"
            raise ConfigError(f"chains.{settings.name}.tools: there is no tool or group {name!r}; {hint}")
        for tool in groups.get(name) or (single[name],):
            chosen[tool.name] = tool
    return list(chosen.values())
