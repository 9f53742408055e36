"""The shipped rules of the offline model, without its pauses."""

from __future__ import annotations

from chain.config import yamlfile
from chain.providers.scripted import reader
from chain.providers.scripted.rules import RuleFile

from .house import ROOT

PROMPTS = ROOT / "prompts"


def offline_rules() -> RuleFile:
    """Return the rules without their delays."""
    text = (PROMPTS / "offline_model.yaml").read_text(encoding="utf-8")
    return reader.read_rules(yamlfile.parse(text.replace("delay_s: 0.01", "delay_s: 0"), "offline_model.yaml"))
