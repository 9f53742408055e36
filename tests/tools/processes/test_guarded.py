"""Programs under the guard: what a call gives, when it ends, and what it leaves in the chain's own process."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.processes import DEADLINE_S, marked, until, until_async

from chain.errors import ToolError
from chain.tools.processes import fence, guarded
from chain.tools.processes.guarded import ExitStatus, Guard
from chain.tools.processes.probe import probe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guard is for Linux")


class Commands:
    """Commands of one test, all of whose processes are marked."""

    def __init__(self, guard: Guard, folder: Path) -> None:
        self.guard = guard
        self.folder = folder
        self.mark = uuid.uuid4().hex

    async def run(self, command: str, on_output: Callable[[bytes], None] = len, **more: Any) -> ExitStatus:
        env = {"PATH": os.environ["PATH"], "MARK": self.mark, **more.pop("env", {})}
        more.setdefault("timeout_s", DEADLINE_S)
        return await self.guard.run(["bash", "-c", command], cwd=self.folder, env=env, on_output=on_output, **more)

    async def output(self, command: str, **more: Any) -> str:
        got = bytearray()
        await self.run(command, got.extend, **more)
        return os.fsdecode(bytes(got))

    @property
    def left(self) -> list[int]:
        return marked(self.mark)


@pytest.fixture
async def commands(tmp_path: Path) -> AsyncIterator[Commands]:
    guard = Guard()
    yield Commands(guard, tmp_path)
    await guard.close()
    assert not guard.folder.exists()


def everything_refused(folder: Path) -> fence.Fence:
    held = probe()
    writable = [str(folder), *fence.DEVICES] if held.writes else None
    devices = fence.DEVICES if held.devices else None
    return fence.Fence(writable, held.network, held.unix_sockets, held.signals, held.namespace, devices)


FENCED = [False, True]


def box(commands: Commands, is_fenced: bool) -> dict[str, Any]:
    return {"fence": everything_refused(commands.folder) if is_fenced else None}


# ----------------------------------------------------------------------------------------------------- what it gives


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("is_fenced", FENCED)
@pytest.mark.parametrize(("command", "code"), [("true", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15)])
async def test_how_a_program_ended(commands: Commands, command: str, code: int, is_fenced: bool) -> None:
    assert await commands.run(command, **box(commands, is_fenced)) == ExitStatus(code)


async def test_its_output_comes_in_order_and_while_it_runs(commands: Commands) -> None:
    os.mkfifo(commands.folder / "go")
    got = bytearray()
    has_come = trio.Event()

    def on_output(chunk: bytes) -> None:
        got.extend(chunk)
        has_come.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commands.run, "echo one; echo two >&2; read x < go; echo three", on_output)
        await has_come.wait()
        await until_async(lambda: got == b"one\ntwo\n")
        await trio.to_thread.run_sync((commands.folder / "go").write_text, "\n")
    assert got == b"one\ntwo\nthree\n"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("size", [3_000_000, 0, 1])
async def test_a_program_reads_its_input(commands: Commands, size: int) -> None:
    data, got = os.urandom(size), bytearray()
    assert await commands.run("cat", got.extend, input=data) == ExitStatus(0)
    assert got == data


async def test_a_program_need_not_read_its_input(commands: Commands) -> None:
    assert await commands.run("exit 7", input=b"x" * 3_000_000) == ExitStatus(7)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("is_fenced", FENCED)
async def test_where_and_with_what_it_runs(commands: Commands, is_fenced: bool) -> None:
    before = os.umask(0o27)
    try:
        said = await commands.output(
            "pwd; env | grep -a ^MINE; umask; readlink /proc/self/fd/0",
            env={"MINE": "x\udcffy"},
            **box(commands, is_fenced),
        )
    finally:
        os.umask(before)
    rows = said.splitlines()
    assert rows[0] == str(commands.folder)
    assert rows[1:] == ["MINE=x\udcffy", "0027", "/dev/null"]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("is_fenced", FENCED)
async def test_signals_are_as_at_the_start_of_a_program(commands: Commands, is_fenced: bool) -> None:
    rows = (await commands.output("grep -E '^Sig(Blk|Ign)' /proc/self/status", **box(commands, is_fenced))).split()
    settable = sum(1 << number - 1 for number in signal.valid_signals())  # the others are the C library's own
    assert [int(each, 16) & settable for each in rows[1::2]] == [0, 0]


async def test_a_large_request_arrives(commands: Commands) -> None:
    text = "x" * 100_000
    assert len(await commands.output(f"echo {text}")) == 100_001
    many = {f"V{n}": "y" * 10_000 for n in range(60)}
    assert len(await commands.output("env", env=many)) > 600_000


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["/no/such/program"], "No such file or directory"),
        (["bash", "-c", "x" * 200_000], "Argument list too long"),
        (["bash", "-c", "\0"], "null"),
    ],
)
async def test_what_cannot_be_started_is_told(commands: Commands, argv: list[str], says: str) -> None:
    with pytest.raises(ToolError, match=says):
        await commands.guard.run(argv, cwd=commands.folder, env={}, on_output=len)
    with pytest.raises(ToolError, match="No such file or directory"):
        await commands.guard.run(["true"], cwd=commands.folder / "gone", env=dict(os.environ), on_output=len)
    assert await commands.run("true") == ExitStatus(0)


# ------------------------------------------------------------------------------------------------------ when it ends


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("is_fenced", FENCED)
async def test_a_child_that_holds_the_output_does_not_hold_up_the_call(commands: Commands, is_fenced: bool) -> None:
    assert await commands.output("sleep 1000 & setsid sleep 1000 & echo hi", **box(commands, is_fenced)) == "hi\n"
    assert commands.left == []


async def test_a_program_that_closes_its_output_and_lives_ends_its_output(commands: Commands) -> None:
    for _ in range(2):  # by the first keeper, and by one that was forked in advance
        env = {"PATH": os.environ["PATH"], "MARK": commands.mark}
        closes = ["bash", "-c", "exec >&-; sleep 1000"]
        async with commands.guard.open(closes, cwd=commands.folder, env=env) as program:
            assert await program.output.receive_some() == b""
            assert commands.left
    assert commands.left == []


async def test_all_that_was_written_counts(commands: Commands) -> None:
    """Also when the program has ended before anything of it was read."""
    for _ in range(3):
        assert len(await commands.output("head -c 60000 /dev/zero; exit 3")) == 60_000


async def test_time_runs_out_and_the_output_so_far_is_given(
    commands: Commands, mock_clock: trio.testing.MockClock
) -> None:
    got = bytearray()

    def on_output(chunk: bytes) -> None:
        got.extend(chunk)
        mock_clock.jump(60)

    assert await commands.run("echo begun; sleep 1000", on_output, timeout_s=60) == ExitStatus(None)
    assert got == b"begun\n"
    assert commands.left == []


async def test_a_cancelled_call_ends_when_nothing_is_left(commands: Commands) -> None:
    with trio.CancelScope() as scope:
        await commands.run("setsid sleep 1000 & echo up; sleep 1000", lambda chunk: scope.cancel())
    assert scope.cancelled_caught
    assert commands.left == []


async def test_a_call_that_is_cancelled_at_once_starts_nothing(commands: Commands) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await commands.run("touch was-here")
    assert scope.cancelled_caught
    assert await commands.run("test ! -e was-here") == ExitStatus(0)


async def test_an_error_of_the_reader_ends_the_command_too(commands: Commands) -> None:
    def fail(chunk: bytes) -> None:
        raise ValueError("mine")

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="mine")):
        await commands.run("echo up; sleep 1000", fail)
    assert commands.left == []


async def test_eight_at_once(commands: Commands) -> None:
    """They all run at the same time: each waits until all the others have begun."""
    said: dict[int, str] = {}
    for n in range(8):
        os.mkfifo(commands.folder / f"pipe{n}")

    async def one(n: int) -> None:
        # A pipe is opened only when its other end is: each waits for its neighbour, all the way round.
        said[n] = await commands.output(f"(echo {n} > pipe{n}) & read x < pipe{(n + 1) % 8}; wait; echo got $x")

    async with trio.open_nursery() as nursery:
        for n in range(8):
            nursery.start_soon(one, n)
    assert said == {n: f"got {(n + 1) % 8}\n" for n in range(8)}


async def test_much_output_quickly_while_other_tasks_go_on(commands: Commands) -> None:
    size = steps = 0

    def on_output(chunk: bytes) -> None:
        nonlocal size
        assert len(chunk) <= guarded.CHUNK
        size += len(chunk)

    async with trio.open_nursery() as nursery:

        async def others() -> None:
            nonlocal steps
            while True:
                steps += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(others)
        assert await commands.run("head -c 5000000 /dev/zero", on_output) == ExitStatus(0)
        nursery.cancel_scope.cancel()
    assert size == 5_000_000
    assert steps > 100


# -------------------------------------------------------------------------------------------- when its watchers die


async def test_no_other_signal_ends_its_watchers(commands: Commands) -> None:
    watchers = "$PPID $(cut -d ' ' -f 4 /proc/$PPID/stat)"
    kill = f"for n in $(seq 64); do case $n in 9|19|32|33) ;; *) kill -$n {watchers};; esac; done"
    assert await commands.run(f"setsid sleep 1000 & {kill}; exit 3") == ExitStatus(3, 1)
    assert commands.left == []
    assert await commands.run(f"{kill}; true") == ExitStatus(0)


async def guard_of(commands: Commands) -> int:
    return int(await commands.output("cut -d ' ' -f 4 /proc/$PPID/stat"))


async def test_a_guard_that_is_killed_ends_its_commands_and_the_next_has_a_new_one(commands: Commands) -> None:
    guard = await guard_of(commands)
    with pytest.raises(ToolError, match="guard of the commands was killed"):
        await commands.run("setsid sleep 1000 & echo up; sleep 1000", lambda chunk: os.kill(guard, signal.SIGKILL))
    assert commands.left == []
    assert await commands.run("true") == ExitStatus(0)
    assert await guard_of(commands) != guard


@pytest.mark.parametrize("how", ["KILL", "STOP"])
async def test_a_command_that_kills_or_stops_its_keeper_ends_and_no_other_does(commands: Commands, how: str) -> None:
    os.mkfifo(commands.folder / "go")
    said = []

    async def other() -> None:
        said.append(await commands.output("read x < go; echo still here"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        with pytest.raises(ToolError, match="watches over the command was killed"):
            await commands.run(
                f"export MARK=$MARK-mine; exec bash -c 'setsid sleep 1000 & kill -{how} $PPID; sleep 1000'"
            )
        assert marked(f"{commands.mark}-mine") == []
        await trio.to_thread.run_sync((commands.folder / "go").write_text, "\n")
    assert said == ["still here\n"]


async def test_a_command_starts_although_the_keeper_that_waits_for_it_was_killed(commands: Commands) -> None:
    guard = await guard_of(commands)

    def keepers() -> list[int]:
        return [*map(int, Path(f"/proc/{guard}/task/{guard}/children").read_text().split())]

    await until_async(lambda: len(keepers()) == 1)
    os.kill(guard, signal.SIGSTOP)
    (spare,) = keepers()
    os.kill(spare, signal.SIGKILL)
    await until_async(lambda: ") Z " in Path(f"/proc/{spare}/stat").read_text())
    ended: list[ExitStatus] = []

    async def run() -> None:
        ended.append(await commands.run("exit 3"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        os.kill(guard, signal.SIGCONT)
    assert ended == [ExitStatus(3)]


LIMIT_WATCHERS = """
import resource, sys
keeper = int(sys.argv[1])
guard = int(open(f"/proc/{keeper}/stat").read().rpartition(")")[2].split()[1])
for pid in (guard, keeper):
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))
"""


@pytest.mark.parametrize("end", ["exit 3", "kill -9 $PPID; sleep 1000"])
async def test_watchers_that_can_open_nothing_end_it_all_the_same(commands: Commands, end: str) -> None:
    (commands.folder / "limit.py").write_text(LIMIT_WATCHERS)
    os.mkfifo(commands.folder / "up")
    start = "exec 9<>up; (setsid sh -c 'echo >&9; sleep 1000; true' &); read x <&9"
    with pytest.raises(ToolError) if "kill" in end else contextlib.nullcontext():
        assert await commands.run(f"{start}; {sys.executable} limit.py $PPID; {end}") == ExitStatus(3)
    assert commands.left == []


async def test_with_many_descriptors_open_it_runs_as_ever(commands: Commands) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    try:
        with contextlib.ExitStack() as held:
            for _ in range(1_100):
                held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
            assert await commands.run("exit 3") == ExitStatus(3)
            await commands.guard.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


STORM = """
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
int main(void) {
    time_t end = time(0) + 20;
    for (int n = 0; n < 100; n++)
        if (fork() == 0) {
            setsid(); close(1); close(2);
            while (time(0) < end)
                if (fork() > 0) _exit(0);
            close(open("outlived", O_CREAT | O_WRONLY, 0600));
            _exit(0);
        }
    usleep(100000);
    return 3;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="only what is compiled forks fast enough")
