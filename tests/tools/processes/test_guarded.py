"""Programs under the guard: their results, their ends, and what they leave in chain's own process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.fences import full_fence
from support.processes import DEADLINE_S, block_until, pids_with, wait_until

from chain.errors import ToolError
from chain.tools.processes import guarded, keeper
from chain.tools.processes.guarded import ExitStatus, Guard

PARENT_OF_KEEPER = "cut -d ' ' -f 4 /proc/$PPID/stat"
"""A command that prints the pid of the guard. The parent of a command, ``$PPID``, is its keeper."""


THEN_TRUE = "; true"
"""Ends a command, so that its shell stays the parent of the last program instead of replacing itself with it."""


def ignore(chunk: bytes) -> None:
    """Drop a chunk of output."""


class Commands:
    """Commands of one test, all of whose processes are marked."""

    def __init__(self, guard: Guard, folder: Path) -> None:
        self.guard = guard
        self.folder = folder
        self.mark = uuid.uuid4().hex

    async def run(self, command: str, on_output: Callable[[bytes], None] = ignore, **more: Any) -> ExitStatus:
        env = {"PATH": os.environ["PATH"], "MARK": self.mark, **more.pop("env", {})}
        more.setdefault("timeout_s", DEADLINE_S)
        return await self.guard.run(["bash", "-c", command], cwd=self.folder, env=env, on_output=on_output, **more)

    async def output(self, command: str, **more: Any) -> str:
        output = bytearray()
        await self.run(command, output.extend, **more)
        return os.fsdecode(bytes(output))

    async def guard_pid(self) -> int:
        return int(await self.output(PARENT_OF_KEEPER))

    async def write_go(self) -> None:
        """Write a line into the pipe ``go``, for which a command waits."""
        await trio.to_thread.run_sync((self.folder / "go").write_text, "\n")

    @property
    def processes(self) -> list[int]:
        return pids_with(self.mark)


@pytest.fixture
def commands(tmp_path: Path, guard: Guard) -> Commands:
    os.mkfifo(tmp_path / "go")
    return Commands(guard, tmp_path)


# ------------------------------------------------------------------------------------------------------------ results


async def test_output_arrives_in_order_while_the_command_runs(commands: Commands) -> None:
    output = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commands.run, "echo one; echo two >&2; read x < go; echo three", output.extend)
        await wait_until(lambda: output == b"one\ntwo\n")
        await commands.write_go()
    assert output == b"one\ntwo\nthree\n"


LARGER_THAN_A_PIPE = 3_000_000
"""Bytes that cannot be written at once to a program that does not read."""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("size", [LARGER_THAN_A_PIPE, 0, 1])
async def test_program_can_read_its_input(commands: Commands, size: int) -> None:
    data, output = os.urandom(size), bytearray()
    assert await commands.run("cat", output.extend, input=data) == ExitStatus(0)
    assert output == data


async def test_program_can_ignore_its_input(commands: Commands) -> None:
    assert await commands.run("exit 7", input=bytes(LARGER_THAN_A_PIPE)) == ExitStatus(7)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("is_fenced", [False, True], ids=["not fenced", "fenced"])
async def test_command_starts_in_a_clean_state(commands: Commands, is_fenced: bool) -> None:
    fence = full_fence(commands.folder) if is_fenced else None
    old_mask = os.umask(0o27)
    try:
        command = (
            "pwd; env | grep -a ^MINE; umask; readlink /proc/self/fd/0; sed -n 's/^Sig[BI].*\\t//p' /proc/self/status"
        )
        output = await commands.output(command, env={"MINE": "x\udcffy"}, fence=fence)
    finally:
        os.umask(old_mask)
    *rows, blocked_signals, ignored_signals = output.splitlines()
    assert rows == [str(commands.folder), "MINE=x\udcffy", "0027", "/dev/null"]
    settable = sum(1 << number - 1 for number in signal.valid_signals())  # a bit each; the others are the C library's
    assert int(blocked_signals, 16) & settable == 0
    assert int(ignored_signals, 16) & settable == 0


async def test_long_command_is_accepted(commands: Commands) -> None:
    word = "x" * 100_000
    assert await commands.output(f"echo {word}") == f"{word}\n"


async def test_large_environment_is_accepted(commands: Commands) -> None:
    env = {f"V{n}": "y" * 10_000 for n in range(60)}
    assert len(await commands.output("env", env=env)) > len(env) * 10_000


UNSTARTABLE_PROGRAMS = {
    "no such program": (["/no/such/program"], "No such file or directory"),
    "too long": (["bash", "-c", "x" * 200_000], "Argument list too long"),
    "NUL": (["bash", "-c", "\0"], "null"),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("argv", "reason"), UNSTARTABLE_PROGRAMS.values(), ids=UNSTARTABLE_PROGRAMS)
async def test_program_that_cannot_start_is_an_error(commands: Commands, argv: list[str], reason: str) -> None:
    with pytest.raises(ToolError, match=reason):
        await commands.guard.run(argv, cwd=commands.folder, env={}, on_output=ignore)
    assert await commands.run("true") == ExitStatus(0)


async def test_missing_working_directory_is_an_error(commands: Commands) -> None:
    with pytest.raises(ToolError, match="No such file or directory"):
        await commands.guard.run(["true"], cwd=commands.folder / "gone", env=dict(os.environ), on_output=ignore)
    assert await commands.run("true") == ExitStatus(0)


async def test_all_output_is_read_after_the_end(commands: Commands) -> None:
    for _ in range(3):
        assert len(await commands.output("head -c 60000 /dev/zero; exit 3")) == 60_000


# --------------------------------------------------------------------------------------------------------------- ends


async def test_closed_output_ends_while_the_program_lives(commands: Commands) -> None:
    env = {"PATH": os.environ["PATH"], "MARK": commands.mark}
    argv = ["bash", "-c", "exec >&-; sleep 1000"]
    for _ in range(2):  # the guard forks the second keeper ahead of its call
        async with commands.guard.open(argv, cwd=commands.folder, env=env) as program:
            assert await program.output.receive_some() == b""
            assert commands.processes
    assert commands.processes == []


async def test_cancelled_call_leaves_no_process(commands: Commands) -> None:
    with trio.CancelScope() as scope:
        await commands.run("setsid sleep 1000 & echo up; sleep 1000", lambda chunk: scope.cancel())
    assert scope.cancelled_caught
    assert commands.processes == []


async def test_call_cancelled_beforehand_starts_nothing(commands: Commands) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await commands.run("touch was-here")
    assert await commands.run("test ! -e was-here") == ExitStatus(0)


async def test_error_in_a_callback_ends_the_command(commands: Commands) -> None:
    def fail(chunk: bytes) -> None:
        raise ValueError("mine")

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="mine")):
        await commands.run("echo up; sleep 1000", fail)
    assert commands.processes == []


# --------------------------------------------------------------------------------------------------- guard and keepers


async def test_guard_and_keeper_survive_all_other_signals(commands: Commands) -> None:
    """All except SIGKILL (9), SIGSTOP (19) and the two signals of the C library (32, 33)."""
    watchers = f"$PPID $({PARENT_OF_KEEPER})"
    kill = f"for n in $(seq 64); do case $n in 9|19|32|33) ;; *) kill -$n {watchers};; esac; done"
    status = await commands.run(f"setsid sleep 1000 & {kill}; exit 3")
    assert status == ExitStatus(3, left_running=1)
    assert commands.processes == []
    assert await commands.run(f"{kill}; exit 0") == ExitStatus(0)


async def test_killed_guard_ends_commands_and_is_replaced(commands: Commands) -> None:
    guard = await commands.guard_pid()
    with pytest.raises(ToolError, match="guard of the commands was killed"):
        await commands.run("setsid sleep 1000 & echo up; sleep 1000", lambda chunk: os.kill(guard, signal.SIGKILL))
    assert commands.processes == []
    assert await commands.run("true") == ExitStatus(0)
    assert await commands.guard_pid() != guard


@pytest.mark.parametrize("signal_name", ["KILL", "STOP"])
async def test_lost_keeper_ends_only_its_command(commands: Commands, signal_name: str) -> None:
    output_of_other = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commands.run, "read x < go; echo still here", output_of_other.extend)
        with pytest.raises(ToolError, match="watches over the command was killed"):
            # exec, so that the mark is in the environment of every process of this command, and $PPID is its keeper
            await commands.run(
                f"export MARK=$MARK-lost; exec bash -c 'setsid sleep 1000 & kill -{signal_name} $PPID; sleep 1000'"
            )
        assert pids_with(f"{commands.mark}-lost") == []
        await commands.write_go()
    assert output_of_other == b"still here\n"


LIMIT_WATCHERS = """
import resource, sys
keeper = int(sys.argv[1])
_state, guard, *_ = open(f"/proc/{keeper}/stat").read().rpartition(")")[2].split()
for pid in (int(guard), keeper):
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))
"""


START_WITHOUT_DESCRIPTORS = f"""
exec 9<>up; (setsid sh -c 'echo >&9; sleep 1000{THEN_TRUE}' &); read x <&9
{sys.executable} limit.py $PPID
"""
"""Starts a process that writes into the pipe ``up``, then forbids guard and keeper to open files, as a command can."""


@pytest.fixture
def limiting_commands(commands: Commands) -> Commands:
    (commands.folder / "limit.py").write_text(LIMIT_WATCHERS)
    os.mkfifo(commands.folder / "up")
    return commands


async def test_keeper_ends_processes_without_new_descriptors(limiting_commands: Commands) -> None:
    # left_running is 0: the keeper cannot count processes without opening files.
    assert await limiting_commands.run(f"{START_WITHOUT_DESCRIPTORS} exit 3") == ExitStatus(3)
    assert limiting_commands.processes == []


async def test_guard_ends_processes_without_new_descriptors(limiting_commands: Commands) -> None:
    with pytest.raises(ToolError):
        await limiting_commands.run(f"{START_WITHOUT_DESCRIPTORS} kill -9 $PPID; sleep 1000")
    assert limiting_commands.processes == []


STORM = """
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
int main(void) {
    time_t end = time(0) + 20;  /* longer than the guard needs to end the storm */
    for (int n = 0; n < 100; n++)
        if (fork() == 0) {
            setsid(); close(1); close(2);
            while (time(0) < end)
                if (fork() > 0) _exit(0);
            close(open("outlived", O_CREAT | O_WRONLY, 0600));
            _exit(0);
        }
    usleep(100000);  /* let the storm begin */
    return 3;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="only a compiled program forks fast enough")
