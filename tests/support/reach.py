"""A program that tries, within several fences, all ways to reach another process, a terminal, a device or a file.

It prints a JSON object: for each fence the outcome of each way, which is ``reached`` or the name of an errno. The
fences are ``full``; ``namespace`` and ``network``, which have or allow that too; ``devices alone``; and ``open``, which
is no fence. Without a fence the program changes nothing: each value that it sets is the one that is set already.

The program runs itself in each fence. It uses only the standard library and chain, so that another user can run it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)

_NUMBERS_BY_MACHINE = {
    "x86_64": {
        **{"kcmp": 312, "perf_event_open": 298, "move_pages": 279, "migrate_pages": 256, "get_robust_list": 274},
        **{"sched_setattr": 314, "ioprio_set": 251, "add_key": 248, "request_key": 249, "keyctl": 250, "tgkill": 234},
        **{"rt_sigqueueinfo": 129, "bpf": 321, "fanotify_init": 300, "name_to_handle_at": 303},
        **{"open_by_handle_at": 304, "prlimit64": 302, "sched_setparam": 142, "mq_open": 240},
    },
    "aarch64": {
        **{"kcmp": 272, "perf_event_open": 241, "move_pages": 239, "migrate_pages": 238, "get_robust_list": 100},
        **{"sched_setattr": 274, "ioprio_set": 30, "add_key": 217, "request_key": 218, "keyctl": 219, "tgkill": 131},
        **{"rt_sigqueueinfo": 138, "bpf": 280, "fanotify_init": 262, "name_to_handle_at": 264},
        **{"open_by_handle_at": 265, "prlimit64": 261, "sched_setparam": 118, "mq_open": 180},
    },
}
NUMBERS = {
    **_NUMBERS_BY_MACHINE.get(os.uname().machine, {}),
    **{"pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434, "pidfd_getfd": 438},
    **{"process_madvise": 440, "process_mrelease": 448},
}
"""The numbers of system calls for which Python has no function."""
READ, WRITE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
NO_USER = 4_242_424
"""A user without processes: a call for all of them has no effect, and its error is no refusal."""

PROC_READ = ("environ", "mem", "maps", "auxv", "fd/0", "root/etc/passwd", "cwd", "ns/net")
PROC_CHECKED = ("io", "stack", "syscall", "wchan")
"""Files that can be opened but not read if the access is refused; ``wchan`` then contains 0."""
PROC_WRITTEN = (
    *("mem", "oom_score_adj", "coredump_filter", "timerslack_ns", "autogroup", "clear_refs", "comm", "uid_map"),
)
DEVICES = (
    *("tty", "console", "tty0", "tty1", "ttyS0", "ptmx", "pts/ptmx", "vcs", "vcsa1", "hvc0", "input/event0", "uinput"),
    *("mem", "port", "kmsg", "fuse", "vda", "sda", "nvme0n1", "loop0", "net/tun", "kvm", "userfaultfd", "snd/seq"),
)
FILES = (
    *("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/sys/power/state", "/sys/fs/cgroup/cgroup.procs"),
    *("/sys/kernel/debug/sched/debug", "/proc/kcore"),
)


def check(result: int) -> int:
    """Return the result of a function of the C library. Raise ``OSError`` if it is negative."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def syscall(name: str, *values: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    arguments = [ctypes.c_long(each) if isinstance(each, int) else each for each in values]
    return check(LIBC.syscall(NUMBERS[name], *arguments))


def open_file(path: str, flags: int) -> None:
    os.close(os.open(path, flags))


def read_byte(path: str) -> None:
    with open(path, "rb") as file:
        if file.read(1) in (b"", b"0"):
            raise PermissionError(errno.EPERM, "")


