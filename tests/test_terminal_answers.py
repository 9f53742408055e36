"""A run without a prompt whose output a person sees: the reply as it streams, once, and the closing row last."""

from __future__ import annotations

pytest_plugins = ["support.terminal"]
