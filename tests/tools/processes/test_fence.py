"""The fence: what it refuses, and that work goes on in it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest
from support import reach
from support.house import ROOT
from support.processes import DEADLINE_S, NOBODY, as_user, python_of
from support.sockets import bind

from chain.tools.processes import fence
from chain.tools.processes.fence import Fence
from chain.tools.processes.guarded import Guard
from chain.tools.processes.probe import Protections, probe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fence is for Linux")

HELD = probe() if sys.platform == "linux" else Protections()
USERS = sorted({os.geteuid(), NOBODY if os.geteuid() == 0 else os.geteuid()})

needs_writes = pytest.mark.skipif(not HELD.writes, reason="this machine cannot refuse writes")
needs_network = pytest.mark.skipif(not HELD.network, reason="this machine cannot refuse sockets")
needs_unix_sockets = pytest.mark.skipif(not HELD.unix_sockets, reason="this machine cannot refuse Unix sockets alone")
needs_signals = pytest.mark.skipif(not HELD.signals, reason="this machine cannot refuse signals")
needs_devices = pytest.mark.skipif(not HELD.devices, reason="this machine cannot refuse devices")
needs_namespace = pytest.mark.skipif(not HELD.namespace, reason="this machine has no PID namespaces")


class Yard:
    """A workspace with a fence around it, and what lies outside."""

    def __init__(self, folder: Path, guard: Guard) -> None:
        self.work, self.outside, self.guard = folder / "work", folder / "outside", guard
        self.work.mkdir()
        self.outside.mkdir()
        (self.outside / "kept").write_text("kept\n")
        writable = (str(self.work), str(guard.folder), "/no/such/folder", *fence.DEVICES) if HELD.writes else None
        devices = fence.DEVICES if HELD.devices else None
        self.fence = Fence(writable, HELD.network, HELD.unix_sockets, HELD.signals, HELD.namespace, devices)

    async def run(self, command: str, fence: Fence | None = None) -> tuple[int | None, str]:
        got = bytearray()
        env = {"PATH": os.environ["PATH"], "HOME": str(self.outside), "TMPDIR": str(self.guard.folder)}
        ended = await self.guard.run(
            ["bash", "-c", command],
            cwd=self.work,
            env={
                **env,
                "PYTHON": sys.executable,
                "OUT": str(self.outside),
                "OURS": str(os.getpid()),
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            },
            on_output=got.extend,
            timeout_s=DEADLINE_S,
            fence=fence or self.fence,
        )
        return ended.code, os.fsdecode(bytes(got))


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    guard = Guard()
    yield Yard(tmp_path, guard)
    await guard.close()


# -------------------------------------------------------------------------------------------------- what is refused


@needs_writes
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
async def test_writes_outside(yard: Yard, command: str) -> None:
    before = sorted(yard.outside.iterdir()), (yard.outside / "kept").read_text()
    for namespace in {False, HELD.namespace}:
        code, said = await yard.run(command, yard.fence._replace(namespace=namespace))
        assert code, said
        assert (sorted(yard.outside.iterdir()), (yard.outside / "kept").read_text()) == before


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


@needs_network
async def test_sockets_of_all_kinds_but_pairs_of_streams(yard: Yard) -> None:
    (yard.work / "sockets.py").write_text(SOCKETS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outside:
        bind(outside, yard.work / "outside")
        outside.setblocking(False)
        assert await yard.run("$PYTHON sockets.py outside") == (0, "b'pair'\n" * 2)
        with pytest.raises(BlockingIOError):
            outside.recv(3)


@needs_network
@pytest.mark.slow
async def test_the_network_alone_may_be_left_open(yard: Yard) -> None:
    command = "$PYTHON -c 'import socket; socket.socket(); socket.socket(socket.AF_UNIX)'"
    open_to_all = yard.fence._replace(network=False, unix_sockets=False)
    assert await yard.run(command, open_to_all) == (0, "")
    code, _ = await yard.run("echo x > $OUT/new", open_to_all)
    assert bool(code) == HELD.writes


SERVICES = """
import ctypes, os, socket, sys
port, stream, datagram = sys.argv[1:]
socket.create_connection(("127.0.0.1", int(port))).close()
number = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
for kind in (1, 2, 3, 5):
    for family in (1, 1 | 1 << 32, 1 | 1 << 63):
        assert libc.syscall(number, ctypes.c_ulong(family), kind, 0) == -1 and ctypes.get_errno() == 13, (family, kind)
for kind in (2, 3):
    try:
        socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b"out", datagram)
    except PermissionError:
        continue
    raise SystemExit(f"a pair of kind {kind}")
