"""Lists custom commands, and submits the text of a command as a line or as the query of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from chain.config.commands import WORKSPACE_FOLDER, CustomCommand, FoundCommands
from chain.errors import UserError
from cli.show.table import table
from cli.show.text_rows import flat

if TYPE_CHECKING:
    from chain import Chain, Model, Settings
    from chain.events import Origin

UNTRUSTED = "{} came with this folder, and you have not trusted its present content; start chain again to review it."
FindCustom: TypeAlias = Callable[[Collection[str]], FoundCommands]
"""A function that reads the custom commands. Its argument is the reserved names of the built-in commands."""

NO_DESCRIPTION, NO_DESCRIPTION_HERE = "a custom command", "a command of this folder"


class CustomCommands:
    """The custom commands of one session. The function ``find`` reads the files of all commands."""

    def __init__(self, chain: Chain, settings: Settings, find: Callable[[], FoundCommands], origin: Origin) -> None:
        self._chain = chain
        self._settings = settings
        self._find = find
        self._origin = origin
        self._models: dict[str, Model] = {}
        """The models that commands name, by the names of their definitions. The chain closes these models."""
        self.attach: Callable[[str], tuple[str, Sequence[tuple[str, bytes]]]] = lambda text: (text, ())
        """A function that adds the attachments of a text, such as ``Attachments.expand``; by default it adds none."""
        self.found = find()

    def refresh(self) -> None:
        """Read the files of the commands again."""
        self.found = self._find()

    def entries(self) -> Iterator[tuple[str, str, str]]:
        """Yield the name of each command with its slash, the syntax of its argument, and its description."""
        for command in self.found.commands:
            is_own = not command.file.is_relative_to(self._chain.workspace / WORKSPACE_FOLDER)
            about = flat(command.description) or (NO_DESCRIPTION if is_own else NO_DESCRIPTION_HERE)
            yield f"/{command.name}", "[...]", about

    def help_rows(self, width: int) -> list[str]:
        """Return the rows of ``/help`` about custom commands; none if there are no commands."""
        rows = table([(name, about) for name, _, about in self.entries()], width)
        untrusted = [UNTRUSTED.format(f"/{command.name}") for command in self.found.untrusted_commands]
        return [*(["Your commands:"] if rows else []), *rows, *untrusted, *self.found.faults]

    def find(self, name: str) -> CustomCommand | None:
        """Return the command of this name, read again from its file; ``None`` if there is none.

        Raise ``UserError`` if the command's content is not trusted, or if its file cannot be used.
        """
        folded = name.removeprefix("/").casefold()
        self.refresh()
        if any(command.name == folded for command in self.found.untrusted_commands):
            raise UserError(UNTRUSTED.format(f"/{folded}"))
        command = next((command for command in self.found.commands if command.name == folded), None)
        if command is None and (fault := self.found.broken.get(folded)) is not None:
            raise UserError(fault)
        return command

    def submit(self, command: CustomCommand, arguments: str) -> tuple[bool, str]:
        """Submit the text of a command. Return whether the text was accepted, and a sentence to show, or "".

        Raise ``UserError`` if the text is empty or the command's model cannot be used.
        """
        # The leading space makes it text, never a command.
        text, images = self.attach(f" {command.expand(arguments)}")
        if not text.strip():
            raise UserError(f"/{command.name} needs an argument: its text is empty without one")
        if not command.model or self._chain.is_running:
            answer = self._chain.submit(text, local=False, origin=self._origin, images=images)
            is_line = command.model and answer.what == "queued"
            note = f"The active run keeps its model; {command.model} answers only runs of /{command.name}."
            return answer.what != "refused", note if is_line else ""
        definition = self._settings.model(command.model)
        if command.model not in self._models:
            # Imported late, since the first prompt does not need it.
            from chain.app.open import build_model

            self._models[command.model] = build_model(definition, interactive=True)
        answer = self._chain.submit_with_model(
            text, self._models[command.model], retries=definition.retries, origin=self._origin, images=images
        )
        return answer.what != "refused", f"{command.model} ({definition.label}) answers this run."
