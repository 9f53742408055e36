"""The fence around a command: what the kernel lets any user refuse to a process and to all that it starts.

Landlock refuses writes outside some folders, devices, and signals to processes outside; seccomp refuses sockets, kernel
keys, and to set the limits and priorities of others. Both need neither root nor a set-up, hold for good, and are
inherited. They are called by ``ctypes``: Python has no functions for them. A PID namespace adds that all its processes
die with its first one.

Only the standard library is imported, and little of it: the guard (``guard``), of which every command is a fork,
imports this module. What a machine has is tried by ``probe``.

What the fence does not refuse: reading files; changing the mode, owner, times, flags (``chattr``), extended attributes,
access lists or file capabilities of one outside, and locking it, which Landlock does not know; and where there is no
namespace, which has its own, System V shared memory and semaphores, without which databases do not start. With the
network allowed, a service that listens there may do what the command itself may not; so may one that listens on a Unix
socket, where those are not refused (``unix_sockets``).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple


class Fence(NamedTuple):
    """What is refused to one command. ``writable`` are the files and folders it may write; ``None``: all of them.

    They are given by path (one that does not exist is no error), or as the descriptor of ``rules`` with the same
    ``signals``, since a path may lead elsewhere by the time that a command starts. ``network`` refuses sockets,
    ``unix_sockets`` only Unix sockets, by which other programs are reached. Pairs of streams are never refused.
    ``signals`` refuses signals to other processes, and all else that a system call does to one: to set its limits (that
    of processor time kills it) or its priority. ``devices`` is all that it may open below ``/dev``; ``None``: all. (A
    named tuple, since ``dataclasses`` would double what the guard imports.)
    """

    writable: Sequence[str] | int | None = None
    network: bool = False
    unix_sockets: bool = False
    signals: bool = False
    namespace: bool = False
    devices: Sequence[str] | None = None


DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm")
"""What every fenced command may read and write below ``/dev``.

``/dev/shm`` is among them because the locks of Python's ``multiprocessing`` and POSIX shared memory are files there:
pools would not start without it. It is memory, shared with other programs of the user, and none of the user's files.
Terminals are not: a command that writes to the user's could forge what the user reads there, and one that reads it
takes what the user types, Esc and Ctrl-C too. Keyboards, screens, microphones and disks are not either.
"""


def enter(fence: Fence) -> None:
    """Fence in the calling process and all that it will start, for good. Raises ``OSError`` if it cannot be done."""
    if (fence.writable is not None or fence.devices is not None) and os.geteuid() == 0:
        _drop_powers()
    _prctl(_NO_NEW_PRIVILEGES, 1)
    if isinstance(fence.writable, int):
        _restrict(fence.writable)
    elif fence.writable is not None or fence.signals:
        _restrict(rules(None if fence.writable is None else _opened(fence.writable), signals=fence.signals))
    if fence.devices is not None:
        _landlock_devices(fence.devices)
    # In a namespace there are no others whose limits could be set, and threads are others to seccomp.
    has_others = fence.signals and not fence.namespace
    if fence.network or fence.unix_sockets or has_others:
        _refuse_calls(fence, has_others=has_others)


def enter_all() -> None:
    """Fence in a program of our own that writes no file and reaches nobody, as far as this machine can."""
    parts = (Fence(writable=()), Fence(network=True), Fence(signals=True), Fence(devices=DEVICES))
    for part in parts if sys.platform == "linux" else ():
        try:
            enter(part)
        except OSError:
            continue  # it works as well without


# ------------------------------------------------------------------------------------------------------- system calls

_LIBC = ctypes.CDLL(None, use_errno=True)

_CAPABILITY_VERSION = 0x20080522  # of capset(2): three sets, first their lower halves
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

WRITES_ABI, SIGNALS_ABI, DEVICES_ABI, _CONTROL_ABI = 3, 6, 2, 5
"""The versions of Landlock that refuse writes, signals and devices, and the control of devices that may be written.