for kind in (1, 5):
    try:
        socket.socketpair(socket.AF_UNIX, kind)[0].connect(stream)
    except OSError:
        continue
    raise SystemExit(f"a pair of kind {kind}")
ring = ctypes.create_string_buffer(120)
assert libc.syscall(425, 8, ring) == -1 and ctypes.get_errno() in (13, 38), "io_uring"
print("reached")
"""


@needs_unix_sockets
async def test_with_the_network_no_unix_socket_is_reached(yard: Yard) -> None:
    (yard.work / "services.py").write_text(SERVICES)
    unix = socket.AF_UNIX
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(unix) as stream,
        socket.socket(unix, socket.SOCK_DGRAM) as datagram,
    ):
        bind(stream, yard.work / "stream")
        stream.listen()
        bind(datagram, yard.work / "datagram")
        command = f"$PYTHON services.py {server.getsockname()[1]} stream datagram"
        open_to_network = yard.fence._replace(network=False, unix_sockets=True)
        assert await yard.run(command, open_to_network) == (0, "reached\n")
        code, _ = await yard.run(command, yard.fence._replace(network=False, unix_sockets=False))
        assert code, "else nothing would be refused"


@needs_writes
@needs_unix_sockets
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read what others send")
async def test_with_the_network_root_does_not_read_what_others_send(yard: Yard) -> None:
    command = "$PYTHON -c 'import socket; socket.socket(socket.AF_INET); socket.socket(socket.AF_PACKET)'"
    code, said = await yard.run(command, yard.fence._replace(network=False))
    assert (code, said.splitlines()[-1]) == (1, "PermissionError: [Errno 1] Operation not permitted")


SUBVOLUMES = """
import fcntl, sys
for request in (0x5000940E, 0x50009418, 0x50009401, 0x50009417, 0x5000940F, 0x5000943F, 0x4008941A, 0x5401):
    try:
        fcntl.ioctl(open(sys.argv[1]), request, bytes(8))  # what is asked for is told by the request alone
    except OSError as error:
        print(hex(request), type(error).__name__)
"""


@needs_writes
@needs_unix_sockets
@pytest.mark.slow
@pytest.mark.parametrize("network", [False, True])
async def test_no_subvolume_is_made_or_removed(yard: Yard, network: bool) -> None:
    (yard.work / "subvolumes.py").write_text(SUBVOLUMES)
    code, text = await yard.run("$PYTHON subvolumes.py $OUT/kept", yard.fence._replace(network=network))
    *refused, other = text.splitlines()
    assert (code, len(refused), other) == (0, 7, "0x5401 OSError"), "a terminal's is passed on to the file"
    assert all(row.endswith(" PermissionError") for row in refused)


@needs_signals
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("command", ["kill -0 $OURS", "kill -TERM $OURS", "kill -9 $PPID; kill -0 $PPID"])
async def test_signals_to_the_outside(yard: Yard, command: str) -> None:
    code, said = await yard.run(command, yard.fence._replace(namespace=False))
    assert code
    assert "not permitted" in said


@needs_signals
async def test_signals_to_all_reach_only_its_own(yard: Yard) -> None:
    """Else this test would not come to its end."""
    unprivileged = yard.fence._replace(namespace=False)
    code, _ = await yard.run("sleep 1000 & trap '' TERM; kill -TERM -1; wait; echo", unprivileged)
    assert code == 0


@needs_writes
@pytest.mark.slow  # with a namespace there is nobody to trace
async def test_tracing_reaches_only_its_own(yard: Yard) -> None:
    trace = "import ctypes, os; raise SystemExit(ctypes.CDLL(None).ptrace(16, int(os.environ['OURS']), 0, 0) == 0)"
    code, _ = await yard.run(f'$PYTHON -c "{trace}"', yard.fence._replace(namespace=False))
    assert code == 0


@needs_writes
async def test_the_environment_of_the_chain_and_its_guard_cannot_be_read(yard: Yard) -> None:
    """It has the keys that a command's own has not."""
    code, said = await yard.run("cat /proc/$OURS/environ /proc/$PPID/environ", yard.fence._replace(namespace=False))
    assert code
    assert said.count("Permission denied") == 2


@needs_namespace
async def test_its_processes_are_all_that_it_sees_in_a_namespace(yard: Yard) -> None:
    code, said = await yard.run('ls -d /proc/[0-9]*; test /proc/self/exe -ef /proc/$$/exe; echo "$$"')
    *seen, own = said.split()
    assert code == 0
    assert own == "2"
    assert len(seen) <= 4


# ------------------------------------------------------------------------------- other processes, terminals, devices

