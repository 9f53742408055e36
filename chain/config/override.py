"""Values from flags and from the environment, which go before those of the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chain.errors import ConfigError
from chain.listed import listed

_VARIABLES = {name: f"CHAIN_{name.upper()}" for name in ("model", "chain", "max_iterations", "allow")}
"""What a flag may set, with the environment variable that may set it as well."""


@dataclass(frozen=True, slots=True)
class Override:
    """A value from a flag or from the environment."""

    value: object
    source: str

    def text(self) -> str:
        """What was given, without outer space."""
        return str(self.value).strip()

    def integer(self) -> int:
        """A whole number of at least 1. Raises ``ConfigError``."""
        try:
            number = int(self.text())
        except ValueError:
            number = 0
        if number < 1:
            raise ConfigError(f"{self.source}: must be a whole number of at least 1, found {self.text()!r:.60}")
        return number

    def names(self) -> tuple[str, ...]:
        """The parts of a list with commas, or of several such lists."""
        parts = self.value if isinstance(self.value, list | tuple) else [self.value]
        return tuple(name.strip() for part in parts for name in listed(str(part)) if name.strip())


def read_overrides(flags: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, Override]:
    """What was given, by the names of the flags. A flag goes before its variable."""
    found = {}
    for name, variable in _VARIABLES.items():
        flag = flags.get(name)
        if flag not in (None, [], ()):
            found[name] = Override(flag, f"flag --{name.replace('_', '-')}")
        elif environ.get(variable, "").strip():
            found[name] = Override(environ[variable], variable)
    return found