Before 3 a file outside could still be truncated; before 2 no file could be moved to another folder.
"""

_WRITE_FILE, _READ_FILE, _MOVE, _TRUNCATE, _DEVICE_CONTROL = 1 << 1, 1 << 2, 1 << 13, 1 << 14, 1 << 15
_ONLY_FOLDERS = sum(1 << n for n in range(4, 14))  # removing and making all kinds, moves between folders
# Character and block devices: one that a command made in the workspace would lead to the disk itself.
_NEVER = 1 << 6 | 1 << 11
_SIGNAL_SCOPE = 1 << 1


def _landlock_abi() -> int:
    """The version of Landlock here; 0 if there is none."""
    return max(0, int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def rules(writable: Iterable[int] | None, *, signals: bool) -> int:
    """The descriptor of rules by which nothing is written but these files, and folders with what is in them.

    They are given by descriptors. Raises ``OSError``. It is one set of rules for writes and signals, since each set
    refuses moves between folders that it does not allow itself.
    """
    handled = 0
    if writable is not None:
        handled = _WRITE_FILE | _ONLY_FOLDERS | _TRUNCATE | (_DEVICE_CONTROL if _landlock_abi() >= _CONTROL_ABI else 0)
    needed_abi, scopes = (SIGNALS_ABI, _SIGNAL_SCOPE) if signals else (WRITES_ABI, 0)
    with _new_ruleset(needed_abi, handled, scopes) as ruleset:
        for descriptor in writable or ():
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            _allow(ruleset, descriptor, handled & ~(_NEVER if is_folder else _NEVER | _ONLY_FOLDERS))
    return ruleset


@contextmanager
def _new_ruleset(needed_abi: int, handled: int, scopes: int = 0) -> Iterator[int]:
    """The descriptor of rules that refuse these rights everywhere. It is closed only if the block fails."""
    if _landlock_abi() < needed_abi:
        raise OSError(errno.EOPNOTSUPP, "Landlock cannot refuse this here")
    attributes = struct.pack("=QQQ", handled, 0, scopes)
    ruleset = _LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    _checked(ruleset, "landlock_create_ruleset")
    try:
        yield ruleset
    except BaseException:
        os.close(ruleset)
        raise


def _allow(ruleset: int, descriptor: int, rights: int, path: str = "") -> None:
    """Allow this for a file, or for all below a folder."""
    rule = struct.pack("=Qi", rights, descriptor)
    _checked(_LIBC.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"landlock_add_rule {path}".rstrip())


def _restrict(ruleset: int) -> None:
    """Put rules in force, and close them."""
    try:
        _checked(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _opened(paths: Iterable[str], flags: int = 0) -> Iterator[int]:
    """A descriptor of each path that exists, open until the next is asked for."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            yield descriptor
        finally:
            os.close(descriptor)


_HIDDEN = ("/dev", "/sys/kernel/debug")
"""Where devices are; debugfs shows root what USB keyboards send."""

_HIDDEN_SYSTEMS = (b"devtmpfs", b"devpts", b"debugfs")


def _hidden() -> list[str]:
    """These folders, and wherever else a file system of devices is mounted, as in containers and chroots.

    A mount of a device that all may open is none of them: containers put ``/dev/null`` over files, some in ``/proc``.
    One that cannot be reached is none either: the folders on the way to it can mostly not be listed.
    """
    found = list(_HIDDEN)
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            mount, _, system = line.partition(b" - ")
            root, point = mount.split()[3:5]
            if system.split()[0] in _HIDDEN_SYSTEMS and f"/dev{os.fsdecode(root)}" not in DEVICES:
                # Spaces and the like are in octal, a backslash too.
                path = os.fsdecode(point.decode("unicode_escape").encode("latin-1"))
                found += [path] if os.path.exists(path) else []
    return found


def _landlock_devices(devices: Sequence[str]) -> None:
    """Refuse to open any file for reading or writing below the hidden folders but some devices.

    Landlock only knows what is allowed, which is all else. It is a second set of rules, and both must allow what is
    done: so a writable folder with ``/dev`` in it, as ``/`` is, does not open that as well.
    """
    use = _READ_FILE | _WRITE_FILE
    # Moves would be refused everywhere if they were not named.
    with _new_ruleset(DEVICES_ABI, use | _MOVE) as ruleset:
        others = ((path, use, os.O_NOFOLLOW) for path in _all_but(_hidden(), "/"))
        for path, rights, flags in (("/", _MOVE, 0), *others, *((path, use, 0) for path in devices)):
            # What it is is not looked at: a network disk may be dead.
            for descriptor in _opened([path], flags):
                _allow(ruleset, descriptor, rights, path)
    _restrict(ruleset)


