"""Renderers as the front ends create them. ``Renderer`` itself shows the progress of a headless run."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from chain.events import Event
from cli.show.renderer import Renderer

from .painted import bare

Make: TypeAlias = Callable[..., Renderer]

above_a_prompt = partial(Renderer, streams=True, collapses=True)
at_a_terminal = partial(Renderer, streams=True)


def rendered(renderer: Renderer, *happened: Event) -> list[str]:
    """Return the rows of events, without colours."""
    return [bare(row) for event in happened for row in renderer.rows(event)]


def tail_of(renderer: Renderer) -> list[str]:
    """Return the unsettled rows, without colours."""
    return [bare(row) for row in renderer.tail.split("\n")] if renderer.tail else []