async def test_a_storm_of_forks_is_ended(commands: Commands, mock_clock: trio.testing.MockClock) -> None:
    """Each process forks one and ends, so that whoever looks for it finds a dead one. The clock of chain stands."""
    (commands.folder / "storm.c").write_text(STORM)
    assert await commands.run("gcc -O1 storm.c -o storm") == ExitStatus(0)
    assert (await commands.run("exec ./storm")).code == 3  # how many it left at work is a matter of the moment
    assert commands.left == []
    assert not (commands.folder / "outlived").exists()


async def test_what_cannot_be_ended_is_told(commands: Commands, mock_clock: trio.testing.MockClock) -> None:
    up = trio.Event()
    said = bytearray()

    def on_output(chunk: bytes) -> None:
        said.extend(chunk)
        if said.endswith(b"\n"):
            up.set()

    async with trio.open_nursery() as nursery:

        async def call() -> None:
            guard = "guard=$(cut -d ' ' -f 4 /proc/$PPID/stat)"
            command = f"{guard}; kill -STOP $guard $PPID; echo $$ $PPID $guard; sleep 1000"
            with pytest.raises(ToolError, match="some of it may still run"):
                await commands.run(command, on_output, timeout_s=1)

        nursery.start_soon(call)
        await up.wait()
        for seconds in (1, guarded.GONE_S):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(seconds)
    for pid in said.split():
        os.kill(int(pid), signal.SIGCONT)
    until(lambda: not commands.left)  # the clock of trio stands


