"""Kills the real program at many points, resumes it, and prints what was lost as a table: ``python -m tests.crash``."""

from __future__ import annotations

import argparse
import sys
import time

from . import workers
from .plan import tasks
from .tally import Report, told

SHOWN = 20
"""Points that failed, at most: one is enough to begin with."""


def main() -> int:
    """Play the points; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--points", type=int, default=300, help="how many, over all scenarios")
    parser.add_argument("--seed", type=int, default=1, help="for other points")
    parser.add_argument("--jobs", type=int, default=2, help="how many at the same time")
    parser.add_argument("--scenario", action="append", help="only this one; may be repeated")
    parser.add_argument("--point", help="only this one, as it was printed")
    args = parser.parse_args()
    todo = [{"point": args.point}] if args.point else tasks(args.points, args.seed, args.scenario)
    report = Report()
    start = time.monotonic()
    workers.run(todo, args.jobs, report.add)
    for outcome in report.failed[:SHOWN]:
        write(told(outcome))
    for row in report.table():
        write(row)
    write(f"{time.monotonic() - start:.0f} s, {len(report.failed)} of {report.all.points:,} points failed")
    return 1 if report.failed else 0


def write(row: str) -> None:
    sys.stdout.write(f"{row}\n")


if __name__ == "__main__":
    sys.exit(main())