async def test_fork_storm_is_ended(commands: Commands, mock_clock: trio.testing.MockClock) -> None:
    """Each process forks another and exits. The clock of chain does not advance, so it does not give up."""
    (commands.folder / "storm.c").write_text(STORM)
    assert await commands.run("gcc -O1 storm.c -o storm") == ExitStatus(0)
    assert (await commands.run("exec ./storm")).code == 3
    assert commands.processes == []
    assert not (commands.folder / "outlived").exists()


async def test_unkillable_processes_are_reported(commands: Commands, mock_clock: trio.testing.MockClock) -> None:
    pids, timeout_s = bytearray(), 1

    async def stop_watchers() -> None:
        command = f"guard=$({PARENT_OF_KEEPER}); kill -STOP $guard $PPID; echo $$ $PPID $guard; sleep 1000"
        with pytest.raises(ToolError, match="may still be running"):
            await commands.run(command, pids.extend, timeout_s=timeout_s)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_watchers)
        while not pids.endswith(b"\n"):  # without a sleep, which would wait for the mock clock
            await trio.lowlevel.checkpoint()
        for seconds in (timeout_s, guarded.GONE_S):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(seconds)
    for pid in pids.split():  # let the stopped processes end
        os.kill(int(pid), signal.SIGCONT)
    block_until(lambda: not commands.processes)


