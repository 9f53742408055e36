"""Specifications of agents, from the configuration and the agent that starts them.

==========  ===================================================================
kind        tools, if the configuration does not set them
==========  ===================================================================
explore     the chain's read-only tools, including ``research`` and questions
plan        the tools of ``explore``, and the tools that change the plan
others      all tools of the chain, including those that start agents
==========  ===================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from chain.agent.spec import AgentSpec, Limits
from chain.app.prompt_files import agent_prompt, compaction_rules, prompt_file, system_prompt
from chain.app.toolbox import ToolGroups, configured_tools, named_tools, with_servers
from chain.config.load import Settings
from chain.config.provider import ModelSettings
from chain.config.settings import KindSettings
from chain.errors import UserError
from chain.model import Model
from chain.text.wording import MAIN, ROOT
from chain.tools.registry import Registry
from chain.tools.tool import Tool

OpenModel = Callable[[ModelSettings], Model]


def main_tools(settings: Settings, own: Sequence[Tool], groups: ToolGroups) -> Registry:
    """Return the tools of the main agent. Raise ``ConfigError`` for a tool that cannot be used."""
    return Registry.of([*configured_tools(settings, settings.chain(), own, groups), *own])


def main_agent(settings: Settings, own: Sequence[Tool], model: Model, groups: ToolGroups) -> AgentSpec:
    """Return the configured main agent. Raise ``ConfigError`` for a setting that cannot be used."""
    chosen = settings.chain()
    return AgentSpec(
        name=MAIN,
        parent_id=ROOT,
        model=model,
        system=system_prompt(settings, chosen),
        registry=main_tools(settings, own, groups),
        limits=Limits(
            max_iterations=chosen.max_iterations,
            timeout_s=math.inf if chosen.timeout_s is None else chosen.timeout_s,
            retries=settings.model(chosen.model).retries,
            max_tokens=chosen.budget.max_tokens,
            max_cost_usd=chosen.budget.max_cost_usd,
        ),
        prompts=prompt_file(settings, chosen),
        compaction=compaction_rules(settings, chosen),
    )


class Kinds:
    """A factory for the specifications of a session's agents. ``main`` is the first agent of the session.

    ``open_model`` opens the model of a definition. It is called once per definition, for the first agent that uses it.
    """

    def __init__(
        self, settings: Settings, main: AgentSpec, groups: ToolGroups, own: Iterable[Tool], open_model: OpenModel
    ) -> None:
        """Check all kinds. Raise ``ConfigError`` for a kind that cannot be used. A missing API key is no error yet."""
        self._settings = settings
        self._open_model = open_model
        self._models: dict[str, Model] = {}
        self._own = tuple(own)
        self._groups = groups
        self._kinds: dict[str, tuple[KindSettings, AgentSpec]] = {}
        for kind in settings.agents.kinds:
            prompt = agent_prompt(settings, kind.name)
            self._kinds[kind.name] = kind, replace(main, system=prompt.system, prompts=prompt.handler or main.prompts)
        self.use_tools(main.registry, groups)

    def use_tools(self, chain: Registry, groups: ToolGroups) -> None:
        """Use these tools for new agents. ``chain`` are the tools of the main agent."""
        for name, (kind, spec) in self._kinds.items():
            self._kinds[name] = kind, replace(spec, registry=self._registry(kind, chain, groups))

    def _registry(self, kind: KindSettings, chain: Registry, groups: ToolGroups) -> Registry:
        """Return the tools of a kind. Raise ``ConfigError`` for a tool that does not exist."""
        if kind.tools is not None:
            return Registry.of(named_tools(self._settings, f"agents.{kind.name}.tools", kind.tools, groups, self._own))
        if kind.name not in ("explore", "plan"):
            return chain
        planning = {tool.name for tool in groups["todo"]} if kind.name == "plan" else set()
        return Registry({tool.name: tool for tool in chain if tool.read_only or tool.name in planning})

    def use_server_tools(self, tools: Iterable[Tool], servers: Mapping[str, str]) -> Registry:
        """Add the tools of servers to those of new agents, and return all tools of the main agent.

        ``servers`` maps the name of each tool to the name of its server.
        """
        groups = with_servers(self._groups, tools, servers)
        registry = main_tools(self._settings, self._own, groups)
        self.use_tools(registry, groups)
        return registry

    @property
    def models(self) -> Sequence[Model]:
        """The models that were opened."""
        return tuple(self._models.values())

    def make(self, kind: str, name: str, parent: AgentSpec, call_id: str) -> AgentSpec:
        """Return the specification of the agent that a call starts. Raise ``UserError`` for an unknown ``kind``.

        The agent has no time limit of its own, since it works within the time limit of its parent.
        """
        if kind not in self._kinds:
            raise UserError(f"there is no kind of agent {kind!r:.60}")
        settings, spec = self._kinds[kind]
        model, effort = parent.model, parent.effort
        most = settings.max_iterations or spec.limits.max_iterations
        limits = replace(parent.limits, timeout_s=math.inf, max_iterations=most)
        if settings.model is not None:
            definition = self._settings.model(settings.model)
            if definition.name not in self._models:
                self._models[definition.name] = self._open_model(definition)
            model, limits = self._models[definition.name], replace(limits, retries=definition.retries)
            effort = ""  # it was chosen for another model
        return replace(
            spec,
            name=name,
            parent_id=call_id,
            model=model,
            limits=limits,
            instructions=parent.instructions,
            effort=effort,
        )
