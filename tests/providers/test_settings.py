"""What providers say of their keys: trust in a file that was merely found hangs on it."""

from __future__ import annotations

import pytest

from chain.config.provider import PROVIDER_NAMES, providers


def test_every_provider_of_the_table_is_there() -> None:
    assert tuple(providers()) == PROVIDER_NAMES


@pytest.mark.parametrize("name", PROVIDER_NAMES)
def test_what_is_said_of_keys_is_said_of_those_that_there_are(name: str) -> None:
    provider = providers()[name]
    told = {provider.needed, provider.key, provider.address, *provider.sensitive, *provider.free, *provider.paths}
    assert told - {""} <= {*provider.keys}
    # A key and where it goes are never taken from a stranger.
    assert {provider.key, provider.address} - {""} <= {*provider.sensitive}
