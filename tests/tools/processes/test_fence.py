"""The fence: what it refuses to a command, and what a command can still do."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support import reach
from support.fences import PROTECTIONS, USERS, full_fence, skip_without
from support.processes import DEADLINE_S, run_python
from support.project import ROOT
from support.sockets import bind

from chain.tools.processes import fence
from chain.tools.processes.fence import Fence
from chain.tools.processes.guarded import Guard


class FencedWorkspace:
    """A workspace with a fence, and a directory outside.

    A command finds the directory in ``$OUT``, the pid of chain in ``$CHAIN``, and a Python in ``$PYTHON``.
    """

    def __init__(self, folder: Path, guard: Guard) -> None:
        self.folder, self.outside, self.guard = folder / "work", folder / "outside", guard
        self.folder.mkdir()
        self.outside.mkdir()
        (self.outside / "kept").write_text("kept\n")
        self.fence = full_fence(self.folder, guard.folder, Path("/no/such/folder"))

    async def run(self, command: str, **changes: object) -> tuple[int | None, str]:
        """Run a command in the fence with these changes. Return its exit code and output."""
        output = bytearray()
        own = {"OUT": str(self.outside), "CHAIN": str(os.getpid()), "PYTHON": sys.executable}
        usual = {name: os.environ.get(name, "") for name in ("PATH", "PYTHONPATH")}
        status = await self.guard.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env={**usual, **own, "HOME": str(self.outside), "TMPDIR": str(self.guard.folder)},
            on_output=output.extend,
            timeout_s=DEADLINE_S,
            fence=Fence(**{**self.fence._asdict(), **changes}),
        )
        return status.code, os.fsdecode(bytes(output))


@pytest.fixture
def workspace(tmp_path: Path, guard: Guard) -> FencedWorkspace:
    return FencedWorkspace(tmp_path, guard)


# -------------------------------------------------------------------------------------------------- what is refused


@skip_without("writes")
@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(
    "command",
    [
        "echo x > $OUT/new",
        "echo x >> $OUT/kept",
        ": > $OUT/kept",
        "truncate -s 0 $OUT/kept",
        "rm -f $OUT/kept",
        "mv $OUT/kept .",
        "mkdir $OUT/folder",
        "ln -s x $OUT/link",
        "mkfifo $OUT/pipe",
        "touch mine && mv mine $OUT/",
        "touch mine && ln mine $OUT/mine",
        "ln $OUT/kept mine && echo x > mine",
        "ln -s $OUT/kept link && echo x > link",
        "mknod disk b 259 0 && exec 3<>disk",  # often the first NVMe disk
        "mount -t tmpfs none $OUT",
        "unshare -Urm mount -t tmpfs none $OUT && touch $OUT/new",
    ],
)
async def test_writes_outside_are_refused(workspace: FencedWorkspace, command: str) -> None:
    for namespace in {False, PROTECTIONS.namespace}:  # also in a namespace, if this machine supports one
        code, output = await workspace.run(command, namespace=namespace)
        assert code, output
        assert {path.name: path.read_text() for path in workspace.outside.iterdir()} == {"kept": "kept\n"}


OPEN_ALL_SOCKETS = """
import ctypes, socket, sys
for family in range(50):  # the kernel has fewer
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            socket.socket(family, kind)
        except PermissionError:
            continue
        raise SystemExit(f"family {family}, kind {kind}")
libc = ctypes.CDLL(None, use_errno=True)
io_uring_setup, EACCES, ENOSYS = 425, 13, 38
parameters = ctypes.create_string_buffer(120)
assert libc.syscall(io_uring_setup, 8, parameters) == -1 and ctypes.get_errno() in (EACCES, ENOSYS), "io_uring"
x32_socket = 0x40000000 + 41  # the call socket of the x32 ABI
assert libc.syscall(x32_socket, 1, 1, 0) == -1, "x32"
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK):
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    one.send(b"pair")
    print(other.recv(4))
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC):
    try:
        one, other = socket.socketpair(socket.AF_UNIX, kind)
    except PermissionError:
        continue
    one.sendto(b"out", sys.argv[1])
