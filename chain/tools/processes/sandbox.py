"""The sandbox of a command: the protections that the settings request and this machine supports.

The preview of the tool ``shell`` and ``chain check`` show which protections are missing. To add a protection, add it to
``fence``, ``probe``, ``_WITHOUT`` and ``Sandbox.fence``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from chain.text.escalations import DENIED_BY_SANDBOX, ESCALATION_KEYS, Escalation
from chain.text.wording import join_first
from chain.tools.paths import printable_path
from chain.tools.processes.environment import is_secret
from chain.tools.processes.fence import DEVICES, Fence
from chain.tools.processes.probe import Protections, probe
from chain.tools.processes.writable_paths import WritablePaths
from chain.tools.protected import Protected

_OURS = "CHAIN_"

_MAX_NAMED = 3
"""The maximum number of paths that one sentence names."""

_WITHOUT = {
    "writes": "a command can write wherever you can, and read the keys in this program's environment",
    "network": "a command can use the network",
    "unix_sockets": "a command can make your other programs act for it through their Unix sockets",
    "signals": "a command can send signals to your other processes, and set their limits and priorities",
    "devices": "a command can use your terminals and other devices, and so read what you type",
}
"""For each protection, what a command can do without it."""

_EXPOSED = "a command can change chain's own files, which are in a folder that it may write, and so do all that you can"
"""What a command can do if the user made a directory with chain's own files writable.

It replaces the text for ``writes`` if the machine supports that protection.
"""

_SIGNS = {
    "network": r"resolve host|name resolution|does not resolve|name or service not known|unknown ?host|bad hostname"
    r"|EAI_AGAIN|ENOTFOUND|network (?:is )?unreachable|(?:failed|unable|could ?n[o']t|can(?:no|')t) (?:to )?connect\b"
    r"|new connection|listen EACCES|socket.{0,300}?permission denied",
    "unix_sockets": r"dial unix|\.sock\b.{0,99}permission denied|authentication agent",
    "devices": r"/dev/\S+ permission denied|permission denied: \S/dev/|pseudo-?terminal|\bpty\b",
    "signals": r"\bkill\b.{0,99}operation not permitted|(?:set|change) (?:priority|affinity)",
    "writes": r"permission denied|\bEACCES\b|operation not permitted|\bEPERM\b",
}
"""For each protection, a pattern of the messages that programs print when the protection refuses a call.

