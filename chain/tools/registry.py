"""The tools of one agent, by name. Checks that each tool is usable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

from chain.errors import ConfigError, ToolError
from chain.tools.tool import Tool, mistakes

_PARTS = ("name", "description", "timeout_s", "read_only", "needs_approval", "check", "run")


def _check(tool: object) -> None:
    """Raise ``ConfigError`` if an object cannot be a tool."""
    if isinstance(tool, type) or not callable(getattr(tool, "run", None)):
        raise ConfigError(f"{getattr(tool, '__qualname__', repr(tool))} is not a tool: decorate it with @tool")
    missing = [part for part in _PARTS if not hasattr(tool, part)]
    if missing:
        raise ConfigError(f"{type(tool).__qualname__} is not a tool: it has no {', '.join(missing)}")
    found = cast("Tool", tool)
    if mistake := next(mistakes(found), None):
        raise ConfigError(f"{type(tool).__qualname__} cannot be a tool: {mistake}")
    try:
        # Not checked by ``@tool``, because a type of the function may be defined after it.
        schema = found.input_schema
    except (AttributeError, NameError, RuntimeError) as error:  # errors of pydantic are a RuntimeError
        why = str(error).partition("\n")[0]
        raise ConfigError(f"{found.name} cannot be a tool: its input has no schema ({why})") from error
    if schema.get("type") != "object":
        raise ConfigError(f"{found.name} cannot be a tool: the type of its input_schema must be object")


@dataclass
class Registry:
    """The tools of one agent, by name."""

    tools: dict[str, Tool] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Iterable[Tool]) -> Registry:
        """Return a registry of tools. Raise ``ConfigError`` if one is unusable, or two have the same name."""
        registry = cls()
        for each in tools:
            _check(each)
            if each.name in registry.tools:
                raise ConfigError(f"two tools are called {each.name}; give one of them another name")
            registry.tools[each.name] = each
        return registry

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools.values())

    def get(self, name: str) -> Tool:
        """Return the tool with this name. If there is none, raise ``ToolError`` with the names of all tools."""
        if name in self.tools:
            return self.tools[name]
        raise ToolError(f"There is no tool {name!r}. The tools are: {', '.join(self.tools) or 'none'}.")