"""
"""Fails if a socket can be opened. Prints what two pairs of streams transmit; a datagram of a pair could leave."""


@skip_without("network")
async def test_sockets_are_refused_except_stream_pairs(workspace: FencedWorkspace) -> None:
    (workspace.folder / "sockets.py").write_text(OPEN_ALL_SOCKETS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outside:
        bind(outside, workspace.folder / "outside")
        outside.setblocking(False)
        assert await workspace.run("$PYTHON sockets.py outside") == (0, "b'pair'\n" * 2)
        with pytest.raises(BlockingIOError):  # nothing has arrived
            outside.recv(3)


OPEN_UNIX_SOCKETS = """
import ctypes, os, socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
socket_call = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
EACCES = 13
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
    for family in (socket.AF_UNIX, socket.AF_UNIX | 1 << 32, socket.AF_UNIX | 1 << 63):  # the kernel ignores high bits
        result = libc.syscall(socket_call, ctypes.c_ulong(family), kind, 0)
        assert result == -1 and ctypes.get_errno() == EACCES, (family, kind)
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    try:
        socket.socketpair(socket.AF_UNIX, kind)
    except PermissionError:
        continue
    raise SystemExit(f"a pair of kind {kind}")
"""


@skip_without("unix_sockets")
async def test_unix_sockets_are_refused_with_the_network_allowed(workspace: FencedWorkspace) -> None:
    (workspace.folder / "services.py").write_text(OPEN_UNIX_SOCKETS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        _host, port = server.getsockname()
        assert await workspace.run(f"$PYTHON services.py {port}", network=False) == (0, "")
        code, _ = await workspace.run(f"$PYTHON services.py {port}", network=False, unix_sockets=False)
        assert code, "without the restriction the script fails"


@skip_without("writes", "unix_sockets")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read packets of others")
async def test_root_cannot_read_packets_of_others(workspace: FencedWorkspace) -> None:
    command = "$PYTHON -c 'import socket; socket.socket(socket.AF_INET); socket.socket(socket.AF_PACKET)'"
    code, output = await workspace.run(command, network=False)
    assert code == 1
    assert output.endswith("\nPermissionError: [Errno 1] Operation not permitted\n")


CHANGE_SUBVOLUMES = """
import fcntl, sys
of_subvolumes = (0x5000940E, 0x50009418, 0x50009401, 0x50009417, 0x5000940F, 0x5000943F, 0x4008941A)  # BTRFS_IOC_*
of_terminal = 0x5401  # TCGETS
for request in (*of_subvolumes, of_terminal):
    try:
        fcntl.ioctl(open(sys.argv[1]), request, bytes(8))  # the filter checks the request, so any file will do
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.slow
@skip_without("writes", "unix_sockets")
@pytest.mark.parametrize("network", [False, True], ids=["network allowed", "network refused"])
async def test_btrfs_subvolumes_cannot_be_changed(workspace: FencedWorkspace, network: bool) -> None:
    (workspace.folder / "subvolumes.py").write_text(CHANGE_SUBVOLUMES)
    code, output = await workspace.run("$PYTHON subvolumes.py $OUT/kept", network=network)
    assert code == 0
    *of_subvolumes, of_terminal = output.split()
    assert of_subvolumes == ["PermissionError"] * 7
    assert of_terminal == "OSError", "the filter allows other requests, which an ordinary file does not support"


@skip_without("signals")
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("command", ["kill -0 $CHAIN", "kill -TERM $CHAIN", "kill -9 $PPID; kill -0 $PPID"])
async def test_signals_to_outside_processes_are_refused(workspace: FencedWorkspace, command: str) -> None:
    code, output = await workspace.run(command, namespace=False)
    assert code
    assert "not permitted" in output


@skip_without("signals")
async def test_signal_to_all_reaches_only_own_processes(workspace: FencedWorkspace) -> None:
    """If it reached others too, it would kill this test."""
    code, _ = await workspace.run("sleep 1000 & trap '' TERM; kill -TERM -1; wait; echo", namespace=False)
    assert code == 0


@skip_without("writes")
async def test_environments_of_chain_and_guard_are_unreadable(workspace: FencedWorkspace) -> None:
    """Chain's has the keys, which commands do not get."""
    code, output = await workspace.run("cat /proc/$CHAIN/environ /proc/$PPID/environ", namespace=False)
    assert code
    assert output.count("Permission denied") == 2


