"""A configuration on the disk, loaded as a file that the user names, or as one that is found in the folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from chain.config.load import Settings, load_settings
from chain.errors import ConfigError


class ConfigPlace:
    """A home and a working folder, and ways to load the configuration in them."""

    def __init__(self, parent: Path, work: str = "work") -> None:
        self.home, self.work = parent / "home", parent / work
        for folder in (self.home, self.work):
            folder.mkdir(exist_ok=True)

    def load(self, config: str | None = None, environ: Mapping[str, str] | None = None, **flags: object) -> Settings:
        return load_settings(
            config=None if config is None else Path(config),
            environ={"HOME": str(self.home), **(environ or {})},
            cwd=self.work,
            flags=flags,
        )

    def load_named(self, text: str, environ: Mapping[str, str] | None = None, **flags: object) -> Settings:
        """Write ``mine.yaml``, and load it as with --config, which is trusted."""
        (self.work / "mine.yaml").write_text(text)
        return self.load("mine.yaml", environ, **flags)

    def load_found(self, text: str, environ: Mapping[str, str] | None = None, **flags: object) -> Settings:
        """Write ``config.yaml``, and load it as the working folder's, which may need trust."""
        (self.work / "config.yaml").write_text(text)
        return self.load(None, environ, **flags)

    def load_error(self, text: str, environ: Mapping[str, str] | None = None, **flags: object) -> ConfigError:
        """Return the error that loading a named file raises."""
        with pytest.raises(ConfigError) as caught:
            self.load_named(text, environ, **flags)
        return caught.value