# ------------------------------------------------------------------------------------------------- what it leaves


async def test_no_descriptor_and_no_process_stays_in_the_chain(commands: Commands) -> None:
    await commands.run("true")
    guard = await guard_of(commands)
    before, of_guard = sorted(os.listdir("/proc/self/fd")), f"/proc/{guard}/fd"
    await until_async(lambda: len(os.listdir(of_guard)) < 12)
    most = len(os.listdir(of_guard))
    for _ in range(3):
        await commands.run("true")
        with pytest.raises(ToolError):
            await commands.guard.run(["/no/such"], cwd=commands.folder, env={}, on_output=len)
        with trio.CancelScope() as scope:
            await commands.run("echo; sleep 1000", lambda chunk: scope.cancel())
    assert sorted(os.listdir("/proc/self/fd")) == before
    await until_async(lambda: len(os.listdir(of_guard)) <= most)


async def test_descriptors_of_the_guard_and_its_other_calls_do_not_reach_a_command(commands: Commands) -> None:
    os.mkfifo(commands.folder / "go")
    async with trio.open_nursery() as nursery:
        up = trio.Event()
        nursery.start_soon(commands.run, "echo; read x < go", lambda chunk: up.set())
        await up.wait()
        assert (await commands.output("ls /proc/$$/fd; true")).split() == ["0", "1", "2"]
        await trio.to_thread.run_sync((commands.folder / "go").write_text, "\n")


async def test_closing_ends_what_runs_and_removes_the_folder(tmp_path: Path) -> None:
    guard = Guard()
    commands = Commands(guard, tmp_path)
    assert not guard.folder.exists()
    async with trio.open_nursery() as nursery:
        up = trio.Event()

        async def call() -> None:
            with pytest.raises(ToolError):
                await commands.run(
                    f"mkdir -p {guard.folder}/a/b; chmod 0 {guard.folder}/a; setsid sleep 1000 & echo; sleep 1000",
                    lambda chunk: up.set(),
                )

        nursery.start_soon(call)
        await up.wait()
        assert guard.folder.stat().st_mode & 0o777 == 0o700
        await guard.close()
    assert commands.left == []
    assert not guard.folder.exists()
    await guard.close()
