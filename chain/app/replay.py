"""Replays recorded sessions: compares their requests with those of the current configuration and code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chain.agent.spec import AgentSpec
from chain.app.instructions import read_instructions
from chain.app.kinds import Kinds, main_agent
from chain.app.toolbox import tool_groups
from chain.config.load import Settings
from chain.errors import SessionError, UserError
from chain.journal import records
from chain.journal.reading import Reading
from chain.journal.records import Entry
from chain.model import Delta, Reply, Request
from chain.session.difference import describe_same
from chain.session.listing import SUFFIX, convert_read_errors
from chain.session.replay import Replay
from chain.session.store import Store
from chain.tools.registry import Registry
from chain.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: whether the session is unchanged, and rows that say so or show the first difference."""

    is_same: bool
    rows: tuple[str, ...]


def replay(settings: Settings, rows: Iterable[bytes], *, tools: Iterable[Tool] = ()) -> Replayed:
    """Compare the requests of a recorded session with the requests that these settings would make now.

    ``rows`` are the rows of the session's journal, and ``tools`` the program's own tools. No tool runs, no model is
    called, nothing is written. Raise ``UserError`` for a journal or a configuration that cannot be used.
    """
    reading, entries, whole = Reading(rows), list[Entry](), 0
    for entry in reading:
        entries.append(entry)
        whole = whole if reading.faults else len(entries)
    if not entries or not isinstance(entries[0].record, records.Session):
        raise SessionError("is not a journal of a session: its first record is not that of a session")
    current = _CurrentSetup(settings, tuple(tools))
    found = Replay(current, entries[:whole])
    difference = found.first_difference()
    is_whole = not reading.faults and not found.complaints
    said = (describe_same(entries, is_whole=is_whole),) if difference is None else difference.rows
    return Replayed(difference is None and is_whole, (*reading.complaints, *found.complaints, *said, *current.faults))


def read_recorded(store: Store, id: str) -> list[bytes]:
    """Return the rows of the session with this id, or of the journal at a path that ends in ``.jsonl``.

    Raise ``SessionError`` if it cannot be read.
    """
    path = Path(id)
    if id.endswith(SUFFIX):
        with convert_read_errors(path), path.open("rb") as file:
            return list(file)
    try:
        with store.rows(id) as rows:
            return list(rows)
    except SessionError:
        if os.path.isfile(id):
            raise SessionError(f"is not a journal of a session; journals end in {SUFFIX}", file=path) from None
        raise


class _CurrentSetup:
    """The agents, prompts and instructions that the current configuration gives.

    The constructor raises ``UserError`` if the configuration cannot be used.
    """

    def __init__(self, settings: Settings, tools: Sequence[Tool]) -> None:
        self._settings = settings
        groups = tool_groups(settings)
        self.main = main_agent(settings, tools, _NamedModel(settings.chain().model), groups)
        prompts = self.main.prompts
        mistake = None if prompts.path is None else prompts.current()[1]
        self.faults = [] if mistake is None else [f"{mistake.sentence}; the built-in handler prompt was used."]
        self._kinds = Kinds(settings, self.main, groups, tools, lambda definition: _NamedModel(definition.name))

    def make_spec(self, kind: str, name: str, parent: AgentSpec, call_id: str) -> AgentSpec | None:
        try:
            return self._kinds.make(kind, name, parent, call_id)
        except UserError:
            return None

    def use_server_tools(self, offered: records.ServerTools) -> Registry:
        # Imported late, since most sessions have no servers.
        from chain.tools.mcp.servers import ServerTool

        made = [ServerTool(tool, None) for tool in offered.tools]
        return self._kinds.use_server_tools(made, {tool.name: tool.server for tool in offered.tools})

    def instructions(self, workspace: Path) -> str | None:
        if not workspace.is_dir():
            return None
        return read_instructions(workspace.resolve(), self._settings.instructions, self._settings.config_folder).text


class _NamedModel:
    """A model that has a name but is never called."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        raise NotImplementedError

    async def prepare(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""
