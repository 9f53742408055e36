"""Where a program is killed, what a power cut leaves of its journal, and how it is resumed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Call: TypeAlias = Literal["write", "sync", "seen"]
"""``seen``: not a call; the program is killed from outside when so much of its output was read."""

Where: TypeAlias = Literal["before", "middle", "after"]
Power: TypeAlias = Literal["on", "cut", "zeros"]
"""``on``: the process is killed, and all written bytes stay. ``cut``: the journal ends anywhere after its synced bytes.
``zeros``: it has its length, and from anywhere after its synced bytes on there are zero bytes."""

Way: TypeAlias = Literal["lines", "query", "prompt"]
"""How a session is resumed: by lines of JSON, by ``-p QUERY``, at a terminal."""

KINDS: Sequence[tuple[Call, Where]] = (
    ("write", "after"),
    ("write", "middle"),
    ("sync", "before"),
    ("write", "before"),
    ("seen", "after"),
    ("write", "after"),
    ("write", "middle"),
    ("write", "before"),
    ("sync", "after"),
)
"""In turn. There are ten times as many writes as syncs."""

MOST_KILLS = 3
"""How often a session is killed while it is resumed, at most."""

RESUMED_WRITES = 9
"""As many writes as a resumed session has until its query is answered, about; each of them is a point."""


@dataclass(frozen=True, slots=True)
class Kill:
    """At the ``n``-th such call (from 1), or, for ``seen``, after the ``n``-th piece of output.

    ``part``, from 0 to 1, is how much of a write is done in its middle, and how long is waited after what was seen.
    """

    call: Call
    n: int
    where: Where = "after"
    part: float = 0.5
    power: Power = "on"
    left: float = 0.0
    """The part of the bytes that were not synced that a power cut leaves."""


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


@dataclass(frozen=True, slots=True)
class Reach:
    """How many calls of each kind a scenario has that nobody kills."""

    writes: int
    syncs: int
    seen: int

    def of(self, call: Call) -> int:
        return {"write": self.writes, "sync": self.syncs, "seen": self.seen}[call]


_POWERS: Sequence[Power] = ("on", "cut", "on", "zeros")
_AT_TERMINAL: Sequence[Way] = ("prompt", "prompt", "lines")
_HEADLESS: Sequence[Way] = ("lines", "query", "lines", "query", "prompt")
_TIMES_AGAIN = (0, 1, 0, 2, 1, 0, MOST_KILLS)


def choose(scenario: str, reach: Reach, count: int, seed: int, *, is_at_terminal: bool) -> list[Point]:
    """So many points of a scenario: all kinds in turn, and for each the calls from the first to the last, spread."""
    chance = random.Random(f"{seed} {scenario}")
    ways = _AT_TERMINAL if is_at_terminal else _HEADLESS
    kinds = [KINDS[n % len(KINDS)] for n in range(count)]
    numbers = {kind: _spread(reach.of(kind[0]), times, chance) for kind, times in Counter(kinds).items()}
    points = []
    for n, kind in enumerate(kinds):
        turn = n + n // len(KINDS)
        kill = _kill(kind, numbers[kind].pop(), _POWERS[turn % len(_POWERS)], chance)
        points.append(Point(scenario, kill, _again(n, chance), ways[turn % len(ways)]))
    return points


def _spread(most: int, count: int, chance: random.Random) -> list[int]:
    """So many numbers from 1 to ``most``: all of them if there is room, else at even distances, in any order."""
    most = max(1, most)  # what is never called is never reached
    numbers = list(range(1, most + 1)) * (count // most)
    left = count - len(numbers)
    start = chance.random()
    numbers += [1 + int((k + start) * most / left) for k in range(left)]
    chance.shuffle(numbers)
    return numbers


def _again(n: int, chance: random.Random) -> tuple[Kill, ...]:
    """How the resumed programs are killed: often not at all, else at each of their writes in turn."""
    kinds = [kind for kind in KINDS if kind[0] != "seen"]  # what it shows first says nothing of what it has done
    times = _TIMES_AGAIN[n % len(_TIMES_AGAIN)]
    return tuple(
        _kill(kinds[(n + k) % len(kinds)], 1 + (n // 2 + 3 * k) % RESUMED_WRITES, _POWERS[(n + k) % 4], chance)
        for k in range(times)
    )


def _kill(kind: tuple[Call, Where], n: int, power: Power, chance: random.Random) -> Kill:
    if kind == ("sync", "before") and power == "on":
        power = "cut"  # as long as there is power, it does not matter whether a sync was to come
    # Every second power cut takes all that it can.
    left = chance.choice((0.0, round(chance.random(), 3)))
    return Kill(kind[0], n, kind[1], round(chance.random(), 3), power, left)