def _all_but(hidden: Sequence[str], folder: str) -> Iterator[str]:
    """The fewest paths that together are all below a folder, but these. Links are none: they lead to others."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.path in hidden:
                continue
            if any(each.startswith(f"{entry.path}/") for each in hidden):
                yield from _all_but(hidden, entry.path)
            elif not entry.is_symlink():
                yield entry.path


_POWERS = (9, 12, 13, 16, 17, 19, 20, 21, 22, 25, 26, 27, 30, 32, 33, 34, 38, 39, 40)
"""Capabilities by which root reaches past Landlock: modules, raw disks and ports, mounts, other processes, the clock.

In order: linux_immutable, net_admin, net_raw (it reads what others send), sys_module, sys_rawio, sys_ptrace, sys_pacct,
sys_admin, sys_boot, sys_time, sys_tty_config, mknod, audit_control, mac_override, mac_admin, syslog, perfmon, bpf,
checkpoint_restore.
"""


def _drop_powers() -> None:
    header, sets = struct.pack("=Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(24)
    _checked(_LIBC.capget(header, sets), "capget")
    dropped = sum(1 << power for power in _POWERS)
    halves = [half & ~(dropped >> 32 * (n // 3)) for n, half in enumerate(struct.unpack("=6I", sets.raw))]
    _checked(_LIBC.capset(header, struct.pack("=6I", *halves)), "capset")
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

_KEYS = ("add_key", "request_key", "keyctl")
"""The keys of a user are those of all the user's programs, and the kernel runs one as root to find a key."""

_TRACING = ("ptrace", "process_vm_writev", "pidfd_getfd")
"""By these another process is made to open a socket. Landlock limits them to the command's own processes, which a
debugger needs, so they are refused only where there is none."""

_QUEUES = ("mq_open", "mq_unlink", "msgget", "msgsnd", "msgrcv", "msgctl")
"""Message queues are reached by their name or number, by all programs of a user. A namespace has its own."""

_SUBVOLUMES = (0x5000940E, 0x50009418, 0x50009401, 0x50009417, 0x5000940F, 0x5000943F, 0x4008941A)
"""The requests by which btrfs makes, copies, removes and locks subvolumes, which are folders; Landlock does not see
them. In order: SUBVOL_CREATE, the same _V2, SNAP_CREATE, _V2, SNAP_DESTROY, _V2, SUBVOL_SETFLAGS."""

_OF_ONE = ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
"""These set something of a process, or read its limits: the first argument, 0 for the caller."""

