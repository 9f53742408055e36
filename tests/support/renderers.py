"""Renderers as the front ends make them; `Renderer` itself is the progress of a headless run."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from cli.show.renderer import Renderer

Make: TypeAlias = Callable[..., Renderer]

above_a_prompt = partial(Renderer, streams=True, collapses=True)
at_a_terminal = partial(Renderer, streams=True)
