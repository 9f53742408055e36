"""The points at which a program is killed, what a power cut leaves of its journal, and how the session is resumed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Call: TypeAlias = Literal["write", "sync"]
Where: TypeAlias = Literal["before", "middle", "after"]

Power: TypeAlias = Literal["on", "cut", "zeros"]
"""``on``: all written bytes stay. ``cut``: some bytes after the synced ones are lost. ``zeros``: they become zeros."""

Way: TypeAlias = Literal["lines", "query"]
"""How a session is resumed: by lines of JSON, or by ``-p QUERY``."""

KINDS: Sequence[tuple[Call, Where]] = (
    ("write", "after"),
    ("write", "middle"),
    ("sync", "before"),
    ("write", "before"),
    ("write", "middle"),
    ("sync", "after"),
)
"""The kinds of points. The points of a scenario have them in turn."""

RESUMED_WRITES = 9
"""The approximate number of writes of a resumed session until its query is answered."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill at the ``n``-th call of a kind, counted from 1.

    ``part``, from 0 to 1, is the written part of a record if the program is killed in the middle of a write. ``left``
    is the part of the unsynced bytes that survives a power cut.
    """

    call: Call
    n: int
    where: Where = "after"
    power: Power = "on"
    part: float = 0.5
    left: float = 0.0


@dataclass(frozen=True, slots=True)
class Point:
    """A scenario whose program is killed. Each of ``again`` kills a program that resumes the session."""

    scenario: str
    kill: Kill
    again: tuple[Kill, ...] = ()
    way: Way = "lines"

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Point:
        raw: dict[str, Any] = json.loads(text)
        again = tuple(Kill(**each) for each in raw.pop("again"))
        return cls(kill=Kill(**raw.pop("kill")), again=again, **raw)


def choose(scenario: str, calls: dict[Call, int], count: int, seed: int) -> list[Point]:
    """Return points of a scenario, spread from its first call to its last. ``calls`` are the numbers of calls."""
    chance = random.Random(f"{seed} {scenario}")
    ways: Sequence[Way] = ("lines", "query")
    points = []
    for n in range(count):
        call, where = KINDS[n % len(KINDS)]
        kill = _random_kill(call, where, 1 + n * max(1, calls[call]) // count, chance)
        again = [
            _random_kill(*chance.choice(KINDS), chance.randint(1, RESUMED_WRITES), chance)
            for _ in range(chance.choice((0, 0, 1, 2)))
        ]
        points.append(Point(scenario, kill, tuple(again), chance.choice(ways)))
    return points


def _random_kill(call: Call, where: Where, n: int, chance: random.Random) -> Kill:
    power: Power = chance.choice(("on", "cut", "zeros"))
    if (call, where) == ("sync", "before") and power == "on":
        power = "cut"  # a missing sync has no effect without a power cut
    # Half of the power cuts lose all unsynced bytes.
    left = chance.choice((0.0, round(chance.random(), 3)))
    return Kill(call, n, where, power, round(chance.random(), 3), left)
