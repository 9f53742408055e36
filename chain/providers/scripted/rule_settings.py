"""Reads definitions of models of the provider ``scripted``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain.config import values
from chain.config.provider import Definition, ModelSettings, Provider
from chain.errors import UnreadableFile

if TYPE_CHECKING:
    from chain.model import Model


def read_scripted(definition: Definition) -> ModelSettings:
    """Read the settings of a model definition. Raise ``ConfigError`` if a setting is not valid."""
    node = definition.keys["script"]
    script = values.path(node)
    if script is None:
        raise node.error("is blank")

    def open_model(interactive: bool) -> Model:
        from chain.providers.scripted.scripted_model import ScriptedModel

        try:
            within, window = definition.within("script"), definition.context_window
            return ScriptedModel.load(script, within, at_terminal=interactive, context_window=window)
        except UnreadableFile as error:
            raise node.error(f"{error.file} {error.message}") from None

    return ModelSettings(
        definition.name,
        label=f"rules in {script.name}",
        retries=definition.retries,
        values={"provider": "scripted", "script": script, "context_window": definition.context_window or None},
        open=open_model,
        files={"script": script},
    )


PROVIDER = Provider(read_scripted, ("script",), needed="script", paths=("script",))
