"""Run ReAct chains, in which people can type while the model works.

A line of input passes down through the packages, and events come back up::

    submit ──line──> inbox ──safe point──> delivery ──compose──> history ──request──> model
                                              │                                         │
    feed, listen <──────── events <───────────┴──────────────── deltas <────────────────┘

``app`` opens a ``Chain``. Below it are, in this order: ``session`` (the runs, the state, the feeds), ``agent`` (the
loop, the conversation, the calls, the tree of agents), ``tools`` and ``interruption`` (the handler prompt), ``lines``
(parsing, receipts, the inbox), ``journal`` (the records), ``events`` and ``messages``. ``providers`` implement
``model``, and only ``app`` uses them. ``config`` is used by several of these packages. ``import chain`` imports almost
nothing: each public name is imported when it is first used, so that a program shows its prompt early.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from chain.version import VERSION as __version__

if TYPE_CHECKING:
    from chain.agent.tree import AgentView
    from chain.app.open import open_chain
    from chain.chain import Chain, SubmitResult
    from chain.config.load import Settings, load_settings
    from chain.errors import ChainError, ConfigError, ModelError, ToolError, UserError
    from chain.events import Event
    from chain.messages import Message
    from chain.model import Model, Reply, Request
    from chain.plan import Task
    from chain.redis.redis_store import RedisStore
    from chain.session.feed import Feed
    from chain.session.memory_store import MemoryStore
    from chain.session.store import FileStore, Store
    from chain.tools.tool import FunctionTool, Guidance, Tool, ToolContext, ToolOutput, tool

__all__ = ["AgentView", "Chain", "Feed", "Settings", "SubmitResult", "__version__", "load_settings", "open_chain"]
__all__ += ["ChainError", "ConfigError", "ModelError", "ToolError", "UserError"]
__all__ += ["Event", "Message", "Model", "Reply", "Request", "Task"]
__all__ += ["FileStore", "MemoryStore", "RedisStore", "Store"]
__all__ += ["FunctionTool", "Guidance", "Tool", "ToolContext", "ToolOutput", "tool"]

_HOMES = {
    "agent.tree": ("AgentView",),
    "app.open": ("open_chain",),
    "chain": ("Chain", "SubmitResult"),
    "config.load": ("Settings", "load_settings"),
    "errors": ("ChainError", "ConfigError", "ModelError", "ToolError", "UserError"),
    "events": ("Event",),
    "messages": ("Message",),
    "model": ("Model", "Reply", "Request"),
    "plan": ("Task",),
    "redis.redis_store": ("RedisStore",),
    "session.feed": ("Feed",),
    "session.memory_store": ("MemoryStore",),
    "session.store": ("FileStore", "Store"),
    "tools.tool": ("FunctionTool", "Guidance", "Tool", "ToolContext", "ToolOutput", "tool"),
}
"""The public names, by the module that defines them. ``__getattr__`` imports a name from there at its first use."""

if not TYPE_CHECKING:  # with this function a type checker would accept any name

    def __getattr__(name: str) -> object:
        for module, names in _HOMES.items():
            if name in names:
                found = getattr(import_module(f"chain.{module}"), name)
                globals()[name] = found
                return found
        try:
            return import_module(f"chain.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"chain.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
