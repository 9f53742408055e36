"""Settings of the tests: how many examples the property tests try."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=20_000)
settings.load_profile(os.environ.get("CHAIN_TEST_PROFILE", "ci" if os.environ.get("CI") else "default"))
