"""The home of one session: its folders, its programs one after the other, and the disk under its journals."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

from . import checks, json_side, program, tty_side
from .checks import Program, Record
from .layer import Counts
from .point import Kill
from .scenarios import CONFIG, AtTerminal, Scenario
from .seen import Seen

IN_MEMORY = Path("/dev/shm")
"""Files here need no disk: what a sync is worth is decided by the layer."""


class Home:
    """A context manager; leaving it removes everything."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._runs = 0
        self._is_named = False
        self._asked: list[tuple[bytes, bool]] = []
        self._synced: dict[int, int] = {}
        """The bytes of each journal that are sure, by its inode."""

    def __enter__(self) -> Home:
        self._folder = Path(tempfile.mkdtemp(prefix="chain-crash-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
        for name in ("work", "tmp"):
            (self._folder / name).mkdir()
        (self._folder / "work/one.txt").write_text("a note\n")
        (self._folder / "test.yaml").write_text(CONFIG)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, scenario: Scenario, kill: Kill | None) -> tuple[Seen, list[str]]:
        """Run a program to its end; returns what was seen of it, and the processes that it left behind."""
        self._runs += 1
        begin = partial(self._begin, scenario, kill)
        if isinstance(scenario, AtTerminal):
            seen = tty_side.talk(begin, kill, scenario.steps)
        else:
            seen = json_side.talk(begin, kill, scenario.rows, scenario.cues, scenario.results)
            seen.errors = self._file("errors").read_text(errors="replace")
        self.counts = Counts.read(self._file("counts"))
        requests = self._file("requests")
        lost_power = seen.is_killed and kill is not None and kill.power != "on"
        self._asked.append((requests.read_bytes() if requests.exists() else b"", lost_power))
        self._is_named |= self.counts.is_named
        self._synced.update(self.counts.synced)
        left = program.nothing_left()
        if lost_power and kill is not None:
            self._cut_power(kill)
        return seen, left

    @property
    def journals(self) -> list[Path]:
        """The sessions, the latest last."""
        return sorted((self._folder / "state/chain/sessions").glob("*.jsonl"), key=lambda p: p.stat().st_mtime_ns)

    @property
    def latest(self) -> Path | None:
        """The latest session that has a record; else the latest, if there is any."""
        found = self.journals
        return next((path for path in reversed(found) if checks.rows(path.read_bytes())), found[-1] if found else None)

    @property
    def records(self) -> Sequence[Record]:
        """The records of that."""
        return [] if self.latest is None else checks.rows(self.latest.read_bytes())

    def asked(self) -> list[Program]:
        """What the programs asked of the model. A last request that is torn was never sent."""
        return [Program([json.loads(body) for body in each.split(b"\n")[:-1]], cut) for each, cut in self._asked]

    def made(self, names: Sequence[str]) -> list[str]:
        """Which of these files are there."""
        return [name for name in names if (self._folder / "work" / name).exists()]

    def _begin(self, scenario: Scenario, kill: Kill | None, stdin: int, stdout: int) -> int:
        has_terminal = isinstance(scenario, AtTerminal)
        argv = ["--config", str(self._folder / "test.yaml"), *scenario.args]
        if not has_terminal:
            argv += ["--output-format", "stream-json"]
        errors = os.open(self._file("errors"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            how = program.Start(
                argv,
                self._environ(),
                self._folder / "work",
                stdin,
                stdout,
                stdout if has_terminal else errors,
                self._file("counts"),
                self._file("requests"),
                kill,
                has_terminal,
            )
            return program.start(how)
        finally:
            os.close(errors)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}-{self._runs}"

    def _environ(self) -> dict[str, str]:
        home = str(self._folder)
        return {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "XDG_STATE_HOME": f"{home}/state",
            "XDG_CONFIG_HOME": f"{home}/config",
            "TMPDIR": f"{home}/tmp",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "CHAIN_TRACE": "0",
        }

    def _cut_power(self, kill: Kill) -> None:
        """Take from each journal what a power cut may take; what is left is on the disk."""
        for path in self.journals:
            if not self._is_named and not kill.left:
                path.unlink()
                continue
            found = path.stat()
            sure = min(self._synced.get(found.st_ino, 0), found.st_size)
            kept = sure + round(kill.left * (found.st_size - sure))
            os.truncate(path, kept)
            if kill.power == "zeros":
                os.truncate(path, found.st_size)
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
            self._synced[found.st_ino] = found.st_size
