"""Renderers as the front ends create them. ``Renderer`` itself shows the progress of a headless run."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from chain.events import Event
from cli.show.renderer import Renderer

from .rows import without_colours

MakeRenderer: TypeAlias = Callable[..., Renderer]

above_a_prompt = partial(Renderer, streams=True, collapses=True)
at_a_terminal = partial(Renderer, streams=True)


def rows_of(renderer: Renderer, *stream: Event) -> list[str]:
    """Return the rows of events, without colours."""
    return [without_colours(row) for event in stream for row in renderer.rows(event)]


def tail_of(renderer: Renderer) -> list[str]:
    """Return the unsettled rows, without colours."""
    return [without_colours(row) for row in renderer.tail.split("\n")] if renderer.tail else []