def test_children_are_found_without_lists_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_CHILDREN", "/no/such/file")
    with subprocess.Popen(["sleep", "1000"]) as process:
        children = keeper.ChildList()
        try:
            assert process.pid in children.read()
            assert process.pid in children.first_children()
        finally:
            process.kill()
            children.close()


# --------------------------------------------------------------------------------------------- chain's own process


MAX_GUARD_DESCRIPTORS = 12
"""An idle guard has 8. Each of the first two calls adds its socket and its output until the guard closes them."""


async def test_calls_leave_no_descriptor_in_either_process(commands: Commands) -> None:
    await commands.run("true")
    guard = await commands.guard_pid()

    def descriptors(process: int) -> list[str]:
        return sorted(os.listdir(f"/proc/{process}/fd"))

    before = descriptors(os.getpid())
    await wait_until(lambda: len(descriptors(guard)) < MAX_GUARD_DESCRIPTORS)
    guard_before = descriptors(guard)
    for _ in range(3):
        await commands.run("true")
        with pytest.raises(ToolError):
            await commands.guard.run(["/no/such"], cwd=commands.folder, env={}, on_output=ignore)
        with trio.CancelScope() as scope:
            await commands.run("echo; sleep 1000", lambda chunk: scope.cancel())
    assert descriptors(os.getpid()) == before
    await wait_until(lambda: len(descriptors(guard)) <= len(guard_before))


async def test_command_inherits_only_its_own_descriptors(commands: Commands) -> None:
    async with trio.open_nursery() as nursery:
        has_started = trio.Event()
        nursery.start_soon(commands.run, "echo; read x < go", lambda chunk: has_started.set())
        await has_started.wait()
        assert (await commands.output(f"ls /proc/$$/fd{THEN_TRUE}")).split() == ["0", "1", "2"]
        await commands.write_go()


async def test_closing_ends_commands_and_removes_the_folder(commands: Commands) -> None:
    folder, has_started = commands.guard.folder, trio.Event()
    assert not folder.exists()

    async def run_until_closed() -> None:
        command = f"mkdir -p {folder}/a/b; chmod 0 {folder}/a; setsid sleep 1000 & echo; sleep 1000"
        with pytest.raises(ToolError):
            await commands.run(command, lambda chunk: has_started.set())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_until_closed)
        await has_started.wait()
        assert folder.stat().st_mode & 0o777 == 0o700
        await commands.guard.close()
    assert commands.processes == []
    assert not folder.exists()