SURE = (
    *("kill", "SIGCONT", "tgkill", "pidfd_send_signal", "prlimit, read", "prlimit, set", "prlimit of more bits"),
    *("setpriority", "setpriority of a group", "sched_setaffinity", "sched_setscheduler", "sched_setparam"),
    *("sched_setattr", "ioprio_set", "ioprio_set of a group"),
)
"""What nothing but a fence refuses: if it did not work without one, the table would show nothing."""
NO_EFFECT = {"setpriority of a user", "ioprio_set of a user", "process_vm_readv of other", "process_vm_writev of other"}
"""These are tried so that they would have none; so they must be refused, and not fail otherwise."""
LEFT = {"chmod", "utime", "setxattr", "lock"}
"""Effects outside the fence, and those that only a namespace refuses: ``chain help tools`` says all of them."""
LEFT_WITHOUT_NAMESPACE = {*LEFT, "shmget", "semget"}
ABSENT = {"EPERM", "EACCES", "ENOENT", "ENODEV", "ENXIO", "ENOSYS", "EINVAL", "ESRCH"}
"""Refused, or not there: for many files and devices it depends on the machine which."""


@cache
def reached(user: int) -> dict[str, dict[str, str]]:
    """For each fence what became of each way to reach something (``support.reach``)."""
    python = python_of(user)
    if python is None:
        pytest.skip("no Python that another user may run")
    done = subprocess.run(
        [python, reach.__file__], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, **as_user(user)
    )
    told: dict[str, dict[str, str]] = json.loads(done.stdout)
    return told


@pytest.mark.slow
@pytest.mark.sampled(every=10)
@pytest.mark.skipif(not all(HELD._replace(namespace=True)), reason="this machine cannot refuse all of it")
@pytest.mark.parametrize("user", USERS, ids=lambda user: f"user {user}")
@pytest.mark.parametrize(
    ("kind", "left"),
    [
        ("refused", LEFT_WITHOUT_NAMESPACE),
        ("network", LEFT_WITHOUT_NAMESPACE),
        pytest.param("namespace", LEFT, marks=needs_namespace),
    ],
)
async def test_no_other_process_no_terminal_and_no_device_is_reached(user: int, kind: str, left: set[str]) -> None:
    told = reached(user)
    assert [name for name in SURE if told["open"][f"{name} of other"] != "reached"] == []
    assert told["open"]["read the terminal"] == told["open"]["SIGIO"] == "reached"
    assert {name for name, end in told[kind].items() if end == "reached"} == left
    strange = {name: end for name, end in told[kind].items() if end not in {*ABSENT, "reached"} and name != "SIGIO"}
    assert strange == {}
    if kind != "namespace":
        assert {told[kind][name] for name in NO_EFFECT} <= {"EPERM", "EACCES"}


@pytest.mark.slow
@needs_devices
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("user", USERS, ids=lambda user: f"user {user}")
async def test_devices_are_refused_where_writes_are_not(user: int) -> None:
    """As with a writable folder that has them in it."""
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


@needs_devices
def test_devices_are_refused_wherever_they_are_mounted_and_what_null_hides_is_no_device(tmp_path: Path) -> None:
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


@needs_devices
def test_where_devices_are_not_known_none_are_refused_and_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without ``/proc``."""

    def fail() -> list[str]:
        raise FileNotFoundError

    monkeypatch.setattr(fence, "_hidden_places", fail)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        fence._landlock_devices(fence.DEVICES)
    assert os.listdir("/proc/self/fd") == before


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
async def test_work_goes_on_in_it(yard: Yard, name: str, namespace: bool) -> None:
    if (name in ("git", "gcc")) and not shutil.which(name):
        pytest.skip(f"no {name} here")
    code, said = await yard.run(WORK[name], yard.fence._replace(namespace=namespace and HELD.namespace))
    assert code == 0, said


NO_LANDLOCK = """
import sys
sys.path.insert(0, sys.argv[1])
from chain.tools.processes import fence
fence._landlock_abi = lambda: 2
for each in fence.Fence(writable=()), fence.Fence(signals=True):
    try:
        fence.enter(each)
    except OSError as error:
        print(error.strerror)
"""


async def test_what_cannot_be_refused_is_an_error(yard: Yard) -> None:
    """Nothing is dropped silently: a command whose fence cannot be put up does not run."""
    (yard.work / "inner.py").write_text(NO_LANDLOCK)
    code, said = await yard.run(f"$PYTHON inner.py {ROOT}")
    assert (code, said.splitlines()) == (0, ["this kernel's Landlock does not support this restriction"] * 2)
