"""The options of a session that an editor can set, and the slash commands that an editor can use.

An editor can use the commands that need no terminal (``Commands.portable``). When the options or commands change, the
editor receives the new list before the next event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from chain.chain import Chain
from chain.config.load import Settings
from chain.errors import JournalError, UserError
from cli.acp.rpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, RpcError
from cli.acp.shown_calls import as_title, in_fence
from cli.acp.updates import Update
from cli.input.address import is_command
from cli.show.answers import SERVER_PROMPT, models
from cli.terminal.custom import FindCustom
from cli.terminal.slash import Commands

MODEL, CHAIN = "model", "chain"
"""The ids of the two options."""


class EditorOffer:
    """The options and commands that one session offers to the editor. ``settings`` are the settings of its chain."""

    def __init__(self, chain: Chain, settings: Settings, find_custom: FindCustom) -> None:
        self.settings = settings
        self._chain = chain
        self._commands = Commands(chain, settings, origin="acp", find_custom=find_custom)
        self._sent_model = self._commands.model
        self._sent_commands: Sequence[tuple[str, str, str]] = ()

    @property
    def options(self) -> Sequence[Mapping[str, Any]]:
        """The options with their current and possible values: the model, and the chain if several are configured."""
        settings = self.settings
        known = [(name, about) for name, _, about in models(settings)]
        found = [_select_option(MODEL, "Model", "model", "Used from the next prompt on", self._commands.model, known)]
        if len(settings.chain_names) > 1:
            chains = [(name, _describe_chain(settings, name)) for name in settings.chain_names]
            about = "Its prompt, tools and model, from the next prompt on"
            found.append(_select_option(CHAIN, "Chain", "mode", about, settings.default_chain, chains))
        return found

    def set_model(self, name: str) -> None:
        """Use another model from the next run on. Raise ``RpcError`` if the model or the journal cannot be used."""
        try:
            self._commands.use(name)
        except UserError as error:
            raise RpcError(INVALID_PARAMS, str(error)) from None
        except JournalError as error:
            raise RpcError(INTERNAL_ERROR, str(error)) from None
        self._sent_model = self._commands.model  # the answer to the request contains it

    def has_command(self, text: str) -> bool:
        """Return whether a text starts with a command that the editor can use."""
        return is_command(text) and text.split()[0].casefold() in {name for name, _, _ in self._commands.portable}

    def request_prompt(self, text: str, on_prompt: Callable[[str], object], fail: Callable[[str], object]) -> bool:
        """Request the prompt that ``text`` names, from its MCP server. Return ``False`` if ``text`` names none.

        Later call ``on_prompt`` with the text of the prompt, or ``fail`` with the reason of a failure. Raise
        ``RpcError`` if the request cannot be sent.
        """
        name, *words = text.split() or [""]
        if name not in dict(self._commands.prompts):
            return False
        server, _, prompt = name.removeprefix(SERVER_PROMPT).partition(":")
        try:
            self._chain.start_prompt(server, prompt, words, then=on_prompt, failed=fail)
        except UserError as error:
            raise RpcError(INVALID_REQUEST, str(error)) from None
        return True

    def carry_out(self, command: str) -> str:
        """Run a slash command, and return its answer in a Markdown fence."""
        return in_fence(self._commands.run(command).text or "Done.")

    def changes(self) -> list[Update]:
        """Return the updates to send for options and commands that changed since the last call."""
        found: list[Update] = []
        if self._sent_model != self._commands.model:
            self._sent_model = self._commands.model
            found.append({"sessionUpdate": "config_option_update", "configOptions": self.options})
        prompts = [(name, "[...]", about) for name, about in self._commands.prompts]
        if (offered := [*self._commands.portable, *prompts]) != self._sent_commands:
            self._sent_commands = offered
            found.append(
                {
                    "sessionUpdate": "available_commands_update",
                    "availableCommands": [_command_entry(*each) for each in offered],
                }
            )
        return found


def _command_entry(name: str, argument: str, description: str) -> Mapping[str, Any]:
    hint = {"input": {"hint": as_title(argument)}} if argument else {}
    return {"name": name.removeprefix("/"), "description": as_title(description), **hint}


def _describe_chain(settings: Settings, chain: str) -> str:
    try:
        chosen = settings.chain(chain)
    except UserError as error:
        return str(error)
    return f"{chosen.model}; {', '.join(chosen.tools) or 'no tools'}"


def _select_option(
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
