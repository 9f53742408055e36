"""Settings of the tests: how many examples the property tests try, and that signals arrive.

``CHAIN_TEST_PROFILE`` chooses: ``default``, ``ci`` (the same examples each time) or ``long`` (ten times as many, for
those that are declared with ``support.trying``).
"""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("support")

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=1_000)
settings.load_profile(os.environ.get("CHAIN_TEST_PROFILE", "ci" if os.environ.get("CI") else "default"))

# A shell starts what it runs in the background with SIGINT ignored, as nohup does with SIGHUP; the program respects
# that, and its tests of signals would wait for ever.
for number, action in {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, action)
