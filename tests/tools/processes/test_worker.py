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

from chain.tools.processes.probe import probe
from chain.tools.processes.worker import run_worker

ECHO = """
import sys
from chain.tools.processes import lifeline
sys.stdout.buffer.write(lifeline.received()[::-1])
"""
STUCK = """
import re, sys
from chain.tools.processes import lifeline
lifeline.received()
re.match("(a+)+$", "a" * 64 + "b")  # in C, with the interpreter's lock, for longer than anybody waits
"""


def program(folder: Path, text: str) -> str:
    file = folder / "program.py"
    file.write_text(f"import sys; sys.path.append({str(ROOT)!r})\n{text}")
    return str(file)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("size", [3_000_000, 0, 1])
async def test_a_program_gets_its_input_and_gives_its_output(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    assert await run_worker(program(tmp_path, ECHO), input=data) == (0, data[::-1])


async def test_one_that_reads_nothing_or_fails_is_told_by_its_code(tmp_path: Path) -> None:
    big = b"x" * 3_000_000
    assert await run_worker(program(tmp_path, "sys.exit(7)"), input=big) == (7, b"")
    assert (await run_worker(program(tmp_path, "import os; os.kill(os.getpid(), 9)"), input=big))[0] == -9


ATTEMPTS = """
import os, socket, sys
from chain.tools.processes import lifeline
kept, parent = sys.argv[1], os.getppid()
attempts = {
    "write": lambda: open(kept, "w"),
    "connect": lambda: socket.socket(),
    "signal": lambda: os.kill(parent, 0),
    "keys": lambda: open(f"/proc/{parent}/environ").read(),
}
lifeline.received()
for name, attempt in attempts.items():
    try:
        attempt()
    except PermissionError:
        continue
    print(name)
print(*sorted(os.environ))
"""


async def test_it_gets_no_key_and_is_fenced_in_once_it_has_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sesame")
    (tmp_path / "kept").write_text("kept")
    code, written = await run_worker(program(tmp_path, ATTEMPTS), str(tmp_path / "kept"), input=b"")
    *reached, environ = written.decode().splitlines()
    held = probe()
    may = {"write": held.writes, "connect": held.network, "signal": held.signals, "keys": held.writes}
    assert (code, reached) == (0, [name for name, is_refused in may.items() if not is_refused])
    assert (tmp_path / "kept").read_text() == ("kept" if held.writes else "")
    assert set(environ.split()) <= {"PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR"}


async def test_a_cancelled_caller_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", mark := str(tmp_path))  # one of the few variables that it gets
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_worker(program(tmp_path, STUCK), input=b"x"))
        await until_async(lambda: len(marked(mark)) > 0)
        nursery.cancel_scope.cancel()
    assert not [pid for pid in marked(mark) if pid != os.getpid()]


STARTER = """
import signal, sys, trio
from chain.tools.processes.worker import run_worker
signal.signal(signal.SIGIO, signal.SIG_IGN)  # as whoever starts chain may have it: ignored signals are inherited
trio.run(lambda: run_worker(sys.argv[1], input=b"x"))
"""


def test_a_program_that_is_stuck_ends_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    """Also in the middle of an expression, where Python runs nothing else."""
    mark = str(tmp_path)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": mark}
    command = [sys.executable, "-c", STARTER, program(tmp_path, STUCK)]
    with subprocess.Popen(command, env=environ, stdout=-3, stderr=-3, stdin=-3) as process:
        until(lambda: any(is_stuck(pid) for pid in marked(mark)))
        process.send_signal(signal.SIGKILL)
    until(lambda: not marked(mark))


def is_stuck(pid: int) -> bool:
    """Whether a process is the program, and works: it has all of its input, then."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = re.search(r"^State:\s+(\w)", Path(f"/proc/{pid}/status").read_text(), re.M)
        handles_sigio = re.search(r"^SigIgn:\s+(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return False
    is_ready = handles_sigio is not None and not int(handles_sigio[1], 16) >> signal.SIGIO - 1 & 1
    return b"-S" in command and is_ready and state is not None and state[1] == "R"
