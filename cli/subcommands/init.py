"""`chain init`: the shipped configuration and prompts, written into a folder to be changed there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from chain.config.load import defaults_folder
from chain.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def init(folder: Path) -> list[str]:
    """Write ``config.yaml`` and ``prompts/`` into a folder, which is made if need be; returns what to tell the user.

    An existing file is never overwritten: then nothing at all is written. Raises ``UserError``.
    """
    shipped = defaults_folder()
    sources = [shipped / "config.yaml", *sorted((shipped / "prompts").rglob("*.yaml"))]
    targets = [folder / source.relative_to(shipped) for source in sources]
    for target in targets:
        if os.path.lexists(target):
            raise UserError(
                "is there already, and init overwrites nothing: move it away, or name a new folder", file=target
            )
    lines = []
    for source, target in zip(sources, targets, strict=True):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:  # x: also not what appeared since the look above
                file.write(source.read_bytes())
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror}", file=target) from None
        lines.append(f"wrote {target}")
    return [*lines, f"Change what you like, then run `chain check` in {folder} to see what holds."]
