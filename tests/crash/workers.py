"""The processes that play the points, each with tasks until none is left."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).parents[2]

Row: TypeAlias = Mapping[str, Any]
"""An outcome, as JSON."""


def run(tasks: Sequence[Row], jobs: int, hear: Callable[[Row], None]) -> None:
    """Have the tasks done by so many processes; ``hear`` is called with each outcome, in one thread at a time.

    Raises ``RuntimeError`` if one of the processes ends early.
    """
    left: queue.SimpleQueue[Row] = queue.SimpleQueue()
    for task in tasks:
        left.put(task)
    lock = threading.Lock()
    failures: list[str] = []

    def work() -> None:
        with _started() as worker:
            assert worker.stdin is not None
            while task := _next(left):
                worker.stdin.write(json.dumps(task) + "\n")
                worker.stdin.flush()
                if not _listen(worker, lock, hear):
                    failures.append(f"the process that played {task} has ended")
                    return

    threads = [threading.Thread(target=work) for _ in range(min(jobs, len(tasks)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError("; ".join(failures))


def _next(left: queue.SimpleQueue[Row]) -> Row | None:
    try:
        return left.get_nowait()
    except queue.Empty:
        return None


def _listen(worker: subprocess.Popen[str], lock: threading.Lock, hear: Callable[[Row], None]) -> bool:
    """Hear all outcomes of a task. Whether it was done."""
    assert worker.stdout is not None
    for row in worker.stdout:
        outcome = json.loads(row)
        if "done" in outcome:
            return True
        with lock:
            hear(outcome)
    return False


def _started() -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "crash.worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
