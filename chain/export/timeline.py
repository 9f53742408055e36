"""Where everything stands on the timeline: lanes, bars, marks and pins, in percent of its width. Pure.

The axis is time, but not on one scale. A silence that is far longer than the others (a night, a question that waited)
is shortened, or nothing else would be seen; and each thing that happened gets a little room of its own, so that what
took milliseconds can be told apart. Where all times are alike, only the order is left.

However long a session is, a browser has only so much to draw: what would stand closer than it can be seen is one bar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Generic, TypeAlias, TypeVar

from chain.export.outline import AgentRun, CallItem, Delivered, Iteration, Outline, QuestionItem, SessionRun

LONGEST_SILENCE = 0.15
"""Of the width, for a silence: a longer one is drawn as that."""
NOTICED_S = 10
FOR_ORDER = 0.25
"""Of the width, for the order alone."""
CLOSEST = 0.35
"""Percent of the width between the beginnings of two bars, at least: about four pixels of a wide page."""
MOST_DRAWN = 1_500
"""Bars and marks on the whole timeline."""
MOST_PINS = 120
"""Pins on a lane: more could not be told apart."""
MOST_LANES = 40
MOST_RUN_STARTS = 40
PIN_ROOM = 6.6
"""Percent of the width that a pin takes on a narrow page; those closer to each other stand on several levels."""
LEVELS = 4

Pinned: TypeAlias = Delivered | QuestionItem | AgentRun

_Part = TypeVar("_Part", Iteration, CallItem)


@dataclass(frozen=True, slots=True)
class Bar(Generic[_Part]):
    """One iteration, or several that stand too close to each other; likewise calls."""

    left: float
    width: float
    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class Pin:
    """Something between the user and the agents: an interruption, a question, or how a work ended."""

    left: float
    level: int
    what: Pinned


@dataclass(frozen=True, slots=True)
class Lane:
    """An agent, with everything that it did."""

    first: AgentRun
    bars: tuple[Bar[Iteration], ...]
    marks: tuple[Bar[CallItem], ...]
    pins: tuple[Pin, ...]
    left_out: int
    """Pins that are not drawn."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Time in which nothing happened, drawn shorter than it was."""

    left: float
    width: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that is drawn; ``left_out`` agents are not."""

    lanes: tuple[Lane, ...]
    starts: tuple[tuple[float, SessionRun], ...]
    silences: tuple[Silence, ...]
    left_out: int
    is_timed: bool


def draw(outline: Outline) -> Timeline:
    """The timeline of a session."""
    axis = Axis(outline.times)
    agents = _in_order(outline)
    drawn = agents[:MOST_LANES]
    closest = CLOSEST
    while True:
        lanes = [_lane(works, axis, closest) for works in drawn]
        if sum(len(lane.bars) + len(lane.marks) for lane in lanes) <= MOST_DRAWN:
            break
        closest *= 2
    runs = outline.runs if len(outline.runs) <= MOST_RUN_STARTS else ()
    return Timeline(
        lanes=tuple(lanes),
        starts=tuple((axis.percent(run.at), run) for run in runs),
        silences=axis.silences,
        left_out=len(agents) - len(drawn),
        is_timed=axis.is_timed,
    )


class Axis:
    """Places from 0 to 100 for what happened, by its number in the order."""

    def __init__(self, times: Sequence[float]) -> None:
        # A clock may have been set back meanwhile.
        gaps = [max(later - earlier, 0.0) for earlier, later in pairwise(times)]
        self.is_timed = sum(gaps) > 0
        longest = longest_drawn(gaps)
        shown = [min(gap, longest) for gap in gaps]
        for_order = (sum(shown) / len(shown) * FOR_ORDER / (1 - FOR_ORDER) if self.is_timed else 1.0) if shown else 1.0
        self._places = [0.0]
        for gap in shown:
            self._places.append(self._places[-1] + gap + for_order)
        self._end = self._places[-1] or 1.0
        cut = [(self.percent(n), self.percent(n + 1), gap) for n, gap in enumerate(gaps) if gap > longest]
        self.silences = tuple(Silence(left, right - left, gap) for left, right, gap in cut if gap >= NOTICED_S)
        """Those that are drawn shorter than they were, and that a person would call one."""

    def percent(self, at: int) -> float:
        """The place of what happened as number ``at``."""
        return 100 * self._places[min(at, len(self._places) - 1)] / self._end


def longest_drawn(gaps: Sequence[float]) -> float:
    """How much of a silence is drawn, so that the longest is a certain part of all that is drawn.

    That is the ``longest`` with ``longest = part * sum(min(gap, longest))``; without one all are drawn as they are.
    """
    found = sorted(gap for gap in gaps if gap > 0)
    if not found:
        return 0.0
    part = max(LONGEST_SILENCE, 2 / len(found))
    sums = list(accumulate(found))
    for shortened in range(len(found)):
        # So many of the longest are cut, and the others drawn as they are.
        rest = 1 - part * shortened
        longest = part * sums[-1 - shortened] / rest if rest > 0 else 0.0
        if longest >= found[-1 - shortened]:
            return longest
    return found[-1]


def _in_order(outline: Outline) -> list[list[AgentRun]]:
    """The works of each agent, a parent before its children."""
    works: dict[str, list[AgentRun]] = {}
    for work in outline.agents():
        works.setdefault(work.agent, []).append(work)
    below: dict[str, list[str]] = {}
    for name, found in works.items():
        parent = found[0].parent
        below.setdefault(parent if parent in works and found[0].depth else "", []).append(name)
    ordered: list[list[AgentRun]] = []
    left = below.pop("", [])[::-1]
    while left:
        name = left.pop()
        ordered.append(works[name])
        left += sorted(below.pop(name, []), key=lambda name: works[name][0].at, reverse=True)
    return ordered


def _lane(works: Sequence[AgentRun], axis: Axis, closest: float) -> Lane:
    steps = [step for work in works for step in work.steps if step.number]
    items = [item for work in works for item in work.items()]
    pinned: list[tuple[float, Pinned]] = [
        (axis.percent(item.at), item) for item in items if isinstance(item, Delivered | QuestionItem)
    ]
    # A good end is where the bar ends; any other is something to see.
    pinned += [(axis.percent(work.until), work) for work in works if work.status not in (None, "done")]
    pinned.sort(key=lambda pin: pin[0])
    return Lane(
        first=works[0],
        bars=tuple(_bars(steps, axis, closest)),
        marks=tuple(_bars([item for item in items if isinstance(item, CallItem)], axis, closest)),
        pins=tuple(_on_levels(pinned[:MOST_PINS])),
        left_out=max(len(pinned) - MOST_PINS, 0),
    )


def _bars(parts: Iterable[_Part], axis: Axis, closest: float) -> Iterator[Bar[_Part]]:
    groups: list[list[_Part]] = []
    for part in sorted(parts, key=lambda part: part.at):
        if not groups or axis.percent(part.at) - axis.percent(groups[-1][0].at) >= closest:
            groups.append([])
        groups[-1].append(part)
    for group in groups:
        start, end = axis.percent(group[0].at), axis.percent(max(part.until for part in group))
        yield Bar(start, end - start, tuple(group))


def _on_levels(pinned: Iterable[tuple[float, Pinned]]) -> Iterator[Pin]:
    """Pins, each on the lowest level that has room; where none has, they stand over each other."""
    ends = [0.0] * LEVELS
    for left, what in pinned:
        level = next((n for n, end in enumerate(ends) if left >= end), ends.index(min(ends)))
        ends[level] = left + PIN_ROOM
        yield Pin(left, level, what)
