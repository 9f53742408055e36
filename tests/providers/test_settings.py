"""The keys of providers, on which the trust in a found configuration file depends."""

from __future__ import annotations

import pytest

from chain.config.provider import PROVIDER_NAMES, providers


def test_every_provider_is_known() -> None:
    assert tuple(providers()) == PROVIDER_NAMES


@pytest.mark.parametrize("name", PROVIDER_NAMES)
def test_keys_of_a_provider_exist(name: str) -> None:
    provider = providers()[name]
    named = {provider.needed, provider.key, provider.address, *provider.sensitive, *provider.free, *provider.paths}
    assert named - {""} <= {*provider.keys}
    # A found file may set neither the API key nor the address.
    assert {provider.key, provider.address} - {""} <= {*provider.sensitive}
