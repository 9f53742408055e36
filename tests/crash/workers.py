"""The processes that play the points, each with tasks until none is left."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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

    def hear_one(outcome: Row) -> None:
        with lock:
            hear(outcome)

    def work() -> None:
        with started() as worker:
            while task := _next(left):
                try:
                    do(worker, task, hear_one)
                except RuntimeError as error:
                    failures.append(str(error))
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


def do(worker: subprocess.Popen[str], task: Row, hear: Callable[[Row], None]) -> None:
    """Have a process do a task; ``hear`` is called with each outcome. Raises ``RuntimeError`` if it ends early."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    with suppress(BrokenPipeError):
        worker.stdin.write(json.dumps(task) + "\n")
        worker.stdin.flush()
    for row in worker.stdout:
        outcome = json.loads(row)
        if "done" in outcome:
            return
        hear(outcome)
    raise RuntimeError(f"the process that played {task} has ended")


def started() -> subprocess.Popen[str]:
    """A process that plays; it ends with its input, which leaving it as a context manager closes."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "crash.worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