def all_attempts(targets: dict[str, Any]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name of each way and a function that tries it. ``targets`` are what ``run_in_fences`` has created."""
    pids = {"other": targets["other"], "chain": targets["chain"]}
    if os.getppid() != 1:  # in a namespace they have no pid
        pids["keeper"] = os.getppid()
        _state, guard, *_ = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        pids["guard"] = int(guard)
    for name, pid in pids.items():
        for way, attempt in process_attempts(pid).items():
            yield f"{way} of {name}", attempt
        for path in PROC_READ:
            yield f"read {path} of {name}", partial(open_file, f"/proc/{pid}/{path}", READ)
        for path in PROC_CHECKED:
            yield f"read a byte of {path} of {name}", partial(read_byte, f"/proc/{pid}/{path}")
        for path in PROC_WRITTEN:
            yield f"write {path} of {name}", partial(open_file, f"/proc/{pid}/{path}", WRITE)
    yield from system_attempts(targets["signalled"])
    yield from device_attempts(targets["terminal"])
    yield from kernel_object_attempts(targets)
    yield from file_attempts(targets["outside"])


def process_attempts(pid: int) -> dict[str, Callable[[], object]]:
    buffer = ctypes.create_string_buffer(256)

    def pidfd() -> int:
        return syscall("pidfd_open", pid, 0)

    def limits() -> bytes:
        check(LIBC.prlimit(pid, 0, None, buffer))
        return buffer.raw[:16]

    vector = struct.pack("PN", ctypes.addressof(buffer), 8)
    return {
        "kill": lambda: os.kill(pid, 0),
        "SIGCONT": lambda: os.kill(pid, signal.SIGCONT),
        "killpg": lambda: os.killpg(os.getpgid(pid), 0),
        "tgkill": lambda: syscall("tgkill", pid, pid, 0),
        "rt_sigqueueinfo": lambda: syscall("rt_sigqueueinfo", pid, signal.SIGCONT, struct.pack("iii116x", 18, 0, -1)),
        "pidfd_send_signal": lambda: syscall("pidfd_send_signal", pidfd(), 0, None, 0),
        "prlimit, read": limits,
        "prlimit, set": lambda: check(LIBC.prlimit(pid, 0, limits(), None)),
        "prlimit of x32": lambda: check(LIBC.syscall(0x40000000 | NUMBERS["prlimit64"], pid, 0, None, buffer)),
        "prlimit of more bits": lambda: syscall("prlimit64", pid | 1 << 32, 0, None, buffer),
        "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)),
        "setpriority of a group": lambda: os.setpriority(
            os.PRIO_PGRP, os.getpgid(pid), os.getpriority(os.PRIO_PROCESS, pid)
        ),
        "sched_setaffinity": lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)),
        "sched_setscheduler": lambda: os.sched_setscheduler(pid, os.sched_getscheduler(pid), os.sched_param(0)),
        "sched_setparam": lambda: syscall("sched_setparam", pid, struct.pack("i", 0)),
        "sched_setattr": lambda: syscall("sched_setattr", pid, struct.pack("IIQiIQQQ", 48, 0, 0, 0, 0, 0, 0, 0), 0),
        "ioprio_set": lambda: syscall("ioprio_set", 1, pid, 0),
        "ioprio_set of a group": lambda: syscall("ioprio_set", 2, os.getpgid(pid), 0),
        # PTRACE_SEIZE by a tracer that ends at once.
        "ptrace": partial(run_in_fork, lambda: check(LIBC.ptrace(0x4206, pid, None, None))),
        "process_vm_readv": lambda: check(LIBC.process_vm_readv(pid, vector, 1, vector, 1, 0)),
        "process_vm_writev": lambda: check(LIBC.process_vm_writev(pid, vector, 1, vector, 1, 0)),
        "pidfd_getfd": lambda: syscall("pidfd_getfd", pidfd(), 0, 0),
        "process_madvise": lambda: syscall("process_madvise", pidfd(), vector, 1, 20, 0),
        "process_mrelease": lambda: syscall("process_mrelease", pidfd(), 0),
        "kcmp": lambda: syscall("kcmp", os.getpid(), pid, 1, 0, 0),
        "perf_event_open": lambda: syscall("perf_event_open", struct.pack("II112x", 1, 112), pid, -1, -1, 0),
        "move_pages": lambda: syscall("move_pages", pid, 0, None, None, None, 0),
        "migrate_pages": lambda: syscall("migrate_pages", pid, 8, b"\1" + bytes(7), b"\1" + bytes(7)),
        "get_robust_list": lambda: syscall("get_robust_list", pid, buffer, ctypes.create_string_buffer(8)),
        "setns": lambda: check(LIBC.setns(pidfd(), 0x4000000)),  # of host names
        "setpgid": lambda: os.setpgid(pid, 0),
        "capset": lambda: check(LIBC.capset(struct.pack("Ii", 0x20080522, pid), bytes(24))),
    }


def system_attempts(signalled: int) -> Iterator[tuple[str, Callable[[], object]]]:
    def send_by_owned_pipe() -> None:
        reader, writer = os.pipe()
        fcntl.fcntl(reader, fcntl.F_SETOWN, signalled)
        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
        os.write(writer, b"x")
        raise OSError(errno.EAGAIN, "the outer program sees the signal")

    yield "SIGIO", send_by_owned_pipe
    yield "setpriority of a user", lambda: os.setpriority(os.PRIO_USER, NO_USER, 0)
    yield "ioprio_set of a user", lambda: syscall("ioprio_set", 3, NO_USER, 0)
    yield "perf_event_open of all", lambda: syscall("perf_event_open", struct.pack("II112x", 1, 112), -1, 0, -1, 0)
    yield "fanotify_init", lambda: syscall("fanotify_init", 4, 0)
    yield "bpf", lambda: syscall("bpf", 11, bytes(128), 128)  # BPF_PROG_GET_NEXT_ID
    yield "acct", lambda: check(LIBC.acct(b"/no/such/file"))


def device_attempts(terminal: str) -> Iterator[tuple[str, Callable[[], object]]]:
    def open_path_descriptor() -> None:
        fd = os.open(terminal, os.O_PATH)
        open_file(f"/proc/self/fd/{fd}", READ)

    def open_link() -> None:
        os.symlink(terminal, "link")
        open_file("link", READ)

    def open_node() -> None:
        os.mknod("node", 0o600 | 0o020000, os.stat(terminal).st_rdev)
        open_file("node", READ)

    def open_mount() -> None:
        check(LIBC.unshare(0x10020000))  # users and mounts
        check(LIBC.mount(b"/dev/pts", os.fsencode(os.getcwd()), None, 4096, None))
        open_file(os.path.basename(terminal), READ)

    yield "read the terminal", partial(open_file, terminal, READ)
    yield "write the terminal", partial(open_file, terminal, WRITE)
    yield "the terminal by a path descriptor", open_path_descriptor
    yield "the terminal by a link", open_link
    yield "the terminal by a node", open_node
    yield "the terminal by a mount", partial(run_in_fork, open_mount)
    for name in DEVICES:
        yield f"read /dev/{name}", partial(open_file, f"/dev/{name}", READ)
        yield f"write /dev/{name}", partial(open_file, f"/dev/{name}", WRITE)
    for path in FILES:
        yield f"write {path}", partial(open_file, path, WRITE if path != "/proc/kcore" else READ)


def kernel_object_attempts(targets: dict[str, Any]) -> Iterator[tuple[str, Callable[[], object]]]:
    def connect_to_abstract_socket() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(targets["socket"])

    yield "keyctl", lambda: syscall("keyctl", 0, -4, 0)  # the ring of the user
    yield "keyctl of the parent", lambda: syscall("keyctl", 18)
    yield "add_key", lambda: syscall("add_key", b"user", b"chain-test", b"x", 1, -3)
    yield "request_key", lambda: syscall("request_key", b"user", b"chain-test-none", None, 0)
    yield "io_uring_setup", lambda: syscall("io_uring_setup", 1, ctypes.create_string_buffer(120))
    yield "mq_open", lambda: syscall("mq_open", targets["queue"].encode(), os.O_RDWR | os.O_NONBLOCK, 0, None)
    yield "msgget", lambda: check(LIBC.msgget(targets["key"], 0))
    yield "msgsnd", lambda: check(LIBC.msgsnd(targets["messages"], struct.pack("l8x", 1), 8, 0o4000))
    yield "shmget", lambda: check(LIBC.shmget(targets["key"], 0, 0))
    yield "semget", lambda: check(LIBC.semget(targets["key"], 0, 0))
    yield "an abstract socket", connect_to_abstract_socket


def file_attempts(outside: str) -> Iterator[tuple[str, Callable[[], object]]]:
    def open_by_handle() -> None:
        handle, mount = ctypes.create_string_buffer(struct.pack("Ii128x", 128, 0), 136), ctypes.create_string_buffer(4)
        syscall("name_to_handle_at", -100, outside.encode(), handle, mount, 0)
        folder = os.open(os.path.dirname(outside), os.O_RDONLY)
        os.close(syscall("open_by_handle_at", folder, handle, os.O_WRONLY))

    def lock() -> None:
        with open(outside, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    yield "write a file by its handle", open_by_handle
    yield "chmod", lambda: os.chmod(outside, 0o640)
    yield "utime", lambda: os.utime(outside)
    yield "setxattr", lambda: os.setxattr(outside, "user.test", b"x")
    yield "lock", lock


def run_in_fork(work: Callable[[], object]) -> None:
    """Run work that changes its process in a fork. Raise the ``OSError`` that it raised."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
        finally:
            os._exit(255)
    if number := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise OSError(number, "")


def try_all() -> None:
    outcomes = {}
    for name, attempt in all_attempts(json.loads(os.environ["TARGETS"])):
        try:
            attempt()
            outcomes[name] = "reached"
        except OSError as error:
            outcomes[name] = errno.errorcode.get(error.errno or 0, "?")
    print(json.dumps(outcomes))  # noqa: T201 - the output of this program


@contextlib.contextmanager
def unrelated_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def run_in_fences() -> None:
    import trio

    from chain.tools.processes import fence
    from chain.tools.processes.fence import Fence
    from chain.tools.processes.guarded import Guard
    from chain.tools.processes.probe import probe

    supported = await trio.to_thread.run_sync(probe)
    guard = Guard()
    folder = tempfile.mkdtemp()
    work, outside = os.path.join(folder, "work"), os.path.join(folder, "outside")
    os.mkdir(work)
    os.close(os.open(outside, os.O_CREAT, 0o600))
    master, slave = os.openpty()
    key, queue = int.from_bytes(os.urandom(3), "big") + 1, f"chain-test-{os.getpid()}"
    queue_fd = syscall("mq_open", queue.encode(), os.O_RDWR | os.O_CREAT, 0o600, None)
    messages = check(LIBC.msgget(key, 0o1600))
    memory = check(LIBC.shmget(key, 4096, 0o1600))
    semaphores = check(LIBC.semget(key, 1, 0o1600))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{queue}")
    listener.listen()
    full = Fence(
        (work, str(guard.folder), *fence.DEVICES) if supported.writes else None,
        supported.network,
        supported.unix_sockets,
        supported.signals,
        False,
        fence.DEVICES if supported.devices else None,
    )
    fences = {
        "open": None,
        "full": full,
        "namespace": full._replace(namespace=supported.namespace),
        "network": full._replace(network=False),
        "devices alone": Fence(devices=full.devices),
    }
    outcomes = {}
    try:
        for name, each in fences.items():
            with unrelated_process() as other, unrelated_process() as signalled:
                targets = {
                    **{"other": other.pid, "signalled": signalled.pid, "chain": os.getpid(), "key": key},
                    **{"terminal": os.ttyname(slave), "queue": queue, "messages": messages, "socket": f"\0{queue}"},
                    "outside": outside,
                }
                output = bytearray()
                env = {**os.environ, "TARGETS": json.dumps(targets)}
                await guard.run(
                    [sys.executable, __file__, "in fence"],
                    **{"cwd": Path(work), "env": env, "on_output": output.extend, "timeout_s": 60.0, "fence": each},
                )
                outcomes[name] = json.loads(output)
                signalled.send_signal(signal.SIGSYS)  # ends it, unless SIGIO is pending: the lower number comes first
                if signalled.wait() == -signal.SIGIO:
                    outcomes[name]["SIGIO"] = "reached"
                for created in os.listdir(work):
                    os.unlink(os.path.join(work, created))
    finally:
        with contextlib.suppress(OSError):
            check(LIBC.msgctl(messages, 0, None))
            check(LIBC.shmctl(memory, 0, None))
            check(LIBC.semctl(semaphores, 0, 0))
        LIBC.mq_unlink(f"/{queue}".encode())
        for fd in (queue_fd, master, slave):
            os.close(fd)
        listener.close()
        await guard.close()
        shutil.rmtree(folder)
    print(json.dumps(outcomes))  # noqa: T201 - the output of this program


if __name__ == "__main__":
    if sys.argv[1:] == ["in fence"]:
        try_all()
    else:
        import trio

        trio.run(run_in_fences)
