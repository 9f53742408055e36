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
from support.fences import PROTECTIONS, USERS, full_fence, needs
from support.house import ROOT
from support.processes import DEADLINE_S, run_python
from support.sockets import bind

from chain.tools.processes import fence
from chain.tools.processes.fence import Fence
from chain.tools.processes.guarded import Guard


class Yard:
    """A workspace with a fence, and a directory outside."""

    def __init__(self, folder: Path, guard: Guard) -> None:
        self.work, self.outside, self.guard = folder / "work", folder / "outside", guard
        self.work.mkdir()
        self.outside.mkdir()
        (self.outside / "kept").write_text("kept\n")
        self.fence = full_fence(self.work, guard.folder, Path("/no/such/folder"))

    async def run(self, command: str, **changes: object) -> tuple[int | None, str]:
        """Run a command in the fence with these changes. Return its exit code and output."""
        got = bytearray()
        env = {"PATH": os.environ["PATH"], "HOME": str(self.outside), "TMPDIR": str(self.guard.folder)}
        env |= {"PYTHON": sys.executable, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        ended = await self.guard.run(
            ["bash", "-c", command],
            cwd=self.work,
            env={**env, "OUT": str(self.outside), "OURS": str(os.getpid())},
            on_output=got.extend,
            timeout_s=DEADLINE_S,
            fence=Fence(**{**self.fence._asdict(), **changes}),
        )
        return ended.code, os.fsdecode(bytes(got))

    @property
    def outside_files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.outside.iterdir()}


@pytest.fixture
def yard(tmp_path: Path, guard: Guard) -> Yard:
    return Yard(tmp_path, guard)


# -------------------------------------------------------------------------------------------------- what is refused


@needs("writes")
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
        "mknod disk b 259 0 && exec 3<>disk",
        "mount -t tmpfs none $OUT",
        "unshare -Urm mount -t tmpfs none $OUT && touch $OUT/new",
    ],
)
async def test_writes_outside_are_refused(yard: Yard, command: str) -> None:
    for namespace in {False, PROTECTIONS.namespace}:
        code, said = await yard.run(command, namespace=namespace)
        assert code, said
        assert yard.outside_files == {"kept": "kept\n"}


SOCKETS = """
import ctypes, socket, sys
for family in range(50):
    for kind in (1, 2, 3):
        try:
            socket.socket(family, kind)
        except PermissionError:
            continue
        raise SystemExit(f"family {family}, kind {kind}")
libc = ctypes.CDLL(None, use_errno=True)
ring = ctypes.create_string_buffer(120)
assert libc.syscall(425, 8, ring) == -1 and ctypes.get_errno() in (13, 38), "io_uring"
assert libc.syscall(0x40000000 + 41, 1, 1, 0) == -1, "x32"
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


@needs("network")
async def test_sockets_are_refused_except_stream_pairs(yard: Yard) -> None:
    (yard.work / "sockets.py").write_text(SOCKETS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outside:
        bind(outside, yard.work / "outside")
        outside.setblocking(False)
        assert await yard.run("$PYTHON sockets.py outside") == (0, "b'pair'\n" * 2)
        with pytest.raises(BlockingIOError):
            outside.recv(3)


SERVICES = """
import ctypes, os, socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
number = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
for kind in (1, 2, 3, 5):
    for family in (1, 1 | 1 << 32, 1 | 1 << 63):
        assert libc.syscall(number, ctypes.c_ulong(family), kind, 0) == -1 and ctypes.get_errno() == 13, (family, kind)
for kind in (2, 3):
    try:
        socket.socketpair(socket.AF_UNIX, kind)
    except PermissionError:
        continue
    raise SystemExit(f"a pair of kind {kind}")
"""


@needs("unix_sockets")
async def test_unix_sockets_are_refused_with_the_network_allowed(yard: Yard) -> None:
    (yard.work / "services.py").write_text(SERVICES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = f"$PYTHON services.py {server.getsockname()[1]}"
        assert await yard.run(command, network=False) == (0, "")
        code, _ = await yard.run(command, network=False, unix_sockets=False)
        assert code, "without the restriction the script fails"


@needs("writes", "unix_sockets")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read packets of others")
async def test_root_cannot_read_packets_of_others(yard: Yard) -> None:
    command = "$PYTHON -c 'import socket; socket.socket(socket.AF_INET); socket.socket(socket.AF_PACKET)'"
    code, said = await yard.run(command, network=False)
    assert (code, said.splitlines()[-1]) == (1, "PermissionError: [Errno 1] Operation not permitted")


SUBVOLUMES = """
import fcntl, sys
for request in (0x5000940E, 0x50009418, 0x50009401, 0x50009417, 0x5000940F, 0x5000943F, 0x4008941A, 0x5401):
    try:
        fcntl.ioctl(open(sys.argv[1]), request, bytes(8))  # the filter checks the request, so any file will do
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.slow
@needs("writes", "unix_sockets")
@pytest.mark.parametrize("network", [False, True])
async def test_btrfs_subvolumes_cannot_be_changed(yard: Yard, network: bool) -> None:
    (yard.work / "subvolumes.py").write_text(SUBVOLUMES)
    code, text = await yard.run("$PYTHON subvolumes.py $OUT/kept", network=network)
    assert (code, text.split()) == (0, ["PermissionError"] * 7 + ["OSError"]), "the last request is a terminal's"


@needs("signals")
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("command", ["kill -0 $OURS", "kill -TERM $OURS", "kill -9 $PPID; kill -0 $PPID"])
async def test_signals_to_outside_processes_are_refused(yard: Yard, command: str) -> None:
    code, said = await yard.run(command, namespace=False)
    assert code
    assert "not permitted" in said


