"""What fences a command in: the settings, as far as this machine can hold to them, and what that leaves open.

It is shown before a command is allowed: in the preview of the tool ``shell``, and by ``chain check``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from chain.text.escalations import DENIED_BY_SANDBOX, ESCALATION_KEYS, Escalation
from chain.text.wording import first_of
from chain.tools.paths import as_text
from chain.tools.processes.environment import is_secret
from chain.tools.processes.fence import DEVICES, Fence
from chain.tools.processes.places import Places
from chain.tools.processes.probe import Protections, probe
from chain.tools.protected import Protected

_OURS = "CHAIN_"

_MAX_NAMED = 3
"""Protected places that a question names."""

_WITHOUT = {
    "writes": "a command can write wherever you can, and read the keys in this program's environment",
    "network": "a command can use the network",
    "unix_sockets": "a command can have your other programs act for it, by their Unix sockets",
    "signals": "a command can send signals to your other processes, and set their limits and priorities",
    "devices": "a command can use your terminals and other devices, and so read what you type",
}
"""What each protection is for, by what holds without it."""

_EXPOSED = "a command can change this program, which is in a folder that it may write, and so do all that you can"
"""What holds without ``writes`` on a machine that could refuse them."""

_SIGNS = {
    "network": r"resolve host|name resolution|does not resolve|name or service not known|unknown ?host|bad hostname"
    r"|EAI_AGAIN|ENOTFOUND|network (?:is )?unreachable|(?:failed|unable|could ?n[o']t|can(?:no|')t) (?:to )?connect\b"
    r"|new connection|listen EACCES|socket.{0,300}?permission denied",
    "unix_sockets": r"dial unix|\.sock\b.{0,99}permission denied|authentication agent",
    "devices": r"/dev/\S+ permission denied|permission denied: \S/dev/|pseudo-?terminal|\bpty\b",
    "signals": r"\bkill\b.{0,99}operation not permitted|(?:set|change) (?:priority|affinity)",
    "writes": r"permission denied|\bEACCES\b|operation not permitted|\bEPERM\b",
}
"""What programs write, in any case, where a protection refuses them something; the first that fits counts."""

_SEARCHED = 4_000
"""Characters at the end of an output that are searched for these."""


@dataclass(frozen=True, slots=True)
class ShellRules:
    """The settings of the tool. ``secrets`` are the variables that the configuration uses as keys.

    ``env`` are variables that commands get although they are secrets, or look like secrets. ``writable`` are folders
    and files, besides the workspace and a temporary folder, that a fenced command may write, but for what is
    ``protected``.
    """

    sandbox: Literal["auto", "strict", "off"] = "auto"
    network: bool = False
    env: frozenset[str] = frozenset()
    writable: tuple[Path, ...] = ()
    secrets: frozenset[str] = frozenset()
    protected: Protected = field(default_factory=Protected)

    @property
    def wanted(self) -> frozenset[str]:
        """The short names of the protections that are asked for."""
        if self.sandbox == "off":
            return frozenset()
        return frozenset(_WITHOUT) - {"network" if self.network else "unix_sockets"}

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables that a command gets: none of the chain's own, and no secrets but those that are named."""
        others = {name: value for name, value in environ.items() if not name.upper().startswith(_OURS)}
        secrets = {name for name, value in others.items() if name in self.secrets or is_secret(name, value)}
        return {name: value for name, value in others.items() if name in self.env or name not in secrets}

    def probed(self) -> Protections:
        """What this machine can refuse, if it is to refuse anything. It blocks."""
        return Protections() if self.sandbox == "off" else probe()

    def places(self, found: Protections, workspace: Path) -> Places | None:
        """What a command may write; ``None``: whatever the user may. It blocks. Raises ``ToolError``."""
        if not found.writes or "writes" not in self.wanted:
            return None
        return Places(workspace, self.writable, self.protected.refused([workspace, *self.writable]))


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What fences a command in: by the rules, by what the machine can refuse, and by what may be written."""

    rules: ShellRules
    found: Protections
    places: Places | None = None

    @property
    def held(self) -> tuple[str, ...]:
        """The short names of what holds. Where the network is allowed ``unix_sockets`` stands in its place."""
        found = self.found._replace(writes=False) if self._is_exposed else self.found
        return tuple(name for name in _WITHOUT if name in self.rules.wanted and getattr(found, name))

    @property
    def gaps(self) -> tuple[str, ...]:
        """What a command can do, in words: a sentence for each protection that does not hold."""
        held = {*self.held, *(("unix_sockets",) if "network" in self.held else ())}
        return tuple(sentence for name, sentence in self._sentences.items() if name not in held)

    def also_written(self, workspace: Path) -> str:
        """Where else a command may write, by the settings, in a sentence; empty if nowhere, or if all is open."""
        if "writes" not in self.held or not self.rules.writable:
            return ""
        return f"A command may also write in {_named([*map(str, self.rules.writable)], workspace.resolve())}"

    @property
    def missing(self) -> str:
        """What ``tools.shell.sandbox`` is and why no command is run then; empty if commands are."""
        lacking = self.rules.wanted - set(self.held)
        if self.rules.sandbox != "strict" or not lacking:
            return ""
        lacks = ", and ".join(f"{sentence} ({name})" for name, sentence in self._sentences.items() if name in lacking)
        return f"strict, but on this machine {lacks}; set it to auto to use what there is"

    def closed(self, workspace: Path) -> str:
        """What a command cannot change although it may write around it, in a sentence; empty if there is nothing."""
        if self.places is None or not self.places.closed:
            return ""
        both = (self.places.kept or self.places.closed, self.places.closed)
        needed, folders = (_named(each, workspace.resolve()) for each in both)
        return (
            f"A command cannot change {needed}, which chain uses outside the sandbox. So it cannot create, move or "
            f"delete files directly in {folders}; let it use another folder, or see chain help tools"
        )

    @property
    def escalations(self) -> tuple[Escalation, ...]:
        """Return the restrictions that the user can lift for one command: those that hold here."""
        if not self.held:
            return ()
        has_network = "network" in self.held and not self.escalated("network").missing
        return ("network", "outside") if has_network else ("outside",)

    def escalated(self, escalation: Escalation | None) -> Sandbox:
        """Return the sandbox of a command for which the user lifted a restriction."""
        match escalation:
            case None:
                return self
            case "network":
                return replace(self, rules=replace(self.rules, network=True))
            case "outside":
                return replace(self, rules=replace(self.rules, sandbox="off"))

    def refusal(self, command: str, output: str, *, can_approve: bool = False) -> str:
        """Which protection seems to have made a command fail that may have failed; empty if none.

        ``can_approve``: the user is asked about the next command like it, so the answer that lifts this is named.
        """
        # Programs can be told to say nothing, as curl -s is.
        said = output[-_SEARCHED:].strip() or ("could not connect" if "://" in command else "")
        held = (name for name in _SIGNS if name in self.held)
        name = next((each for each in held if re.search(_SIGNS[each], said, re.IGNORECASE | re.DOTALL)), "")
        key = ESCALATION_KEYS["network" if name in self.escalations else "outside"]
        hint = f"approve with {key}" if can_approve else "see chain help tools"
        return f"{DENIED_BY_SANDBOX}{name} denied; {hint}]" if name else ""

    @property
    def fence(self) -> Fence | None:
        """All that is wanted and can be had, but for what may be written; ``None`` where nothing is wanted."""
        if self.rules.sandbox == "off":
            return None
        named = (str(each.absolute()) for each in self.rules.writable)
        devices = (*DEVICES, *(path for path in named if path.startswith("/dev/")))
        return Fence(
            network="network" in self.held,
            unix_sockets="unix_sockets" in self.held,
            signals="signals" in self.held,
            # A user namespace shows root's files as nobody's, and ssh does not trust such a configuration.
            namespace=self.found.namespace and not self.rules.network,
            devices=devices if "devices" in self.held else None,
        )

    @property
    def _is_exposed(self) -> bool:
        return self.places is not None and self.places.is_exposed

    @property
    def _sentences(self) -> Mapping[str, str]:
        return _WITHOUT | ({"writes": _EXPOSED} if self._is_exposed else {})


def _named(paths: Sequence[str], root: Path) -> str:
    places = map(Path, paths)
    names = [as_text(each.relative_to(root) if each.is_relative_to(root) else each) for each in places]
    return first_of(["the workspace" if each == "." else each for each in names], _MAX_NAMED)
