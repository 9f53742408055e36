"""The tools of one agent, by name; what cannot be a tool is refused here."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from chain.errors import ConfigError, ToolError
from chain.tools.tool import Tool


def _check_schema(tool: Tool) -> None:
    """Raise ``ConfigError`` for types that have no schema.

    Not where the function is decorated: pydantic takes 50 ms to import, and a type may be defined further down.
    """
    from pydantic import PydanticUserError

    try:
        _ = tool.input_schema
    except (NameError, PydanticUserError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(f"{tool.name} cannot be a tool, since its input has no schema: {why}") from error


@dataclass
class Registry:
    """The tools of one agent, by name."""

    tools: dict[str, Tool] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Iterable[Tool]) -> Registry:
        """A registry of these tools. Raises ``ConfigError`` for what cannot be a tool, and if two have one name."""
        registry = cls()
        for each in tools:
            if not inspect.iscoroutinefunction(getattr(each, "run", None)):
                raise ConfigError(f"{getattr(each, '__qualname__', repr(each))} is no tool: decorate it with @tool")
            if each.name in registry.tools:
                raise ConfigError(f"two tools are called {each.name}; give one of them another name")
            _check_schema(each)
            registry.tools[each.name] = each
        return registry

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools.values())

    def get(self, name: str) -> Tool:
        """The tool of that name. Raises ``ToolError`` with the names that exist."""
        if name in self.tools:
            return self.tools[name]
        raise ToolError(f"There is no tool {name!r}. The tools are: {', '.join(self.tools) or 'none'}.")