_OF_SOME = {"setpriority": 2, "ioprio_set": 3}
"""These set something of a process, a group, or all of a user, by this first argument: of which is the second, 0 for
the caller's own. A command has a group of its own."""

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH_*, and the column below
_NUMBERS = {  # x86_64, aarch64
    **{"ioctl": (16, 29), "socket": (41, 198), "socketpair": (53, 199), "ptrace": (101, 117)},
    **{"process_vm_writev": (311, 271), "pidfd_getfd": (438, 438)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"mq_open": (240, 180), "mq_unlink": (241, 181)},
    **{"msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187)},
    **{"prlimit64": (302, 261), "setpriority": (141, 140), "ioprio_set": (251, 30)},
    **{"sched_setparam": (142, 118), "sched_setscheduler": (144, 119)},
    **{"sched_setaffinity": (203, 122), "sched_setattr": (314, 274)},
}
_X32 = 0x40000000  # on x86_64 every call exists once more, under its number plus this

_ARCHITECTURE, _NUMBER, _FIRST, _SECOND = 4, 0, 16, 24
"""Where a call's architecture, its number and the lower halves of its arguments are in ``struct seccomp_data``."""
_LOAD, _AND, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_TO_PERMIT, _TO_REFUSE = -1, -2
"""Stand for jumps to the last lines but one, and to the last."""
_KILL, _REFUSE, _PERMIT = 0x80000000, 0x00050000 | errno.EACCES, 0x7FFF0000


def _refuse_calls(fence: Fence, *, has_others: bool) -> None:
    """Refuse new sockets, of one family or of all, the calls that lead around that, and what is done to others."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES or struct.calcsize("P") != 8:
        raise OSError(errno.EOPNOTSUPP, f"seccomp is not used on {machine}")
    architecture, column = _ARCHITECTURES[machine]
    numbers = {name: both[column] for name, both in _NUMBERS.items()}
    has_landlock = fence.writable is not None or fence.devices is not None or fence.signals
    names = (*_IO_URING, *_KEYS, *(() if has_landlock else _TRACING), *(_QUEUES if has_others else ()))
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),  # a program of another one has other numbers
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *([(_JUMP_IF_AT_LEAST, _TO_REFUSE, 0, _X32)] if machine == "x86_64" else []),
        *((_JUMP_IF_EQUAL, _TO_REFUSE, 0, numbers[name]) for name in names),
    ]

    def of_call(name: str, *what: tuple[int, int, int, int]) -> None:
        """Lines for one call alone."""
        lines.extend([(_JUMP_IF_EQUAL, 0, len(what), numbers[name]), *what])

    first, second = (_LOAD, 0, 0, _FIRST), (_LOAD, 0, 0, _SECOND)
    if fence.writable is not None:
        subvolumes = ((_JUMP_IF_EQUAL, _TO_REFUSE, 0, request) for request in _SUBVOLUMES)
        of_call("ioctl", second, *subvolumes, (_RETURN, 0, 0, _PERMIT))
    if has_others:
        is_own = (_JUMP_IF_EQUAL, _TO_PERMIT, _TO_REFUSE, 0)
        for name in _OF_ONE:
            of_call(name, first, is_own)
        for name, user in _OF_SOME.items():
            of_call(name, first, (_JUMP_IF_EQUAL, _TO_REFUSE, 0, user), second, is_own)
    if fence.network or fence.unix_sockets:
        # One of a pair of datagram sockets can send to any other; those of streams stay with each other.
        is_datagram = (_JUMP_IF_EQUAL, _TO_REFUSE, 0, socket.SOCK_DGRAM)
        is_raw = (_JUMP_IF_EQUAL, _TO_REFUSE, _TO_PERMIT, socket.SOCK_RAW)
        of_call("socketpair", second, (_AND, 0, 0, 0xF), is_datagram, is_raw)  # 0xF: without the flags
    if fence.network:
        lines += [(_JUMP_IF_EQUAL, _TO_REFUSE, 0, numbers["socket"])]
    elif fence.unix_sockets:
        # The family, of which the kernel looks at no more either.
        of_call("socket", first, (_JUMP_IF_EQUAL, _TO_REFUSE, 0, socket.AF_UNIX))
    lines += [(_RETURN, 0, 0, _PERMIT), (_RETURN, 0, 0, _REFUSE)]
    targets = {_TO_PERMIT: len(lines) - 2, _TO_REFUSE: len(lines) - 1}
    program = [
        (code, *(targets[to] - n - 1 if to in targets else to for to in (if_so, if_not)), value)
        for n, (code, if_so, if_not, value) in enumerate(lines)
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    _prctl(_SECCOMP, 2, ctypes.c_char_p(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))))


# ----------------------------------------------------------------------------------------------------- PID namespace

_NEW_MOUNTS, _NEW_IPC, _NEW_USERS, _NEW_PIDS = 0x20000, 0x8000000, 0x10000000, 0x20000000
_MOUNT_FLAGS = 0x2 | 0x4 | 0x8  # no set-user-id, no devices, no programs
_SLAVES_ALL = (1 << 19) | (1 << 14)


def enter_pid_namespace() -> None:
    """Put what this process forks next into a PID namespace, as its first process. Raises ``OSError``.

    It also has shared memory, semaphores and message queues of its own, but for what is in ``/dev/shm``.
    Whoever may not have one otherwise gets it in a user namespace where all ids are what they were.
    """
    try:
        _checked(_LIBC.unshare(_NEW_PIDS | _NEW_IPC), "unshare")
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        _checked(_LIBC.unshare(_NEW_USERS | _NEW_PIDS | _NEW_IPC), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def mount_own_proc() -> None:
    """Show the first process of a namespace, and all below it, their own processes in ``/proc``. Raises ``OSError``."""
    _checked(_LIBC.unshare(_NEW_MOUNTS), "unshare")
    _checked(_LIBC.mount(None, b"/", None, ctypes.c_ulong(_SLAVES_ALL), None), "mount /")
    _checked(_LIBC.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(_MOUNT_FLAGS), None), "mount /proc")
