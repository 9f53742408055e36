"""Kill the real program at many points, resume it, and print what was lost: ``python -m crash``.

Exit with 1 if a point failed, or if there were too few kills or acknowledgements to mean anything.
"""

from __future__ import annotations

import argparse
import sys

from . import layer

layer.install()  # before any module of the program is imported

from . import program  # noqa: E402
from .play import Outcome, measure, play  # noqa: E402
from .point import Point, choose  # noqa: E402
from .scenarios import SCENARIOS, Scenario  # noqa: E402

SHOWN = 20
"""The maximum number of failed points that are printed."""

MIN_KILLED = 0.9
"""The least part of points at which a program must be killed. A program may end before its point."""


def main() -> int:
    """Play the points and print the outcome. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m crash", description=__doc__)
    parser.add_argument("--points", type=int, default=300, help="number of points over all scenarios")
    parser.add_argument("--seed", type=int, default=1, help="another seed chooses other points")
    parser.add_argument("--scenario", action="append", help="play only this scenario; may be repeated")
    parser.add_argument("--point", help="play only this point, as it was printed")
    args = parser.parse_args()
    program.prepare()
    if args.point:
        outcomes = [play(Point.from_json(args.point))]
    else:
        weights = sum(each.weight for each in SCENARIOS)
        chosen = [each for each in SCENARIOS if each.name in (args.scenario or [each.name])]
        outcomes = [
            outcome
            for each in chosen
            for outcome in play_scenario(each, max(1, args.points * each.weight // weights), args.seed)
        ]
    failed = [outcome for outcome in outcomes if outcome.complaints]
    for outcome in failed[:SHOWN]:
        again = f"PYTHONPATH=tests python -m crash --point '{outcome.point}'" if outcome.point else "(without a kill)"
        write("\n".join([outcome.scenario, *(f"  {each}" for each in outcome.complaints), f"  again: {again}"]))
    points = [outcome for outcome in outcomes if outcome.point]
    kills, acknowledged = sum(each.kills for each in points), sum(each.acknowledged for each in points)
    write(
        f"{len(points):,} points, {kills:,} programs killed, {sum(each.resumed for each in points):,} resumed, "
        f"{acknowledged:,} lines and answers acknowledged: {len(failed):,} points failed"
    )
    return 1 if failed or not acknowledged or kills < int(MIN_KILLED * len(points)) else 0


def play_scenario(scenario: Scenario, count: int, seed: int) -> list[Outcome]:
    """Play a scenario once without a kill, then with a kill at each of its points."""
    unkilled, counts = measure(scenario)
    points = choose(scenario.name, {"write": counts.writes, "sync": counts.syncs}, count, seed)
    return [unkilled, *map(play, points)]


def write(row: str) -> None:
    sys.stdout.write(f"{row}\n")


if __name__ == "__main__":
    sys.exit(main())
