"""The timeline of the HTML page: one lane for each agent. Each bar and pin links to its place in the record. Pure.

The scale from left to right shows both a tool call of milliseconds and a pause of a night: the distance of two events
is a constant plus the logarithm of the seconds between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import log1p
from typing import TypeVar

from chain import events
from chain.export.escaping import escape_text
from chain.export.outline import AgentRun, CallItem, Iteration, Moment, Outline
from chain.text import phrases
from chain.text.wording import pluralize, truncate

ROOM = 0.1
"""The distance between two simultaneous events, before scaling to the width. A second between them adds 0.7."""
CLOSEST = 0.35
"""The minimum distance between the starts of two bars, in percent of the width. Closer bars are merged."""
PIN_WIDTH = 6.6
"""The width of a pin on a narrow page, in percent of the width."""
LEVELS = 4
"""The number of rows of pins above a lane, so that close pins do not overlap."""
MAX_TITLE = 400

_KEY = (
    '<ul class="key"><li><i></i>iteration</li><li><i class="call"></i>tool call</li>'
    '<li><i class="call failed"></i>failed call</li><li><i class="pin"></i>your lines, by safe point</li>'
    '<li><i class="pin asks"></i>question</li><li><i class="pin ends"></i>stopped or failed</li></ul>\n'
)

_Part = TypeVar("_Part", Iteration, CallItem)


def render_timeline(session: Outline) -> Iterator[str]:
    """Yield the timeline as pieces of HTML; nothing if the session has no run."""
    if not session.runs:
        return
    positions = _positions(session.times)
    lanes: dict[str, list[AgentRun]] = {}
    for run in session.agents:
        lanes.setdefault(run.agent, []).append(run)
    first, last = (phrases.local_time(moment, "%H:%M:%S") for moment in (session.times[0], max(session.times)))
    yield f'<section class="timeline">\n<h2>Timeline</h2>\n{_KEY}'
    for runs in lanes.values():
        yield from _lane(runs, positions)
    yield f'<div class="axis"><span>{first}</span><span>{last}</span></div>\n</section>\n'


def _positions(times: Sequence[float]) -> list[float]:
    """Return the position of each event from the left, in percent of the width."""
    positions = [0.0]
    for before, after in pairwise(times):
        positions.append(positions[-1] + ROOM + log1p(max(after - before, 0.0)))  # a clock may be set back
    width = positions[-1] or 1.0
    return [100 * position / width for position in positions]


def _lane(runs: Sequence[AgentRun], positions: Sequence[float]) -> Iterator[str]:
    """Yield the lane of one agent: bars for iterations and calls, and pins above them."""
    agent = runs[0].agent
    pins = sorted(pin for run in runs for pin in _pins(run))
    levels = _levels([positions[index] for index, *_ in pins])
    yield (
        f'<div class="lane" style="--depth:{runs[0].depth};--levels:{max(levels, default=-1) + 1}">\n'
        f'<div class="agent"><a href="#{runs[0].anchor}">{escape_text(agent)}</a></div>\n<div class="track">\n'
    )
    for steps in _merge_close_parts((step for run in runs for step in run.steps if step.number), positions):
        numbers = " to ".join(dict.fromkeys(str(step.number) for step in (steps[0], steps[-1])))
        took = f" ({steps[0].duration_text})" if len(steps) == 1 else ""
        yield _bar("bar", steps, positions, f"{agent}, iteration {numbers}{took}")
    for calls in _merge_close_parts(
        (item for run in runs for item in run.items() if isinstance(item, CallItem)), positions
    ):
        failed = " failed" if any(call.has_failed for call in calls) else ""
        title = f"{calls[0].name}: {calls[0].state}" if len(calls) == 1 else pluralize(len(calls), "call")
        yield _bar(f"call{failed}", calls, positions, title)
    for (index, kind, sign, title), level in zip(pins, levels, strict=True):
        yield _link(f"pin{kind}", index, f"left:{positions[index]:.2f}%;--level:{level}", title, sign)
    yield "</div>\n</div>\n"


def _merge_close_parts(parts: Iterable[_Part], positions: Sequence[float]) -> list[list[_Part]]:
    """Group parts into bars. A part joins the group before if it starts within ``CLOSEST`` of the group's start."""
    groups: list[list[_Part]] = []
    for part in parts:
        if not groups or positions[part.index] - positions[groups[-1][0].index] >= CLOSEST:
            groups.append([])
        groups[-1].append(part)
    return groups


def _bar(kind: str, parts: Sequence[Iteration] | Sequence[CallItem], positions: Sequence[float], title: str) -> str:
    left, right = positions[parts[0].index], positions[max(part.last_index for part in parts)]
    return _link(kind, parts[0].index, f"left:{left:.2f}%;width:{right - left:.2f}%", title)


def _link(kind: str, index: int, style: str, title: str, sign: str = "") -> str:
    title = escape_text(truncate(title, MAX_TITLE))
    return f'<a class="{kind}" href="#e{index}" style="{style}" title="{title}">{escape_text(sign)}</a>\n'


def _pins(run: AgentRun) -> Iterator[tuple[int, str, str, str]]:
    """Yield the pins of a run, each as an event's index, a CSS class, a sign and a title."""
    for item in run.items():
        match item:
            case Moment(index=index, event=events.UserInterruption() as event, urgency=urgency):
                yield index, "", event.point, f"{phrases.describe_delivery(event, urgency)}. {event.message}"
            case Moment(index=index, event=events.Question() as event):
                yield index, " asks", "?", f"Question {event.id}: {event.text}"
            case _:
                pass
    if run.status not in (None, "done"):
        sign = "■" if phrases.was_stopped(run.status) else "!"
        yield run.last_index, " ends", sign, f"{run.agent}: {phrases.describe_status(run.status)}"


def _levels(positions: Sequence[float]) -> list[int]:
    """Return the level of each pin: the lowest free level. If none is free, pins overlap."""
    ends, levels = [0.0] * LEVELS, []
    for left in positions:
        level = next((n for n, end in enumerate(ends) if left >= end), ends.index(min(ends)))
        ends[level] = left + PIN_WIDTH
        levels.append(level)
    return levels
