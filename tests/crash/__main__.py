"""Kill the real program at many points, resume it, and print what was lost: ``python -m crash``.

This process imports the program once; each program that it plays is a fork of it. Exit with 1 if a point failed, or if
the kills or the acknowledgements were too few to mean anything.
"""

from __future__ import annotations

import argparse
import sys

from . import layer

layer.install()  # before anything of the program is imported

from . import program  # noqa: E402
from .load import load  # noqa: E402
from .play import Outcome, measure, play  # noqa: E402
from .point import Point, choose  # noqa: E402
from .scenarios import RULES, SCENARIOS, AtTerminal, Scenario  # noqa: E402

SHOWN = 20
"""Points that failed, at most: one is enough to begin with."""

KILLED = 0.9
"""Of the points at least: a program may end before its point comes."""


def main() -> int:
    """Play the points and print what became of them."""
    parser = argparse.ArgumentParser(prog="python -m crash", description=__doc__)
    parser.add_argument("--points", type=int, default=300, help="number of points over all scenarios")
    parser.add_argument("--seed", type=int, default=1, help="another seed chooses other points")
    parser.add_argument("--scenario", action="append", help="play only this one; may be repeated")
    parser.add_argument("--point", help="play only this one, as it was printed")
    args = parser.parse_args()
    program.become_parent()
    load(RULES)
    if args.point:
        outcomes = [play(Point.from_json(args.point))]
    else:
        outcomes = []
        for scenario in SCENARIOS:
            if scenario.name in (args.scenario or [scenario.name]):
                outcomes += played(scenario, share(scenario, args.points), args.seed)
    failed = [outcome for outcome in outcomes if outcome.complaints]
    for outcome in failed[:SHOWN]:
        write(described(outcome))
    points = [outcome for outcome in outcomes if outcome.point]
    kills, acknowledged = sum(each.kills for each in points), sum(each.acknowledged for each in points)
    write(
        f"{len(points):,} points, {kills:,} programs killed, {sum(each.resumed for each in points):,} resumed, "
        f"{acknowledged:,} lines and answers acknowledged: {len(failed):,} points failed"
    )
    return 1 if failed or not acknowledged or kills < int(KILLED * len(points)) else 0


def share(scenario: Scenario, points: int) -> int:
    """Return how many of the points over all scenarios are this one's."""
    return max(1, points * scenario.weight // sum(each.weight for each in SCENARIOS))


def played(scenario: Scenario, count: int, seed: int) -> list[Outcome]:
    """Play points of a scenario, and the scenario once without a kill."""
    unkilled, reach = measure(scenario)
    is_at_terminal = isinstance(scenario, AtTerminal)
    points = choose(scenario.name, reach, count, seed, is_at_terminal=is_at_terminal)
    return [unkilled, *map(play, points)]


def described(outcome: Outcome) -> str:
    """Return what is wrong with a point, and how to play it again."""
    again = f"PYTHONPATH=tests python -m crash --point '{outcome.point}'" if outcome.point else "(nobody was killed)"
    return "\n".join([outcome.scenario, *(f"  {each}" for each in outcome.complaints), f"  again: {again}"])


def write(row: str) -> None:
    sys.stdout.write(f"{row}\n")


if __name__ == "__main__":
    sys.exit(main())
