"""The folder of the project, and its modules."""

from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def modules() -> dict[str, Path]:
    """Return the files of all modules by the modules' names."""
    found = {}
    for path in sorted([*ROOT.glob("chain/**/*.py"), *ROOT.glob("cli/**/*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found