@needs("signals")
async def test_a_signal_to_all_reaches_own_processes(yard: Yard) -> None:
    """If it reached others too, it would kill this test."""
    code, _ = await yard.run("sleep 1000 & trap '' TERM; kill -TERM -1; wait; echo", namespace=False)
    assert code == 0


@needs("writes")
async def test_environments_of_chain_and_guard_are_unreadable(yard: Yard) -> None:
    """Chain's has the keys, which commands do not get."""
    code, said = await yard.run("cat /proc/$OURS/environ /proc/$PPID/environ", namespace=False)
    assert code
    assert said.count("Permission denied") == 2


@needs("namespace")
async def test_a_namespace_shows_only_own_processes(yard: Yard) -> None:
    code, said = await yard.run('ls -d /proc/[0-9]*; test /proc/self/exe -ef /proc/$$/exe; echo "$$"')
    *seen, own = said.split()
    assert (code, own) == (0, "2")
    assert len(seen) <= 4


@pytest.mark.parametrize("signals", [False, True])
def test_an_unsupported_restriction_is_an_error(signals: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "_landlock_abi", lambda: 2)
    with pytest.raises(OSError, match="does not support this restriction"):
        fence.rules([], signals=signals)


# ------------------------------------------------------------------------------- other processes, terminals, devices

SURE = (
    *("kill", "SIGCONT", "tgkill", "pidfd_send_signal", "prlimit, read", "prlimit, set", "prlimit of more bits"),
    *("setpriority", "setpriority of a group", "sched_setaffinity", "sched_setscheduler", "sched_setparam"),
    *("sched_setattr", "ioprio_set", "ioprio_set of a group"),
)
"""Ways that only a fence refuses. They must succeed without one, or the table shows nothing."""
NO_EFFECT = {"setpriority of a user", "ioprio_set of a user", "process_vm_readv of other", "process_vm_writev of other"}
"""Ways that have no effect without a fence, so they must be refused and not fail for another reason."""
LEFT = {"chmod", "utime", "setxattr", "lock"}
"""Effects outside that no fence refuses; the docstring of ``fence`` lists them."""
LEFT_WITHOUT_NAMESPACE = {*LEFT, "shmget", "semget"}
ABSENT = {"EPERM", "EACCES", "ENOENT", "ENODEV", "ENXIO", "ENOSYS", "EINVAL", "ESRCH"}
"""Errors of what is refused or does not exist. Which one depends on the machine for many files and devices."""


@cache
def reached(user: int) -> dict[str, dict[str, str]]:
    """Return the outcome of each way to reach something, for each fence (``support.reach``)."""
    outcomes: dict[str, dict[str, str]] = json.loads(run_python(user, reach.__file__))
    return outcomes


@pytest.mark.slow
@pytest.mark.sampled(every=10)
@pytest.mark.skipif(not all(PROTECTIONS._replace(namespace=True)), reason="this machine cannot refuse all of it")
@pytest.mark.parametrize("user", USERS, ids=lambda user: f"user {user}")
@pytest.mark.parametrize(
    ("kind", "left"),
    [
        ("refused", LEFT_WITHOUT_NAMESPACE),
        ("network", LEFT_WITHOUT_NAMESPACE),
        pytest.param("namespace", LEFT, marks=needs("namespace")),
    ],
)
async def test_other_processes_terminals_and_devices_are_unreachable(user: int, kind: str, left: set[str]) -> None:
    without, found = reached(user)["open"], reached(user)[kind]
    assert [name for name in SURE if without[f"{name} of other"] != "reached"] == []
    assert without["read the terminal"] == without["SIGIO"] == "reached"
    assert {name for name, end in found.items() if end == "reached"} == left
    assert {name for name, end in found.items() if end not in {*ABSENT, "reached"}} <= {"SIGIO"}
    if kind != "namespace":
        assert {found[name] for name in NO_EFFECT} <= {"EPERM", "EACCES"}


@pytest.mark.slow
@needs("devices")
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("user", USERS, ids=lambda user: f"user {user}")
async def test_devices_are_refused_in_writable_folders(user: int) -> None:
    devices = {name for name in reached(user)["open"] if "terminal" in name or "/dev/" in name}
    assert {name for name in devices if reached(user)["devices alone"][name] == "reached"} == set()
    assert len(devices) > 40


MOUNTED_AGAIN = """
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


@needs("devices")
def test_devices_mounted_elsewhere_are_refused_too(tmp_path: Path) -> None:
    """A file over which ``/dev/null`` is mounted, as in containers, can still be read."""
    for folder in ("a dev", "over"):
        (tmp_path / folder).mkdir()
    (tmp_path / "over/masked").touch()
    mounts = "mount --rbind /dev 'a dev' && mount --bind /dev/null over/masked"
    unshare = ["unshare", "-m" if os.geteuid() == 0 else "-Urm", "sh", "-c"]
    if subprocess.run([*unshare, mounts], cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    done = subprocess.run(
        [*unshare, f'{mounts} && exec "$0" -c "$1"', sys.executable, MOUNTED_AGAIN],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("''\n", "")


# ------------------------------------------------------------------------------------------------------- what works


WORK = {
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
@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("namespace", [False, True])
async def test_usual_work_succeeds_in_the_fence(yard: Yard, name: str, namespace: bool) -> None:
    if name in ("git", "gcc") and not shutil.which(name):
        pytest.skip(f"no {name} here")
    code, said = await yard.run(WORK[name], namespace=namespace and PROTECTIONS.namespace)
    assert code == 0, said
