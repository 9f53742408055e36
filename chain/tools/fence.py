"""The fence around a command: what the kernel lets any user refuse to a process and to all that it starts.

Landlock refuses writes outside some folders and signals to processes outside; seccomp refuses sockets. Both need
neither root nor a set-up, hold for good, and are inherited. They are called by ``ctypes``: Python has no functions for
them. A PID namespace adds that all its processes die with its first one.

What a machine has is tried, never derived from a version, and in processes of its own: ``probe`` runs this file as a
program. Only the standard library is imported, and little of it: the guard (``guard``), of which every command is a
fork, imports this module.

What the fence does not refuse: reading, and changing the mode, owner or times of a file outside, which Landlock does
not know. With the network allowed, a service that listens there may do what the command itself may not; so may one that
listens on a Unix socket, where those are not refused (``unix_sockets``).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

PROBE_S = 20.0
"""Seconds for the probe, which takes a twentieth of one: a machine that needs longer is in trouble of its own."""


class Protections(NamedTuple):
    """What this machine can refuse to a command, as far as it was tried.

    ``namespace``: whether a command can have a PID namespace of its own, which is used where it can be had, and is no
    protection that anybody relies on. (A named tuple, since ``dataclasses`` would double what the guard imports.)
    """

    writes: bool = False
    network: bool = False
    unix_sockets: bool = False
    signals: bool = False
    namespace: bool = False


class Fence(NamedTuple):
    """What is refused to one command. ``writable`` are the files and folders it may write; ``None``: all of them.

    A path of ``writable`` that does not exist is no error: nothing is there to be written. ``network`` refuses sockets,
    ``unix_sockets`` only Unix sockets, by which other programs are reached. Pairs of streams are never refused.
    """

    writable: Sequence[str] | None = None
    network: bool = False
    unix_sockets: bool = False
    signals: bool = False
    namespace: bool = False


DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm")
"""What every fenced command may write.

``/dev/shm`` is among them because the locks of Python's ``multiprocessing`` and POSIX shared memory are files there:
pools would not start without it. It is memory, shared with other programs of the user, and none of the user's files.
Terminals are not: a command that writes to the user's could forge what the user reads there.
"""


def enter(fence: Fence) -> None:
    """Fence in the calling process and all that it will start, for good. Raises ``OSError`` if it cannot be done."""
    if fence.writable is not None and os.geteuid() == 0:
        _drop_powers()
    _prctl(_NO_NEW_PRIVILEGES, 1)
    if fence.writable is not None or fence.signals:
        _landlock(fence.writable, fence.signals)
    if fence.network or fence.unix_sockets:
        around = _IO_URING if fence.writable is not None else (*_IO_URING, *_TRACING)
        _refuse_sockets(around, only_unix=not fence.network)


# ------------------------------------------------------------------------------------------------------- system calls

_LIBC = ctypes.CDLL(None, use_errno=True)

_SECCOMP, _CAPABILITY_DROP, _CHILD_SUBREAPER, _NO_NEW_PRIVILEGES = 22, 24, 36, 38  # of prctl(2)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, *values: int | ctypes.c_char_p) -> None:
    padded = [*values, 0, 0, 0, 0][:4]
    arguments = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in padded]
    _checked(_LIBC.prctl(option, *arguments), f"prctl {option}")


def adopt_orphans() -> None:
    """Let every process below this one whose parent ends become its child, instead of the init process's."""
    _prctl(_CHILD_SUBREAPER, 1)


# ---------------------------------------------------------------------------------------------------------- Landlock

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture

WRITES_ABI, SIGNALS_ABI, _DEVICES_ABI = 3, 6, 5
"""The versions of Landlock that refuse writes and signals. Before 3 a file outside could still be truncated."""

_WRITE_FILE, _TRUNCATE, _DEVICE_CONTROL = 1 << 1, 1 << 14, 1 << 15
_ONLY_FOLDERS = sum(1 << n for n in range(4, 14))  # removing and making all kinds, moves between folders
# Character and block devices: one that a command made in the workspace would lead to the disk itself.
_NEVER = 1 << 6 | 1 << 11
_SIGNAL_SCOPE = 1 << 1


