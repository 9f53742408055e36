"""Settings of the tests: how much they try (``support.examples``), and that signals arrive."""

import gc
import itertools
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

# Also where Python is told to keep nothing that it has compiled: pytest would rewrite all assertions in each worker and
# in each run, which takes longer than all else that collecting the tests does.
sys.dont_write_bytecode = False
pytest.register_assert_rewrite("support")
# Nothing that collecting makes is garbage, and each search goes over all of it.
gc.disable()

from support import forked  # noqa: E402
from support.examples import EXAMPLES, IS_SHORT, PROFILE  # noqa: E402

_settings = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
for name, examples in EXAMPLES.items():
    settings.register_profile(name, parent=_settings, max_examples=examples, derandomize=name in ("short", "ci"))
settings.load_profile(PROFILE)

# A shell starts what it runs in the background with SIGINT ignored, as nohup does with SIGHUP; the program respects
# that, and its tests of signals would wait for ever.
for number, action in {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, action)


if IS_SHORT:
    from hypothesis.internal.conjecture import providers

    # Hypothesis parses all of our modules in each process, to draw what stands in them too. Five examples are too few
    # for that to matter, and are the same then whatever stands there.
    providers._get_local_constants = lambda: providers._local_constants


_folders = itertools.count()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own: pytest's makes a link to each as well, which takes longer than most tests that need one."""
    return tmp_path_factory.mktemp(f"test{next(_folders)}", numbered=False)


def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores: tests of the program at a terminal wait most of the time."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Report the call of each test, and what failed or was skipped: each message costs both ends time.

    Where durations are asked for, everything is reported.
    """
    if not hasattr(item.config, "workerinput") or item.config.getoption("durations") is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have the programs of a test started as its marks say."""
    forked.begin_test(is_started=item.get_closest_marker("started") is not None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark property tests as those that try less in the short run, and leave out most rows of some tables there."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.sampled)
    if not IS_SHORT or any("[" in asked for asked in config.args):  # a row that is asked for by its id is tried
        return
    rows: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        mark, table = item.get_closest_marker("sampled"), item.nodeid.partition("[")[0]
        is_kept = rows[table] % (mark.kwargs.get("every", 1) if mark else 1) == 0
        rows[table] += 1
        (kept if is_kept else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_collection_finish() -> None:
    """Keep the thousands of tests and all modules out of what is searched for garbage, and search seldom."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
