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
"""``on``: all written bytes stay. ``cut``: the journal ends anywhere after its synced bytes. ``zeros``: from anywhere
after its synced bytes on, the journal has zero bytes."""

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
"""The kinds of points, in turn."""

RESUMED_WRITES = 9
"""About the number of writes of a resumed session until its query is answered."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill at the ``n``-th such call, from 1.

    ``part``, from 0 to 1, is the part of a write that is done if the program is killed in its middle, and ``left`` the
    part of the unsynced bytes that a power cut leaves.
    """

    call: Call
    n: int
    where: Where = "after"
    power: Power = "on"
    part: float = 0.5
    left: float = 0.0


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a scenario that is killed, resumed, perhaps killed again (``again``), and resumed to its end."""

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
    """Return points of a scenario, spread from its first call to its last. ``calls`` is their number."""
    chance = random.Random(f"{seed} {scenario}")
    ways: Sequence[Way] = ("lines", "query")
    points = []
    for n in range(count):
        kind = KINDS[n % len(KINDS)]
        kill = _kill(kind, 1 + n * max(1, calls[kind[0]]) // count, chance)
        again = [
            _kill(chance.choice(KINDS), chance.randint(1, RESUMED_WRITES), chance)
            for _ in range(chance.choice((0, 0, 1, 2)))
        ]
        points.append(Point(scenario, kill, tuple(again), chance.choice(ways)))
    return points


def _kill(kind: tuple[Call, Where], n: int, chance: random.Random) -> Kill:
    power: Power = chance.choice(("on", "cut", "zeros"))
    if kind == ("sync", "before") and power == "on":
        power = "cut"  # without a power cut it does not matter whether a sync was to come
    # Every second power cut takes all that it can.
    left = chance.choice((0.0, round(chance.random(), 3)))
    return Kill(kind[0], n, kind[1], power, round(chance.random(), 3), left)
