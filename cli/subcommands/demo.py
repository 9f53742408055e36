"""``chain demo``: an interruption from end to end, offline, on a small product table in a temporary folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

import trio

from chain.app import open_chain
from chain.config.load import Settings, defaults_folder, load_settings
from cli import headless
from cli.headless import Job
from cli.input.moments import parse_moment
from cli.show.events import Renderer

QUERY = "Analyze product data for SKU123"
LINE = "@iteration 3 todo: add verify SKU data"

_FILES = {
    "products.csv": """\
sku,name,price,stock,rating
SKU121,Enamel mug,8.50,240,4.1
SKU122,Steel bottle,19.90,75,4.6
SKU123,Travel kettle,34.00,12,3.8
SKU124,Camp stove,59.00,31,4.4
""",
    "notes/SKU123.md": """\
# SKU123 Travel kettle

- Returns rose in October: lids that do not close.
- The supplier promised a new lid for December.
""",
}


def demo(renderer: Renderer) -> int:
    """Run the demonstration, all on standard output, and return its exit code."""
    # The built-in configuration, not the user's: a demonstration is the same everywhere.
    settings = load_settings(
        config=defaults_folder() / "config.yaml", environ={}, cwd=Path.cwd(), flags={"model": "offline"}
    )
    with tempfile.TemporaryDirectory(prefix="chain-demo-") as folder:
        workspace = Path(folder) / "products"
        for name, text in _FILES.items():
            path = workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return trio.run(_demo, settings, workspace, Path(folder) / "state", renderer)


async def _demo(settings: Settings, workspace: Path, state: Path, renderer: Renderer) -> int:
    async with open_chain(settings, workspace=workspace, state=state) as chain:
        job = Job(QUERY, (parse_moment(LINE, strict=True),))
        return await headless.run(chain, job, renderer, stderr=1)
