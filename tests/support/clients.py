"""The configuration for tests that run the real ``chain acp``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .house import ROOT


def configure(home: Path) -> Sequence[str]:
    """Write a configuration with the rules for editors. Return the options that use it."""
    config = home / "config.yaml"
    script = f"{ROOT}/tests/support/acp_rules.yaml"
    config.write_text(f"""
models:
  default: test
  definitions:
    test: {{provider: scripted, script: {script}}}
    other: {{provider: scripted, script: {script}}}
chains:
  default: {{model: test, system_prompt: null, tools: [todo, files, edit, ask]}}
  review: {{model: other, system_prompt: null, tools: [todo, files]}}
""")
    return ["--config", str(config)]
