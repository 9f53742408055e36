"""What an editor can set of a session, and the commands that it offers, in the protocol's form. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chain.config.load import Settings
from chain.errors import UserError
from cli.acp.shown_calls import as_title
from cli.terminal.slash import Commands

MODEL, CHAIN = "model", "chain"
"""The ids of the options."""


def config_options(settings: Settings, commands: Commands) -> Sequence[Mapping[str, Any]]:
    """The model, and the chain where there are several; the user looks for the model more often."""
    models = [(name, about) for name, _, about in commands.models]
    found = [_select(MODEL, "Model", "model", "Answers from the next prompt on", commands.model, models)]
    if len(settings.chain_names) > 1:
        chains = [(name, _about(settings, name)) for name in settings.chain_names]
        about = "Its prompt, tools and model, from the next prompt on"
        found.append(_select(CHAIN, "Chain", "mode", about, settings.default_chain, chains))
    return found


def available_commands(commands: Commands) -> Sequence[Mapping[str, Any]]:
    """The commands that need no terminal."""
    return [
        {
            "name": name.removeprefix("/"),
            "description": as_title(about),
            **({"input": {"hint": as_title(argument)}} if argument else {}),
        }
        for name, argument, about in commands.anywhere
    ]


def _about(settings: Settings, chain: str) -> str:
    try:
        chosen = settings.chain(chain)
    except UserError as error:
        return str(error)
    return f"{chosen.model}; {', '.join(chosen.tools) or 'no tools'}"


def _select(
    id: str, name: str, category: str, description: str, current: str, values: Iterable[tuple[str, str]]
) -> Mapping[str, Any]:
    options = [{"value": value, "name": value, "description": as_title(about)} for value, about in values]
    return {
        "id": id,
        "name": name,
        "description": description,
        "category": category,
        "type": "select",
        "currentValue": current,
        "options": options,
    }
