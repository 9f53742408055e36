"""``chain init``: writes the built-in configuration and prompts into a folder, to be edited there."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from chain.config.load import defaults_folder
from chain.errors import UserError
from cli.arguments import one_word
from cli.command_output import show


def run(args: argparse.Namespace) -> int:
    """Write the files. Return the exit code."""
    return show(args, init(Path(one_word(args, "DIR") or ".")))


def init(folder: Path) -> list[str]:
    """Write ``config.yaml`` and ``prompts/`` into a folder.

    Return the rows to show. Raise ``UserError`` if one of the files exists or cannot be written.
    """
    shipped = defaults_folder()
    sources = [shipped / "config.yaml", *sorted((shipped / "prompts").rglob("*.yaml"))]
    targets = [folder / source.relative_to(shipped) for source in sources]
    for target in targets:
        if os.path.lexists(target):
            raise UserError(
                "already exists, and init overwrites nothing: move it away, or name a new folder", file=target
            )
    for source, target in zip(sources, targets, strict=True):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:  # x: refuse a file that was created since the check above
                file.write(source.read_bytes())
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror}", file=target) from None
    wrote = (f"wrote {target}" for target in targets)
    return [*wrote, f"Edit these files, then run `chain check` in {folder.resolve()} to check them."]
