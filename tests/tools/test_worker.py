"""Programs of our own: what they are given and give back, and that they end with whoever started them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from support.house import ROOT
from support.processes import marked, until, until_async

from chain.tools.worker import run_worker

ECHO = "import sys; from chain.tools import lifeline; data = lifeline.received(); sys.stdout.buffer.write(data[::-1])"
STUCK = """
import re, sys
from chain.tools import lifeline
lifeline.received()
re.match("(a+)+$", "a" * 64 + "b")  # in C, with the interpreter's lock, for longer than anybody waits
"""


def program(folder: Path, text: str) -> str:
    file = folder / "program.py"
    file.write_text(f"import sys; sys.path.append({str(ROOT)!r})\n{text}")
    return str(file)


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
async def test_a_program_gets_its_input_and_gives_its_output(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    assert await run_worker(program(tmp_path, ECHO), input=data) == (0, data[::-1])


async def test_one_that_reads_nothing_or_fails_is_told_by_its_code(tmp_path: Path) -> None:
    big = b"x" * 3_000_000
    assert await run_worker(program(tmp_path, "sys.exit(7)"), input=big) == (7, b"")
    assert (await run_worker(program(tmp_path, "import os; os.kill(os.getpid(), 9)"), input=big))[0] == -9


async def test_a_cancelled_caller_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIN_TEST_MARK", mark := f"worker-{os.getpid()}-cancelled")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_worker(program(tmp_path, STUCK), input=b"x"))
        await until_async(lambda: len(marked(mark)) > 0)
        nursery.cancel_scope.cancel()
    assert not [pid for pid in marked(mark) if pid != os.getpid()]


def test_a_search_that_would_never_end_ends_with_a_chain_that_is_killed(tmp_path: Path) -> None:
    """Also in the middle of an expression, where Python runs nothing else."""
    (tmp_path / "a.txt").write_text("a" * 64 + "b\n")
    rules = "rules: [{when: {step: 1}, tools: [{name: search_files, input: {pattern: '(a+)+$$', path: '.'}}]}]"
    (tmp_path / "rules.yaml").write_text(rules)
    (tmp_path / "mine.yaml").write_text(
        "models: {definitions: {mine: {provider: scripted, script: rules.yaml}}}\n"
        "chains: {default: {model: mine, tools: [files]}}\n"
    )
    mark = f"worker-{os.getpid()}-killed"
    environ = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "CHAIN_TEST_MARK": mark}
    command = [sys.executable, "-m", "cli", "-p", "search", "--config", "mine.yaml"]
    # As whoever starts it may have it: ignored signals are inherited.
    command = [
        sys.executable,
        "-c",
        "import os, signal, sys; signal.signal(signal.SIGIO, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])",
        *command,
    ]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=-3, stderr=-3, stdin=-3) as process:
        until(lambda: any(is_search(pid) for pid in marked(mark)))
        process.send_signal(signal.SIGKILL)
    until(lambda: not marked(mark))


def is_search(pid: int) -> bool:
    """Whether a process is at the search itself: it has all of its input, and works."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = re.search(r"^State:\s+(\w)", Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return False
    return b"grep.py" in command and state is not None and state[1] == "R"
