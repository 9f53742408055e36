"""A session as one HTML page that needs nothing else: no network, and no script to read it.

What a person sees first is the header and the timeline, which leads to the places in the story below it. All that is
not of this package goes through ``markup``; beside that, the page's own policy lets the browser load nothing and run no
script but the one that is in the page, by its digest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from chain import events
from chain.export import phrases
from chain.export.body import Body
from chain.export.drawing import timeline
from chain.export.escaping import escaped
from chain.export.outline import Landed, Planned, Run, Story
from chain.text.wording import counted
from chain.version import VERSION

FEW_ITERATIONS = 80
"""Up to so many in a session the work of children is unfolded."""
MAX_TITLE = 200

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect x='1' y='6' width='14' height='7' rx='2' fill='%232f6690'/%3E"
    "%3Ccircle cx='8' cy='4' r='3' fill='%23e0a83c'/%3E%3C/svg%3E"
)


def page(story: Story) -> Iterator[str]:
    """The page, in pieces."""
    style, script = _file("page.css"), _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    title = _shortened(story.title)
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<title>{escaped(title)} · chain</title>\n<link rel="icon" href="{_ICON}">\n'
        f'<style>\n{style}</style>\n</head>\n<body>\n<a class="skip" href="#story">Skip the timeline</a>\n'
    )
    yield from _header(story, title)
    yield from timeline(story)
    yield '<main id="story">\n<div class="tools" hidden></div>\n'
    few = sum(work.iterations for work in story.works()) <= FEW_ITERATIONS
    plans = (item for work in story.works() for _, item in work.items() if isinstance(item, Planned))
    body = Body(is_unfolded=few, last_plan=max(plans, key=lambda plan: plan.at, default=None))
    if story.before is not None:
        yield from body.items(story.before.items, depth=0)
    for run in story.runs:
        yield from body.run(run)
    yield "</main>\n"
    yield f"<footer><p>Made by chain {VERSION}. Times are those of the machine that made it.</p></footer>\n"
    yield f"<script>{script}</script>\n</body>\n</html>\n"


def _header(story: Story, title: str) -> Iterator[str]:
    init = story.init
    named = f' <span class="mono">{escaped(init.session)}</span>' if init is not None else ""
    yield f'<header>\n<p class="kind">chain session{named}</p>\n'
    yield f'<h1>{escaped(title)}</h1>\n<dl class="facts">\n'
    for name, value in _facts(story):
        yield f"<div><dt>{escaped(name)}</dt><dd>{value}</dd></div>\n"
    yield "</dl>\n</header>\n"


def _facts(story: Story) -> Iterator[tuple[str, str]]:
    """What a session is known by: names, and values as HTML."""
    init = story.init
    if began := story.times[0] if story.times else init.time if init else None:
        lasted = sum((run.work.ended - run.time for run in story.runs), 0.0)
        yield "Began", f'<time datetime="{phrases.iso(began)}">{phrases.when(began)}</time>'
        yield "At work for", phrases.duration(lasted)
    if init is not None:
        yield "Workspace", f"<span class=mono>{escaped(init.workspace)}</span>"
        yield "Model", escaped(init.model)
    works = list(story.works())
    children = {work.agent for work in works if work.depth}
    landed = sum(isinstance(item, Landed) for work in works for _, item in work.items())
    yield "Runs", f"{len(story.runs):,}{_endings(story)}"
    yield "Iterations", f"{sum(work.iterations for work in works):,}"
    yield "Interruptions", f"{landed:,}"
    if children:
        yield "Other agents", f"{len(children):,}"
    yield "Tokens", f"{story.tokens:,}"
    if story.cost_usd is not None:
        yield "Cost", phrases.cost(story.cost_usd)


def _endings(story: Story) -> str:
    """How many runs did not end well, if any."""
    bad = sum(run.result is None or run.result.status != "done" for run in story.runs)
    if not bad:
        return ""
    if len(story.runs) == 1:
        return f' <span class="aside">({escaped(phrases.outcome(_status(story.runs[0])))})</span>'
    return f' <span class="aside">({counted(bad, "run")} not done)</span>'


def _status(run: Run) -> events.Status | None:
    return None if run.result is None else run.result.status


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TITLE else f"{text[:MAX_TITLE]}…"


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
