"""Settings of the whole suite: random examples, temporary folders in memory, rows of the short run, and signals."""

import gc
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Also under PYTHONDONTWRITEBYTECODE: without its cache pytest rewrites all assertions in each worker of each run.
sys.dont_write_bytecode = False
pytest.register_assert_rewrite("support")
gc.disable()  # while pytest collects the tests, whose objects all stay

from support.examples import EXAMPLES, PROFILE  # noqa: E402

from chain.tools import named_files  # noqa: E402
from cli.input import file_names  # noqa: E402

# A busy machine must not look like a disk that hangs. Tests of a hanging disk set their own limits.
file_names.KEY_PATIENCE_S = named_files.FILE_SYSTEM_S = 1e6

_settings = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
for name, examples in EXAMPLES.items():
    settings.register_profile(name, parent=_settings, max_examples=examples, derandomize=name in ("short", "ci"))
settings.load_profile(PROFILE)

MEMORY = "/dev/shm"
MIN_FREE = 1 << 30
"""Free bytes below which temporary folders stay on the disk."""

has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MIN_FREE
if has_room and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:  # tests run scripts that they write
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# A shell starts background jobs with SIGINT ignored, and nohup with SIGHUP ignored. The program respects both, so its
# tests of signals would never end.
for number, action in {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, action)


def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are cores: tests of the program at a terminal mostly wait."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow all but every nth row of a table that is marked ``sampled(every=n)``."""
    rows: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            table = item.nodeid.partition("[")[0]
            if rows[table] % mark.kwargs["every"]:
                item.add_marker(pytest.mark.slow)
            rows[table] += 1


def pytest_collection_finish() -> None:
    """Exempt tests and modules from garbage collection, and collect seldom: it takes a tenth of the time otherwise."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def keys() -> Iterator[int]:
    """Replace standard input by a pipe. Return the end to write keys to."""
    before, (read, write) = os.dup(0), os.pipe()
    os.dup2(read, 0)
    try:
        yield write
    finally:
        os.dup2(before, 0)
        for fd in (before, read, write):
            os.close(fd)