@skip_without("namespace")
async def test_namespace_shows_only_own_processes(workspace: FencedWorkspace) -> None:
    code, output = await workspace.run('ls -d /proc/[0-9]*; test /proc/self/exe -ef /proc/$$/exe && echo "$$"')
    *processes, own_pid = output.split()
    assert (code, own_pid) == (0, "2")
    assert len(processes) <= 4, "the namespace has only its init, bash and what bash has started"


@pytest.mark.parametrize("signals", [False, True], ids=["writes", "writes and signals"])
def test_unsupported_restriction_is_an_error(signals: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "_landlock_abi", lambda: fence.WRITES_ABI - 1)
    with pytest.raises(OSError, match="does not support this restriction"):
        fence.rules([], signals=signals)


# ------------------------------------------------------------------------------- other processes, terminals, devices

REACHED_WITHOUT_FENCE = {
    *("read the terminal", "SIGIO", "kill of other", "SIGCONT of other", "tgkill of other"),
    *("pidfd_send_signal of other", "prlimit, read of other", "prlimit, set of other", "prlimit of more bits of other"),
    *("setpriority of other", "setpriority of a group of other", "sched_setaffinity of other"),
    *("sched_setscheduler of other", "sched_setparam of other", "sched_setattr of other"),
    *("ioprio_set of other", "ioprio_set of a group of other"),
}
"""Ways that only a fence refuses. If they failed without one, their refusal in a fence would show nothing."""
NO_EFFECT = {"setpriority of a user", "ioprio_set of a user", "process_vm_readv of other", "process_vm_writev of other"}
"""Ways that have no effect without a fence, so they must be refused and not fail for another reason."""
ALLOWED = {"chmod", "utime", "setxattr", "lock"}
"""Effects outside that no fence refuses; the docstring of ``fence`` lists them."""
ALLOWED_WITHOUT_NAMESPACE = {*ALLOWED, "shmget", "semget"}
REFUSALS = {"EPERM", "EACCES"}
ABSENT = {"ENOENT", "ENODEV", "ENXIO", "ENOSYS", "EINVAL", "ESRCH"}
"""Errors of what does not exist. For many files and devices it depends on the machine which error occurs."""


@cache
def outcomes(user: int) -> dict[str, dict[str, str]]:
    """Return the outcome of each way to reach something, for each fence (``support.reach``)."""
    by_fence: dict[str, dict[str, str]] = json.loads(run_python(user, reach.__file__))
    return by_fence


def reached(outcome_by_way: dict[str, str]) -> set[str]:
    return {way for way, outcome in outcome_by_way.items() if outcome == "reached"}


@pytest.mark.slow
@pytest.mark.sampled(every=10)
@pytest.mark.skipif(not all(PROTECTIONS._replace(namespace=True)), reason="this machine cannot refuse all of it")
@pytest.mark.parametrize("user", USERS, ids=lambda user: f"user {user}")
@pytest.mark.parametrize(
    ("fence_name", "allowed"),
    [
        pytest.param("full", ALLOWED_WITHOUT_NAMESPACE, id="full fence"),
        pytest.param("network", ALLOWED_WITHOUT_NAMESPACE, id="fence with network"),
        pytest.param("namespace", ALLOWED, id="fence with a namespace", marks=skip_without("namespace")),
    ],
)
async def test_other_processes_terminals_and_devices_are_unreachable(
    user: int, fence_name: str, allowed: set[str]
) -> None:
    outcome_by_way = outcomes(user)[fence_name]
    assert reached(outcomes(user)["open"]) >= REACHED_WITHOUT_FENCE
    assert reached(outcome_by_way) == allowed
    expected = {"reached", *REFUSALS, *ABSENT}
    # The program in the fence cannot see whether SIGIO arrives.
    assert {way for way, outcome in outcome_by_way.items() if outcome not in expected} <= {"SIGIO"}
    if fence_name != "namespace":
        assert {outcome_by_way[way] for way in NO_EFFECT} <= REFUSALS