def _landlock_abi() -> int:
    """The version of Landlock here; 0 if there is none."""
    return max(0, int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def _landlock(writable: Sequence[str] | None, signals: bool) -> None:
    abi = _landlock_abi()
    if abi < (SIGNALS_ABI if signals else WRITES_ABI):
        raise OSError(errno.EOPNOTSUPP, "Landlock cannot refuse this here")
    handled = 0
    if writable is not None:
        handled = _WRITE_FILE | _ONLY_FOLDERS | _TRUNCATE | (_DEVICE_CONTROL if abi >= _DEVICES_ABI else 0)
    attributes = struct.pack("=QQQ", handled, 0, _SIGNAL_SCOPE if signals else 0)
    ruleset = _checked(
        _LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock_create_ruleset"
    )
    try:
        for path in writable or ():
            _allow(ruleset, path, handled & ~_NEVER)
        _checked(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rule = struct.pack("=Qi", rights if is_folder else rights & ~_ONLY_FOLDERS, descriptor)
        _checked(_LIBC.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
    finally:
        os.close(descriptor)


_POWERS = (9, 12, 16, 17, 19, 21, 22, 25, 26, 27, 32, 33, 34, 38, 39, 40)
"""Capabilities by which root reaches past Landlock: modules, raw disks and ports, mounts, other processes, the clock.

In order: linux_immutable, net_admin, sys_module, sys_rawio, sys_ptrace, sys_admin, sys_boot, sys_time, sys_tty_config,
mknod, mac_override, mac_admin, syslog, perfmon, bpf, checkpoint_restore.
"""


def _drop_powers() -> None:
    for power in _POWERS:
        try:
            _prctl(_CAPABILITY_DROP, power)
        except OSError as error:
            # A kernel that does not know it, or a root that is not allowed to give it up, since it has none.
            if error.errno not in (errno.EINVAL, errno.EPERM):
                raise


# ----------------------------------------------------------------------------------------------------------- seccomp

_IO_URING = ("io_uring_setup", "io_uring_enter", "io_uring_register")
"""Sockets can be made by these as well."""

_TRACING = ("ptrace", "process_vm_writev", "pidfd_getfd")
"""By these another process is made to open a socket. Landlock limits them to the command's own processes, which a
debugger needs, so they are refused only where there is none."""

_NUMBERS = {
    "x86_64": {"socket": 41, "socketpair": 53, "ptrace": 101, "process_vm_writev": 311},
    "aarch64": {"socket": 198, "socketpair": 199, "ptrace": 117, "process_vm_writev": 271},
}
_SAME_NUMBERS = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "pidfd_getfd": 438}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_X32 = 0x40000000  # on x86_64 every call exists once more, under its number plus this

_ARCHITECTURE, _NUMBER, _FIRST, _SECOND = 4, 0, 16, 24
"""Where a call's architecture, its number and the lower halves of its arguments are in ``struct seccomp_data``."""
_LOAD, _AND, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_TO_PERMIT, _TO_REFUSE = -1, -2
"""Stand for jumps to the last lines but one, and to the last."""
_KILL, _REFUSE, _PERMIT = 0x80000000, 0x00050000 | errno.EACCES, 0x7FFF0000


def _refuse_sockets(around: Sequence[str], *, only_unix: bool) -> None:
    """Refuse new sockets, of one family or of all, and the calls that lead around that."""
    machine = os.uname().machine
    if machine not in _NUMBERS or struct.calcsize("P") != 8:
        raise OSError(errno.EOPNOTSUPP, f"seccomp is not used on {machine}")
    numbers = {**_NUMBERS[machine], **_SAME_NUMBERS}
    refused = [(_JUMP_IF_EQUAL, numbers[name]) for name in around]
    if machine == "x86_64":
        refused.insert(0, (_JUMP_IF_AT_LEAST, _X32))
    if only_unix:
        sockets = [
            (_JUMP_IF_EQUAL, 0, _TO_PERMIT, numbers["socket"]),
            (_LOAD, 0, 0, _FIRST),  # the family, of which the kernel looks at no more either
            (_JUMP_IF_EQUAL, _TO_REFUSE, _TO_PERMIT, socket.AF_UNIX),
        ]
    else:
        sockets = [(_JUMP_IF_EQUAL, _TO_REFUSE, _TO_PERMIT, numbers["socket"])]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),  # a program of another one has other numbers
        (_JUMP_IF_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *((code, _TO_REFUSE, 0, value) for code, value in refused),
        # One of a pair of datagram sockets can send to any other; those of streams stay with each other.
        (_JUMP_IF_EQUAL, 0, 4, numbers["socketpair"]),
        (_LOAD, 0, 0, _SECOND),
        (_AND, 0, 0, 0xF),  # without the flags
        (_JUMP_IF_EQUAL, _TO_REFUSE, 0, socket.SOCK_DGRAM),
        (_JUMP_IF_EQUAL, _TO_REFUSE, _TO_PERMIT, socket.SOCK_RAW),
        *sockets,
        (_RETURN, 0, 0, _PERMIT),
        (_RETURN, 0, 0, _REFUSE),
    ]
    targets = {_TO_PERMIT: len(lines) - 2, _TO_REFUSE: len(lines) - 1}
    program = [
        (code, *(targets[to] - n - 1 if to in targets else to for to in (if_so, if_not)), value)
        for n, (code, if_so, if_not, value) in enumerate(lines)
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    _prctl(_SECCOMP, 2, ctypes.c_char_p(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))))


