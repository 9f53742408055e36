"""How the session of an editor is opened: with which configuration, in which folder, new or gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chain.app import open_chain, sessions
from chain.chain import Chain
from chain.config.load import Settings, require_trust
from chain.errors import ConfigError
from chain.threads import Threads
from chain.toolbox import tool_kinds
from cli.acp import kept
from cli.door.server import side_door

if TYPE_CHECKING:
    from chain import Tool

_THREADS = Threads("editors")
"""For what reads files: a slow disk holds up nobody but who asks."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A session that is about to be opened. ``kept`` is the one that goes on, ``None`` for a new one."""

    settings: Settings
    workspace: Path
    state: Path
    tools: Sequence[Tool]
    kept: sessions.Summary | None
    traces: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    def open_door(self, chain: Chain) -> AbstractAsyncContextManager[str]:
        """Open its side door, and say why it cannot be."""
        return side_door(chain, self.state, self.environ)

    def open(self) -> AbstractAsyncContextManager[Chain]:
        """Open its chain. Raises ``UserError``."""
        return open_chain(
            self.settings,
            workspace=self.workspace,
            state=self.state,
            tools=self.tools,
            resume="" if self.kept is None else self.kept.id,
            interactive=True,
            traces=self.traces,
        )

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kinds of the tools that its agents may have, by name."""
        return tool_kinds(self.settings, self.tools)


@dataclass(frozen=True, slots=True)
class Opener:
    """What the sessions of one process have in common. ``read_settings`` reads the configuration for a folder."""

    read_settings: Callable[[Path], Settings]
    state: Path
    tools: Sequence[Tool] = ()
    traces: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    async def new(self, workspace: Path) -> Opening:
        """A new session. Raises ``UserError`` for a configuration that cannot be used, or is not trusted."""
        return await _THREADS.run(partial(self._opening, workspace, None))

    async def old(self, workspace: Path, id: str) -> Opening:
        """One that is kept. Raises ``UserError`` as ``new`` does, and ``RpcError`` if it is not there."""
        return await _THREADS.run(partial(self._opening, workspace, id))

    async def list(self, workspace: Path | None, cursor: str) -> Mapping[str, Any]:
        """A page of those that are kept. Raises ``RpcError``."""
        return await _THREADS.run(partial(kept.page, self.state, workspace, cursor))

    def _opening(self, workspace: Path, id: str | None) -> Opening:
        found = None if id is None else kept.find(self.state, id, workspace)
        settings = self.read_settings(workspace)
        try:
            require_trust(settings)
        except ConfigError as error:
            hint = "; or start chain in that folder once and say there that you trust it"
            raise ConfigError(f"{error.message}{hint}", file=error.file, line=error.line) from None
        return Opening(settings, workspace, self.state, self.tools, found, self.traces, self.environ)
