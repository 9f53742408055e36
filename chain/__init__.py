"""Run ReAct chains, and let people type while they run.

A line of input walks through the package like this::

    submit ──line──> inbox ──safe point──> executor ──compose──> conversation ──request──> model
                                              │                                              │
    feed, listen <──────── events <───────────┴────────────────── deltas <───────────────────┘

``open_chain`` (app) opens a ``Chain`` (chain); its lines are read by ``lines``, wait in ``inbox``, and enter the
``conversation`` in ``executor``, put by ``interruption``. ``session`` keeps the record, ``events`` says what happened.
Models live in ``providers`` and answer to ``model``; tools live in ``tools``. Importing this package imports neither a
model's library nor a YAML reader.
"""

from chain.app import open_chain
from chain.chain import Chain, Submitted
from chain.config import Settings
from chain.config import load as load_settings
from chain.errors import ChainError, ConfigError, ModelError, ToolError, UserError
from chain.events import Event
from chain.feed import Feed
from chain.messages import Message
from chain.model import Model, Reply, Request
from chain.tools import Guidance, Tool, ToolContext, tool
from chain.version import VERSION as __version__

__all__ = [
    "Chain",
    "ChainError",
    "ConfigError",
    "Event",
    "Feed",
    "Guidance",
    "Message",
    "Model",
    "ModelError",
    "Reply",
    "Request",
    "Settings",
    "Submitted",
    "Tool",
    "ToolContext",
    "ToolError",
    "UserError",
    "__version__",
    "load_settings",
    "open_chain",
    "tool",
]
