"""The environment of the tests of providers."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove proxies and the settings of the SDK from the environment."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("ANTHROPIC_"):
            monkeypatch.delenv(name)