# ----------------------------------------------------------------------------------------------------- PID namespace

_NEW_MOUNTS, _NEW_USERS, _NEW_PIDS = 0x20000, 0x10000000, 0x20000000
_MOUNT_FLAGS = 0x2 | 0x4 | 0x8  # no set-user-id, no devices, no programs
_SLAVES_ALL = (1 << 19) | (1 << 14)


def enter_pid_namespace() -> None:
    """Put what this process forks next into a PID namespace, as its first process. Raises ``OSError``.

    Whoever may not have one otherwise gets it in a user namespace where all ids are what they were.
    """
    try:
        _checked(_LIBC.unshare(_NEW_PIDS), "unshare")
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        _checked(_LIBC.unshare(_NEW_USERS | _NEW_PIDS), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def mount_own_proc() -> None:
    """Show the first process of a namespace, and all below it, their own processes in ``/proc``. Raises ``OSError``."""
    _checked(_LIBC.unshare(_NEW_MOUNTS), "unshare")
    _checked(_LIBC.mount(None, b"/", None, ctypes.c_ulong(_SLAVES_ALL), None), "mount /")
    _checked(_LIBC.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(_MOUNT_FLAGS), None), "mount /proc")


# ------------------------------------------------------------------------------------------------------------- probes


@functools.cache
def probe() -> Protections:
    """Which protections hold on this machine; asked once a process. It blocks for about 50 ms: call it in a thread."""
    if sys.platform != "linux":
        return Protections()
    import subprocess

    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_S,
            check=True,
            start_new_session=True,
        )
        return Protections(**json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return Protections()  # what could not be tried does not hold


def _try_all() -> Protections:
    tries = (_try_writes, _try_network, _try_unix_sockets, _try_signals, _try_namespace)
    return Protections(*(_holds(each) for each in tries))


def _holds(attempt: Callable[[], bool]) -> bool:
    """Whether an attempt succeeds, in a process of its own."""
    child = os.fork()
    if child == 0:
        held = False
        try:
            held = attempt()
        finally:
            os._exit(0 if held else 1)  # also past a traceback: nobody reads it
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _is_refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except PermissionError:
        return True
    return False


def _try_writes() -> bool:
    enter(Fence(writable=()))
    return _is_refused(lambda: os.open("/dev/null", os.O_WRONLY))


def _try_network() -> bool:
    enter(Fence(network=True))
    return _unix_is_refused() and _is_refused(lambda: socket.socket(socket.AF_INET))


def _try_unix_sockets() -> bool:
    enter(Fence(unix_sockets=True))
    socket.socket(socket.AF_INET).close()
    return _unix_is_refused()


def _unix_is_refused() -> bool:
    for each in socket.socketpair():
        each.close()
    pair_is_refused = _is_refused(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
    return pair_is_refused and _is_refused(lambda: socket.socket(socket.AF_UNIX))


def _try_signals() -> bool:
    parent = os.getppid()
    enter(Fence(signals=True))
    return _is_refused(lambda: os.kill(parent, 0))


def _try_namespace() -> bool:
    enter_pid_namespace()

    def is_first() -> bool:
        mount_own_proc()
        return os.getpid() == 1 and os.readlink("/proc/self") == "1"

    return _holds(is_first)


if __name__ == "__main__":
    json.dump(_try_all()._asdict(), sys.stdout)
