"""The names of the providers and of their settings.

They decide which settings of a configuration file that was found in a folder need the user's trust.
"""

from __future__ import annotations

import pytest

from chain.config.provider import PROVIDER_NAMES, providers


def test_every_provider_is_known() -> None:
    assert tuple(providers()) == PROVIDER_NAMES


@pytest.mark.parametrize("name", PROVIDER_NAMES)
def test_a_provider_refers_to_its_own_settings(name: str) -> None:
    provider = providers()[name]
    names = {provider.needed, provider.key, provider.address, *provider.sensitive, *provider.free, *provider.paths}
    assert names - {""} <= {*provider.keys}


@pytest.mark.parametrize("name", PROVIDER_NAMES)
def test_the_api_key_and_the_address_need_trust(name: str) -> None:
    provider = providers()[name]
    assert {provider.key, provider.address} - {""} <= {*provider.sensitive}
