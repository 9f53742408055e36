"""The timeline as HTML: lanes of bars, marks and pins, each of which leads to its place in the story. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from chain.export import phrases
from chain.export.escaping import escaped
from chain.export.outline import Asked, Call, Landed, Step, Story
from chain.export.timeline import Bar, Lane, Pin, Timeline, draw, is_stop
from chain.text.wording import counted

MAX_WORDS = 400
"""Characters of what a pin says; its place in the story has all."""
MOST_NAMES = 4
"""Calls that one mark names."""

_KEY = (
    '<ul class="key"><li><i></i>iteration</li><li><i class="call"></i>tool call</li>'
    '<li><i class="call failed"></i>failed call</li><li><i class="dot"></i>the user\'s words, by safe point</li>'
    '<li><i class="dot asks"></i>question</li><li><i class="dot ends"></i>stopped or failed</li></ul>\n'
)


def timeline(story: Story) -> Iterator[str]:
    """The timeline of a story; nothing if there is nothing to draw."""
    drawn = draw(story)
    if not any(lane.bars for lane in drawn.lanes):
        return
    yield '<section class="timeline" aria-labelledby="timeline">\n<div>\n<h2 id="timeline">Timeline</h2>\n'
    yield _KEY
    for number, lane in enumerate(drawn.lanes):
        yield from _lane(lane, drawn, is_first=number == 0)
    yield from _axis(story, drawn)
    yield "</div>\n</section>\n"


def _lane(lane: Lane, drawn: Timeline, *, is_first: bool) -> Iterator[str]:
    name = escaped(lane.agent)
    yield (
        f'<div class="lane" style="--depth:{lane.depth};--levels:{lane.levels}">\n'
        f'<div class="agent"><a href="#{lane.first.anchor}" title="{name}">{name}</a></div>\n<div class="track">\n'
    )
    for left, run in drawn.starts if len(drawn.starts) > 1 else ():
        titled = f' title="Run {run.number}"' if is_first else ""
        yield f'<span class="start" style="left:{left:.2f}%"{titled}></span>\n'
    if is_first:
        for silence in drawn.silences:
            yield (
                f'<span class="silence" style="left:{silence.left:.2f}%;width:{silence.width:.2f}%" '
                f'title="{phrases.duration(silence.seconds)} without a word"></span>\n'
            )
    for bar in lane.bars:
        yield _link("bar", bar, _iterations(bar, lane.agent))
    for mark in lane.marks:
        yield _link(f"call{_went(mark)}", mark, _calls(mark))
    for pin in lane.pins:
        yield _pin(pin)
    yield "</div>\n</div>\n"
    if lane.left_out:
        yield f'<p class="note">{counted(lane.left_out, "more sign")} of {name} in the story below.</p>\n'


def _link(kind: str, bar: Bar, about: str) -> str:
    return (
        f'<a class="{kind}" href="#{bar.parts[0].anchor}" style="left:{bar.left:.2f}%;width:{bar.width:.2f}%" '
        f'title="{escaped(about)}" aria-label="{escaped(about)}"></a>\n'
    )


def _iterations(bar: Bar, agent: str) -> str:
    steps = [part for part in bar.parts if isinstance(part, Step)]
    took = phrases.duration(sum(step.ended - step.time for step in steps))
    if len(steps) == 1:
        return f"{agent}, iteration {steps[0].number}: {took}"
    return f"{agent}, iterations {steps[0].number} to {steps[-1].number} ({len(steps)}): {took}"


def _calls(mark: Bar) -> str:
    calls = [part for part in mark.parts if isinstance(part, Call)]
    if len(calls) == 1:
        return f"{calls[0].name}: {phrases.state(calls[0])}"
    names = list(dict.fromkeys(call.name for call in calls))
    more = ", …" if len(names) > MOST_NAMES else ""
    return f"{len(calls)} calls: {', '.join(names[:MOST_NAMES])}{more}"


def _went(mark: Bar) -> str:
    calls = [part for part in mark.parts if isinstance(part, Call)]
    if all(call.input is None for call in calls):
        return " unstarted"
    return " failed" if any(call.result is not None and call.result.is_error for call in calls) else ""


def _pin(pin: Pin) -> str:
    what = pin.what
    sign: str
    match what:
        case Landed():
            kind, sign, title, words = "", what.event.point, phrases.landed(what), what.event.message
            sign = "•" if sign == "start" else sign
        case Asked():
            title = f"Question {what.event.id}: {phrases.answered(what.answer)}"
            kind, sign, words = "asks", "?", what.event.text
        case _:
            kind, sign = "ends", "■" if is_stop(what.status) else "!"
            title, words = f"{what.agent}: {phrases.outcome(what.status)}", ""
    words = words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}…"
    late = " late" if pin.left > 50 else ""
    anchor = what.anchor if kind != "ends" else f"{what.anchor}-end"
    return (
        f'<a class="pin {kind}{late}" href="#{anchor}" style="left:{pin.left:.2f}%;--level:{pin.level}" '
        f'aria-label="{escaped(f"{title}. {words}")}">{escaped(sign)}'
        f'<span class="tip"><b>{escaped(title)}</b>{escaped(words)}</span></a>\n'
    )


def _axis(story: Story, drawn: Timeline) -> Iterator[str]:
    first, last = phrases.clock(story.times[0]), phrases.clock(story.times[-1])
    if drawn.is_timed:
        yield f'<div class="axis"><div><span>{first}</span><span>{last}</span></div></div>\n'
        if drawn.silences:
            yield '<p class="note">Long silences are drawn shorter than they were (dotted).</p>\n'
    if drawn.left_out:
        yield f'<p class="note">{counted(drawn.left_out, "more agent")} in the story below.</p>\n'
