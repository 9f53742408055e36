"""One point, from the start of the program to the end of the run that its session was last resumed for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from . import checks
from .checks import Record
from .home import Home
from .point import Kill, Point, Reach
from .scenarios import BY_NAME, Scenario, resumed
from .seen import Seen

WRONG_USAGE = 2

_TRACEBACK = "Traceback (most recent call last)"
_SHOWN = 2_000
"""Characters of what a program showed that a complaint repeats, from its end."""


@dataclass(slots=True)
class Outcome:
    """What became of a point. The lists are complaints, by what they are about; all are empty if all is well.

    ``kills`` and ``resumed`` count programs.
    """

    point: str
    scenario: str
    kills: int = 0
    resumed: int = 0
    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    unopened: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def complaints(self) -> list[str]:
        """Return all of them, each with what it is about."""
        kinds = ("lost", "invalid", "unopened", "left", "wrong")
        return [f"{kind}: {text}" for kind in kinds for text in getattr(self, kind)]


_OF_A_SESSION = (checks.repeated, checks.unallowed, checks.unended, checks.unfinished, checks.withheld)


def measure(scenario: Scenario) -> tuple[Outcome, Reach]:
    """Play a scenario that nobody kills; return what became of it, and how many calls it has."""
    outcome = Outcome("", scenario.name)
    with Home() as home:
        seen = _run(home, scenario, None, outcome)
        _judge_records(home, [seen], outcome)
        return outcome, Reach(home.counts.writes, home.counts.syncs, seen.pieces)


def play(point: Point) -> Outcome:
    """Play a point and judge it."""
    scenario = BY_NAME[point.scenario]
    outcome = Outcome(point.to_json(), point.scenario)
    with Home() as home:
        known = [_run(home, scenario, point.kill, outcome)]
        if known[0].is_killed:
            outcome.wrong += checks.unanswered_effects(home.made(scenario.made), home.records)
        cut_short = [home.records]
        for n, again in enumerate((*point.again, None), 1):
            before, id = home.records, home.latest.stem if home.latest else None
            how = resumed(f"recap {n} of it all", point.way, id, scenario)
            known.append(_run(home, how, again, outcome, may_fail=not before))
            if not known[-1].is_killed and not home.records:
                break  # there is nothing to resume; if that is a loss, it is told below
            # What a power cut has taken, nobody is told of.
            cut_short = [*(each for each in cut_short if home.records[: len(each)] == each), home.records]
        _judge_records(home, known, outcome)
        for each in cut_short:
            outcome.wrong += checks.misjudged(each, home.records)
    return outcome


def _run(home: Home, scenario: Scenario, kill: Kill | None, outcome: Outcome, *, may_fail: bool = False) -> Seen:
    """Run a program, and judge how it ended if nobody killed it; ``may_fail``: there is nothing to open."""
    seen, left = home.run(scenario, kill)
    outcome.left += left
    if seen.is_killed:
        outcome.kills += 1
    elif not (may_fail and seen.code == WRONG_USAGE):
        is_good = _judge_end(scenario, seen, outcome)
        outcome.resumed += is_good and scenario.name not in BY_NAME
    return seen


def _judge_end(scenario: Scenario, seen: Seen, outcome: Outcome) -> bool:
    """Whether a program that nobody killed came to its end as it should."""
    shown = f"{seen.shown}\n{seen.errors}"
    why = ""
    if seen.code is None:
        why = "it hangs"
    elif _TRACEBACK in shown:
        why = f"it ends with {seen.code} and a traceback"
    elif seen.code not in scenario.codes:
        why = f"it ends with {seen.code}"
    elif seen.is_stuck:
        why = "it does not show what it should"
    if why:
        outcome.unopened.append(f"{scenario.name}: {why}: {shown.strip()[-_SHOWN:]}")
    return not why


def _judge_records(home: Home, known: Sequence[Seen], outcome: Outcome) -> None:
    every = [checks.rows(path.read_bytes()) for path in home.journals]
    together: list[Record] = [record for journal in every for record in journal]
    texts = [text for seen in known for text in seen.acknowledged]
    answers = {id: decision for seen in known for id, decision in seen.answers.items()}
    outcome.acknowledged = len(set(texts)) + len(answers)
    outcome.lost += checks.lost(texts, answers, together)
    asked = home.asked()
    outcome.invalid += checks.invalid(asked, home.records)
    outcome.invalid += checks.changed(asked, together)
    outcome.invalid += checks.forgotten(asked, home.records)
    for journal in every:
        outcome.wrong += checks.unreadable(journal)
        outcome.wrong += checks.unsettled(journal, may_wait=journal != home.records)
    # What a session before it left open is written when that is resumed.
    for check in _OF_A_SESSION:
        outcome.wrong += check(home.records)
