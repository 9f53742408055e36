"""Play a point: start its program, kill it, and resume its session until a program ends by itself."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType

from . import checks, program
from .checks import Record, SentRequests
from .layer import Counts
from .point import Kill, Point
from .scenarios import BY_NAME, CONFIG, Scenario, resumed
from .talk import Seen, talk

WRONG_USAGE = 2

_SHOWN = 2_000
"""The maximum number of characters of a program's errors in a complaint."""


@dataclass(slots=True)
class Outcome:
    """The result of a point: numbers of killed and resumed programs and of acknowledgements, and violations."""

    point: str
    scenario: str
    kills: int = 0
    resumed: int = 0
    acknowledged: int = 0
    complaints: list[str] = field(default_factory=list)


def measure(scenario: Scenario) -> tuple[Outcome, Counts]:
    """Play a scenario without a kill. Return the outcome and the counts of calls."""
    outcome = Outcome("", scenario.name)
    with Home(outcome) as home:
        seen = home.run(scenario, None)
        home.check([seen])
        return outcome, home.counts


def play(point: Point) -> Outcome:
    """Play a point and check the result."""
    scenario, outcome = BY_NAME[point.scenario], Outcome(point.to_json(), point.scenario)
    with Home(outcome) as home:
        seen = home.run(scenario, point.kill)
        if seen.is_killed:
            written = [name for name in scenario.made if (home.folder / "work" / name).exists()]
            outcome.complaints += checks.check_effects(written, home.records)
        seen_of_all = [seen]
        for n, kill in enumerate((*point.again, None), 1):
            has_session = bool(home.records)
            seen = home.run(resumed(f"recap {n} of it all", point.way, home.id), kill, may_fail=not has_session)
            seen_of_all.append(seen)
            if not seen.is_killed and not home.records:
                break  # nothing can be resumed; ``check`` complains if that is a loss
        home.check(seen_of_all)
    return outcome


class Home:
    """The folders of one session, its programs one after the other, and the disk of its journal.

    This is a context manager. Leaving it removes all files.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.counts = Counts()
        self._outcome = outcome
        self._runs = 0
        self._is_named = False
        self._sent: list[SentRequests] = []
        self._synced = 0

    def __enter__(self) -> Home:
        memory = Path("/dev/shm")  # no disk is needed, since the layer decides which bytes are synced
        self.folder = Path(tempfile.mkdtemp(prefix="chain-crash-", dir=memory if memory.is_dir() else None))
        for name in ("work", "tmp"):
            (self.folder / name).mkdir()
        (self.folder / "work/one.txt").write_text("a note\n")
        (self.folder / "test.yaml").write_text(CONFIG)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _journal(self) -> Path | None:
        return next((self.folder / "state/chain/sessions").glob("*.jsonl"), None)

    @property
    def id(self) -> str | None:
        return None if self._journal is None else self._journal.stem

    @property
    def records(self) -> Sequence[Record]:
        return [] if self._journal is None else checks.read_records(self._journal.read_bytes())

    def run(self, scenario: Scenario, kill: Kill | None, *, may_fail: bool = False) -> Seen:
        """Run a program to its end and check how it ended. ``may_fail``: there may be no session to resume."""
        self._runs += 1
        seen = talk(partial(self._start, scenario, kill), scenario)
        self._outcome.complaints += [f"left behind: {each}" for each in program.remaining_processes()]
        self.counts = Counts.read(self._file("counts"))
        self._is_named |= self.counts.is_named
        self._synced = max(self._synced, self.counts.synced)
        lost_power = seen.is_killed and kill is not None and kill.power != "on"
        requests = self._file("requests").read_bytes() if self._file("requests").exists() else b""
        # A torn request at the end was never sent.
        self._sent.append(SentRequests([json.loads(body) for body in requests.split(b"\n")[:-1]], lost_power))
        if seen.is_killed:
            self._outcome.kills += 1
            if lost_power and kill is not None:
                self._cut_power(kill)
        elif not (may_fail and seen.code == WRONG_USAGE):
            errors = self._file("errors").read_text(errors="replace")
            if seen.code not in scenario.codes or "Traceback (most recent call last)" in errors:
                why = "it hangs" if seen.code is None else f"it ends with {seen.code}"
                self._outcome.complaints.append(f"{scenario.name}: {why}: {errors.strip()[-_SHOWN:]}")
            elif scenario.name not in BY_NAME:
                self._outcome.resumed += 1
        return seen

    def check(self, seen: Sequence[Seen]) -> None:
        """Check the journal and the requests of these programs."""
        texts = [text for each in seen for text in each.acknowledged]
        answers = {id: decision for each in seen for id, decision in each.answers.items()}
        outcome, journal = self._outcome, self.records
        outcome.acknowledged = len(set(texts)) + len(answers)
        outcome.complaints += checks.check_acknowledged(texts, answers, journal)
        outcome.complaints += checks.check_requests(self._sent)
        outcome.complaints += checks.check_continuity(self._sent, journal)
        for check in (checks.check_records, checks.check_endings):
            outcome.complaints += check(journal)

    def _start(self, scenario: Scenario, kill: Kill | None, stdin: int, stdout: int) -> int:
        argv = ["--config", str(self.folder / "test.yaml"), *scenario.args, "--output-format", "stream-json"]
        home = str(self.folder)
        environ = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": f"{home}/tmp", "LANG": "C.UTF-8"}
        environ |= {"XDG_STATE_HOME": f"{home}/state", "XDG_CONFIG_HOME": f"{home}/config", "CHAIN_TRACE": "0"}
        files = program.Files(*(self._file(name) for name in ("errors", "counts", "requests")))
        return program.start(argv, environ, self.folder / "work", stdin, stdout, files, kill)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}-{self._runs}"

    def _cut_power(self, kill: Kill) -> None:
        """Truncate the journal as a power cut may do. The remaining bytes are then on disk."""
        if (path := self._journal) is None:
            return
        if not self._is_named and not kill.left:
            path.unlink()
            return
        size = path.stat().st_size
        synced = min(self._synced, size)
        os.truncate(path, synced + round(kill.left * (size - synced)))
        if kill.power == "zeros":
            os.truncate(path, size)
        self._synced = path.stat().st_size
