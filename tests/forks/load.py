"""Imports and prepares what a program does, so that no fork has to."""

from __future__ import annotations

import functools
import gc
import importlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

_NOT_BEFORE = ("chain.providers.anthropic", "cli.__main__")
_RUN_BY_THEMSELVES = ("guard", "worker", "page_text", "fence")
_LATE = (
    *("yaml", "yaml.cyaml", "regex", "uuid", "markdown_it", "pygments.lexers", "pygments.formatters"),
    *("importlib.resources", "encodings.utf_8_sig", "pydantic.main", "pydantic.types", "pydantic.json_schema"),
    *("pydantic.plugin._loader", "pydantic.type_adapter", "pydantic._internal._generate_schema"),
    *("pydantic._internal._docs_extraction", "pydantic._internal._validators", "prompt_toolkit", "runpy"),
)
"""What the program imports when it needs it. A name that is missing here costs time and nothing else."""


def load(*rules: Path, tools: tuple[Any, ...] = ()) -> None:
    """Import what a program imports, late or not, and fill its caches; ``rules`` and ``tools`` are of its tests."""
    for folder in ("chain", "cli"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if not name.startswith(_NOT_BEFORE) and path.stem not in _RUN_BY_THEMSELVES:
                importlib.import_module(name)
    for name in _LATE:
        importlib.import_module(name)
    for each in (ROOT / "prompts/offline_model.yaml", *rules):
        for at_terminal in (False, True):
            importlib.import_module("chain.providers.scripted.scripted_model").ScriptedModel.load(
                each, at_terminal=at_terminal
            )
    load_settings = importlib.import_module("chain.config.load").load_settings
    settings = load_settings(config=ROOT / "config.yaml", environ={}, cwd=ROOT, flags={})
    registry = importlib.import_module("chain.tools.registry").Registry
    for group in (*importlib.import_module("chain.app.toolbox").tool_groups(settings).values(), tools):
        registry.of(group)
    importlib.import_module("cli.show.markdown_flow").warm()
    # Each program makes the bindings of keys once and leaves them as they are.
    application = importlib.import_module("prompt_toolkit.application.application")
    application.load_key_bindings = functools.cache(application.load_key_bindings)
    application.load_key_bindings()
    gc.collect()
    gc.freeze()
