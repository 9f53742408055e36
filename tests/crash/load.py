"""Imports and prepares what a program does, so that no fork has to."""

from __future__ import annotations

import functools
import gc
import importlib
from pathlib import Path

from support.house import ROOT, modules

_NOT_BEFORE = ("chain.providers.anthropic", "cli.__main__")
_RUN_BY_THEMSELVES = ("guard", "page_text", "fence")


def load(rules: Path) -> None:
    """Import what a program imports, late or not, and fill its caches."""
    for name, path in modules().items():
        if not name.startswith(_NOT_BEFORE) and path.stem not in _RUN_BY_THEMSELVES:
            importlib.import_module(name)
    importlib.import_module("chain.providers.scripted.scripted_model").ScriptedModel.load(rules)
    load_settings = importlib.import_module("chain.config.load").load_settings
    settings = load_settings(config=ROOT / "config.yaml", environ={}, cwd=ROOT, flags={})
    registry = importlib.import_module("chain.tools.registry").Registry
    for group in importlib.import_module("chain.app.toolbox").tool_groups(settings).values():
        registry.of(group)
    importlib.import_module("cli.show.markdown_flow").warm()
    # Each program makes the bindings of keys once and leaves them as they are.
    application = importlib.import_module("prompt_toolkit.application.application")
    application.load_key_bindings = functools.cache(application.load_key_bindings)
    application.load_key_bindings()
    gc.collect()
    gc.freeze()