Case is ignored. The first pattern that matches is used.
"""

_SEARCHED = 4_000
"""The number of characters at the end of an output that are searched for ``_SIGNS``."""


@dataclass(frozen=True, slots=True)
class ShellRules:
    """The settings of the tool ``shell``."""

    sandbox: Literal["auto", "strict", "off"] = "auto"
    network: bool = False
    env: frozenset[str] = frozenset()
    """Variables that commands get although they are secrets or look like secrets."""
    writable: tuple[Path, ...] = ()
    """Paths that a command may write besides the workspace and a temporary directory."""
    secrets: frozenset[str] = frozenset()
    """Variables from which the configuration reads keys."""
    protected: Protected = field(default_factory=Protected)

    @property
    def wanted_protections(self) -> frozenset[str]:
        """The names of the protections that the settings ask for."""
        if self.sandbox == "off":
            return frozenset()
        return frozenset(_WITHOUT) - {"network" if self.network else "unix_sockets"}

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return ``environ`` without chain's own variables, and without secrets that are not in ``env``."""
        others = {name: value for name, value in environ.items() if not name.upper().startswith(_OURS)}
        secrets = {name for name, value in others.items() if name in self.secrets or is_secret(name, value)}
        return {name: value for name, value in others.items() if name in self.env or name not in secrets}

    def probed_protections(self) -> Protections:
        """Return the protections that this machine supports; none if the sandbox is off. Blocks."""
        return Protections() if self.sandbox == "off" else probe()

    def writable_paths(self, machine: Protections, workspace: Path) -> WritablePaths | None:
        """Return the paths that a command may write; ``None`` if writes are not limited. Blocks.

        ``machine`` are the protections of the machine. Raise ``ToolError`` if a command may have redirected a path by a
        link.
        """
        if not machine.writes or "writes" not in self.wanted_protections:
            return None
        return WritablePaths(workspace, self.writable, self.protected.refused_places([workspace, *self.writable]))


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The sandbox of a command, from the settings, the protections of the machine, and the writable paths."""

    rules: ShellRules
    machine: Protections
    paths: WritablePaths | None = None

    @property
    def active_protections(self) -> tuple[str, ...]:
        """The names of the active protections. ``unix_sockets`` is among them only if the network is allowed."""
        machine = self.machine._replace(writes=False) if self._is_exposed else self.machine
        return tuple(name for name in _WITHOUT if name in self.rules.wanted_protections and getattr(machine, name))

    @property
    def gap_sentences(self) -> tuple[str, ...]:
        """For each missing protection, a sentence that says what a command can do without it."""
        active = {*self.active_protections, *(("unix_sockets",) if "network" in self.active_protections else ())}
        return tuple(sentence for name, sentence in self._sentences.items() if name not in active)

    def extra_writable_sentence(self, workspace: Path) -> str:
        """Return a sentence that names the additional writable paths of the settings; empty if there are none."""
        if "writes" not in self.active_protections or not self.rules.writable:
            return ""
        return f"A command may also write in {_name_paths([*map(str, self.rules.writable)], workspace.resolve())}"

    @property
    def missing_reason(self) -> str:
        """Why no command may run: ``strict`` needs a protection that is missing. Empty if commands may run."""
        lacking = self.rules.wanted_protections - set(self.active_protections)
        if self.rules.sandbox != "strict" or not lacking:
            return ""
        lacks = ", and ".join(f"{sentence} ({name})" for name, sentence in self._sentences.items() if name in lacking)
        return f"strict, but on this machine {lacks}; set it to auto to run with fewer protections"

    def closed_folders_sentence(self, workspace: Path) -> str:
        """Return a sentence about protected files inside writable directories; empty if there are none.

        It also names the directories in which a command therefore cannot create, move or delete files.
        """
        if self.paths is None or not self.paths.closed_folders:
            return ""
        both = (self.paths.protected or self.paths.closed_folders, self.paths.closed_folders)
        needed, folders = (_name_paths(each, workspace.resolve()) for each in both)
        return (
            f"A command cannot change {needed}, which chain uses outside the sandbox. So it cannot create, move or "
            f"delete files directly in {folders}; let it use another folder, or see chain help sandbox"
        )

    @property
    def escalations(self) -> tuple[Escalation, ...]:
        """The active restrictions that the user can lift for one command."""
        if not self.active_protections:
            return ()
        has_network = "network" in self.active_protections and not self.escalated("network").missing_reason
        return ("network", "outside") if has_network else ("outside",)

    def escalated(self, escalation: Escalation | None) -> Sandbox:
        """Return the sandbox without the restriction that the user lifted for one command; ``None`` lifts none."""
        match escalation:
            case None:
                return self
            case "network":
                return replace(self, rules=replace(self.rules, network=True))
            case "outside":
                return replace(self, rules=replace(self.rules, sandbox="off"))

    def refusal(self, command: str, output: str, *, can_approve: bool = False) -> str:
        """Return a row that names the protection that seems to have made a command fail; empty if there is none.

        With ``can_approve``, the user will be asked about the next such command, and the row names the answer that
        allows it.
        """
        # Some programs print nothing, such as curl -s.
        said = output[-_SEARCHED:].strip() or ("could not connect" if "://" in command else "")
        active = (name for name in _SIGNS if name in self.active_protections)
        name = next((each for each in active if re.search(_SIGNS[each], said, re.IGNORECASE | re.DOTALL)), "")
        key = ESCALATION_KEYS["network" if name in self.escalations else "outside"]
        hint = f"approve with {key}" if can_approve else "see chain help sandbox"
        return f"{DENIED_BY_SANDBOX}{name} denied; {hint}]" if name else ""

    @property
    def fence(self) -> Fence | None:
        """The fence of a command, without the writable paths (``paths``); ``None`` if the sandbox is off."""
        if self.rules.sandbox == "off":
            return None
        named = (str(each.absolute()) for each in self.rules.writable)
        devices = (*DEVICES, *(path for path in named if path.startswith("/dev/")))
        return Fence(
            network="network" in self.active_protections,
            unix_sockets="unix_sockets" in self.active_protections,
            signals="signals" in self.active_protections,
            # In a user namespace root's files belong to "nobody", and ssh does not accept such a configuration.
            namespace=self.machine.namespace and not self.rules.network,
            devices=devices if "devices" in self.active_protections else None,
        )

    @property
    def _is_exposed(self) -> bool:
        return self.paths is not None and self.paths.is_exposed

    @property
    def _sentences(self) -> Mapping[str, str]:
        return _WITHOUT | ({"writes": _EXPOSED} if self._is_exposed else {})


def _name_paths(paths: Sequence[str], root: Path) -> str:
    relative = (each.relative_to(root) if each.is_relative_to(root) else each for each in map(Path, paths))
    return join_first(["the workspace" if each == Path() else printable_path(each) for each in relative], _MAX_NAMED)