@pytest.mark.slow
@skip_without("devices")
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("user", USERS, ids=lambda user: f"user {user}")
async def test_devices_are_refused_in_writable_folders(user: int) -> None:
    devices = {way for way in outcomes(user)["open"] if "terminal" in way or "/dev/" in way}
    assert reached(outcomes(user)["devices alone"]) & devices == set()
    assert len(devices) > 40, "the ways to devices were not recognized by their names"


OPEN_MOUNTED_DEVICES = """
import os, sys
from chain.tools.processes import fence
fence.enter(fence.Fence(devices=fence.DEVICES))
for name in ("a dev/pts/ptmx", "a dev/tty0"):
    if os.path.exists(name):
        try:
            os.open(name, os.O_RDONLY)
        except PermissionError:
            continue
        print("opened", name)
print(repr(open("over/masked").read()))
open("over/new", "w").write("x")
"""


@skip_without("devices")
def test_devices_mounted_elsewhere_are_refused_too(tmp_path: Path) -> None:
    """A file over which ``/dev/null`` is mounted, as in containers, can still be read."""
    for folder in ("a dev", "over"):
        (tmp_path / folder).mkdir()
    (tmp_path / "over/masked").touch()
    mounts = "mount --rbind /dev 'a dev' && mount --bind /dev/null over/masked"
    unshare = ["unshare", "-m" if os.geteuid() == 0 else "-Urm", "sh", "-c"]
    if subprocess.run([*unshare, mounts], cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    process = subprocess.run(
        [*unshare, f'{mounts} && exec "$0" -c "$1"', sys.executable, OPEN_MOUNTED_DEVICES],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        text=True,
    )
    assert (process.stdout, process.stderr) == ("''\n", "")


# ------------------------------------------------------------------------------------------------------- what works


USUAL_WORK = {
    "files": "mkdir -p a/b && echo x > a/b/c && mv a/b/c a/d && ln a/d e && rm -r a && truncate -s 0 e && cat e",
    "moves between its folders": "echo x > $TMPDIR/x && mv $TMPDIR/x . && mv x $TMPDIR/y",
    "devices": "echo x > /dev/null && head -c 4 /dev/urandom > /dev/zero && echo > /dev/stderr && echo > /dev/fd/1",
    "here-documents": "cat <<X\n$(seq 20000)\nX",
    "process substitution": "diff <(seq 3) <(seq 3) && seq 3 | tee >(cat > seen) >/dev/null && cat <<< x",
    "pipes and jobs": "mkfifo p; (echo hi > p) & cat p; wait; sleep 1000 & kill $!; wait $!; test $? = 143",
    "git": "git init -q . && echo x > f && git add f && git -c user.name=a -c user.email=b@c commit -qm m; git status",
    "gcc": "printf 'int main(void){return 0;}' > m.c && gcc m.c -o m && ./m",
    "pytest": 'printf \'def test(tmp_path): (tmp_path / "x").write_text("")\' > test_x.py && '
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $PYTHON -m pytest -q test_x.py",
    "a pool": "$PYTHON -c 'import multiprocessing as m; print(m.get_context(\"fork\").Pool(2).map(abs, [-1, 2]))'",
    "shared memory": "$PYTHON -c 'from multiprocessing.shared_memory import SharedMemory as M; "
    "m = M(create=True, size=9); m.close(); m.unlink()'",
    "an event loop": "$PYTHON -c 'import asyncio; asyncio.run(asyncio.create_subprocess_exec(\"true\"))'",
    "temporary files": "$PYTHON -c 'import tempfile; tempfile.NamedTemporaryFile(); tempfile.mkdtemp()'",
    "names of users": "id && ls -l /",
}


@pytest.mark.sampled(every=14)
@pytest.mark.parametrize("name", USUAL_WORK)
@pytest.mark.parametrize("namespace", [False, True], ids=["no namespace", "namespace"])
async def test_usual_work_succeeds_in_the_fence(workspace: FencedWorkspace, name: str, namespace: bool) -> None:
    if name in ("git", "gcc") and not shutil.which(name):
        pytest.skip(f"no {name} here")
    code, output = await workspace.run(USUAL_WORK[name], namespace=namespace and PROTECTIONS.namespace)
    assert code == 0, output
