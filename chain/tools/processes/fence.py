"""The fence of a command: restrictions that the kernel enforces for a process and its descendants.

Landlock refuses to write outside the allowed directories, to open devices, and to send signals to outside processes.
Seccomp refuses sockets, kernel keys, changes of btrfs subvolumes, and calls that set limits and priorities of other
processes. Neither needs root or any setup. Both are inherited and cannot be undone. In a PID namespace, the end of a
command's first process also ends all its other processes. Python has no functions for these system calls, so they are
called by ``ctypes``.

To change a restriction: writes are in ``rules``, devices in ``_landlock_devices``, system calls in ``_refuse_calls``,
and root's capabilities in ``_DROPPED_CAPABILITIES``. ``probe`` tries which restrictions a machine supports. Only a
small part of the standard library is imported, because every command is a fork of the guard, which imports this module.

The fence does not refuse:

- reading files;
- changing the mode, owner, times, flags (``chattr``), extended attributes, access lists or file capabilities of an
  outside file, or locking it, because Landlock has no rights for these;
- System V shared memory and semaphores outside a namespace, because databases need them to start.

If the network is allowed, a command can ask a service to do what the command itself may not do. It can ask a service on
a Unix socket too, unless ``unix_sockets`` refuses such sockets.
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
from typing import NamedTuple


class Fence(NamedTuple):
    """The restrictions of one command. A named tuple, because ``dataclasses`` would double what the guard imports."""

    writable: Sequence[str] | int | None = None
    """The files and directories that the command may write; ``None`` allows all.

    Either paths, or the descriptor that ``rules`` returned for the same ``signals``. Missing paths are ignored.
    """
    network: bool = False
    """Whether to refuse all sockets, except connected pairs of stream sockets."""
    unix_sockets: bool = False
    """Whether to refuse Unix sockets, which reach other programs, except connected pairs of stream sockets."""
    signals: bool = False
    """Whether to refuse signals to other processes, and changes of their limits and priorities.

    A process that reaches its limit of CPU time is killed.
    """
    namespace: bool = False
    """Whether the command is in a PID namespace."""
    devices: Sequence[str] | None = None
    """The only devices that may be opened; ``None`` allows all."""


DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm")
"""The devices that every fenced command may read and write.

``/dev/shm`` contains POSIX shared memory and the locks of Python's ``multiprocessing``, whose pools do not start
without it. Other programs of the user share this memory, but it contains none of the user's files. No terminal is in
this list: a command could forge what the user reads on it, or read what the user types, including Esc and Ctrl-C.
"""


def enter(fence: Fence) -> None:
    """Restrict the calling process and everything that it will start. Raise ``OSError`` if that is not possible."""
    if (fence.writable is not None or fence.devices is not None) and os.geteuid() == 0:
        _drop_capabilities()
    _prctl(_NO_NEW_PRIVILEGES, 1)
    if isinstance(fence.writable, int):
        _restrict(fence.writable)
    elif fence.writable is not None or fence.signals:
        _restrict(rules(None if fence.writable is None else _open_paths(fence.writable), signals=fence.signals))
    if fence.devices is not None:
        _landlock_devices(fence.devices)
    # A command in a namespace sees no other processes. Seccomp cannot distinguish other processes from its own ones.
    has_others = fence.signals and not fence.namespace
    if fence.network or fence.unix_sockets or has_others:
        _refuse_calls(fence, has_others=has_others)


def enter_all() -> None:
    """Apply every restriction that this machine supports to the calling process.

    This is for chain's own programs that write no files and affect no other processes.
    """
    parts = (Fence(writable=()), Fence(network=True), Fence(signals=True), Fence(devices=DEVICES))
    for part in parts if sys.platform == "linux" else ():
        try:
            enter(part)
        except OSError:
            continue  # the program works without it too


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
    """Make this process a subreaper: the new parent of each descendant whose own parent has ended."""
    _prctl(_CHILD_SUBREAPER, 1)


# ---------------------------------------------------------------------------------------------------------- Landlock

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture

WRITES_ABI, SIGNALS_ABI, DEVICES_ABI, _CONTROL_ABI = 3, 6, 2, 5
"""The first versions of Landlock that can refuse writes, signals, devices, and ioctl on writable devices.

Before version 3, Landlock could not refuse to truncate an outside file. Before version 2, it refused every move of a
file to another directory.
"""

_WRITE_FILE, _READ_FILE, _MOVE, _TRUNCATE, _DEVICE_CONTROL = 1 << 1, 1 << 2, 1 << 13, 1 << 14, 1 << 15
_ONLY_FOLDERS = sum(1 << n for n in range(4, 14))  # remove, create every kind of file, move between directories
# Creating devices: a block device in the workspace would give access to the disk itself.
_NEVER = 1 << 6 | 1 << 11
_SIGNAL_SCOPE = 1 << 1


def _landlock_abi() -> int:
    """Return the version of Landlock; 0 if the kernel does not have it."""
    return max(0, int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def rules(writable: Iterable[int] | None, *, signals: bool) -> int:
    """Return the descriptor of a new Landlock ruleset that limits writes.

    ``writable`` are descriptors of the files, and of the directories with everything below them, that may be written;
    ``None`` allows all writes. With ``signals``, the ruleset also refuses signals to outside processes. A second
    ruleset for signals alone would refuse all moves between directories. Raise ``OSError`` if this kernel's Landlock
    does not support the restrictions.
    """
    handled = 0
    if writable is not None:
        handled = _WRITE_FILE | _ONLY_FOLDERS | _TRUNCATE | (_DEVICE_CONTROL if _landlock_abi() >= _CONTROL_ABI else 0)

    def allowed(descriptor: int) -> int:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        return handled & ~(_NEVER if is_folder else _NEVER | _ONLY_FOLDERS)

    needed_abi, scopes = (SIGNALS_ABI, _SIGNAL_SCOPE) if signals else (WRITES_ABI, 0)
    return _create_ruleset(needed_abi, handled, scopes, ((each, allowed(each)) for each in writable or ()))


def _create_ruleset(needed_abi: int, handled: int, scopes: int, allowed: Iterable[tuple[int, int]]) -> int:
    """Return the descriptor of a ruleset that refuses the rights ``handled`` and the ``scopes``.

    ``allowed`` are exceptions: the descriptor of a file, or of a directory with everything below it, and the rights
    that are allowed on it. Raise ``OSError`` if the version of Landlock is lower than ``needed_abi``.
    """
    if _landlock_abi() < needed_abi:
        raise OSError(errno.EOPNOTSUPP, "this kernel's Landlock does not support this restriction")
    attributes = struct.pack("=QQQ", handled, 0, scopes)
    ruleset = _checked(_LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock")
    try:
        for descriptor, rights in allowed:
            rule = struct.pack("=Qi", rights, descriptor)
            _checked(_LIBC.syscall(_ADD_RULE, ruleset, 1, rule, 0), "landlock_add_rule")
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def _restrict(ruleset: int) -> None:
    """Enforce a ruleset on the calling process, and close its descriptor."""
    try:
        _checked(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _open_paths(paths: Iterable[str], flags: int = 0) -> Iterator[int]:
    """Yield a descriptor of each path that exists. Each descriptor is closed when the next one is requested."""
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
"""Directories whose devices are hidden. Debugfs is among them because it shows root what USB keyboards send."""

_HIDDEN_SYSTEMS = (b"devtmpfs", b"devpts", b"debugfs")


def _hidden_directories() -> list[str]:
    """Return the directories whose devices are hidden: ``_HIDDEN``, and the mount points of device file systems.

    Containers and chroots have such mount points outside ``_HIDDEN``. Mounts of one of ``DEVICES`` are left out,
    because containers mount ``/dev/null`` over files. Mount points that the process cannot reach are left out too.
    """
    found = list(_HIDDEN)
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            mount, _, system = line.partition(b" - ")
            root, point = mount.split()[3:5]
            if system.split()[0] in _HIDDEN_SYSTEMS and f"/dev{os.fsdecode(root)}" not in DEVICES:
                # Spaces and backslashes are octal escapes.
                path = os.fsdecode(point.decode("unicode_escape").encode("latin-1"))
                found += [path] if os.path.exists(path) else []
    return found


def _landlock_devices(devices: Sequence[str]) -> None:
    """Refuse to open any file below the hidden directories, except ``devices``.

    Landlock has no rules that deny, so this ruleset allows every other path. A process may have this ruleset and that
    of ``rules``, and an access must be allowed by both. So devices are refused even if a directory that contains
    ``/dev``, such as ``/``, is writable.
    """
    use = _READ_FILE | _WRITE_FILE
    # A ruleset that does not mention moves refuses them.
    paths = [("/", _MOVE, 0), *((path, use, os.O_NOFOLLOW) for path in _paths_except(_hidden_directories(), "/"))]
    paths += [(path, use, 0) for path in devices]
    # The paths are opened without a stat, which would block if one is on a dead network disk.
    allowed = ((each, rights) for path, rights, flags in paths for each in _open_paths([path], flags))
    _restrict(_create_ruleset(DEVICES_ABI, use | _MOVE, 0, allowed))


def _paths_except(hidden: Sequence[str], folder: str) -> Iterator[str]:
    """Yield the fewest paths that cover everything below a directory except ``hidden``. Links are not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.path in hidden:
                continue
            if any(each.startswith(f"{entry.path}/") for each in hidden):
                yield from _paths_except(hidden, entry.path)
            elif not entry.is_symlink():
                yield entry.path


_DROPPED_CAPABILITIES = (9, 12, 13, 16, 17, 19, 20, 21, 22, 25, 26, 27, 30, 32, 33, 34, 38, 39, 40)
"""Capabilities with which root could bypass Landlock: modules, raw disks and ports, mounts, processes, the clock.

In order: linux_immutable, net_admin, net_raw (reads what others send), sys_module, sys_rawio, sys_ptrace, sys_pacct,
sys_admin, sys_boot, sys_time, sys_tty_config, mknod, audit_control, mac_override, mac_admin, syslog, perfmon, bpf,
checkpoint_restore.
"""


def _drop_capabilities() -> None:
    header, sets = struct.pack("=Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(24)
    _checked(_LIBC.capget(header, sets), "capget")
    dropped = sum(1 << power for power in _DROPPED_CAPABILITIES)
    halves = [half & ~(dropped >> 32 * (n // 3)) for n, half in enumerate(struct.unpack("=6I", sets.raw))]
    _checked(_LIBC.capset(header, struct.pack("=6I", *halves)), "capset")
    for power in _DROPPED_CAPABILITIES:
        try:
            _prctl(_CAPABILITY_DROP, power)
        except OSError as error:
            # The kernel does not know it, or this root has no capabilities that it could drop.
            if error.errno not in (errno.EINVAL, errno.EPERM):
                raise


# ----------------------------------------------------------------------------------------------------------- seccomp

_IO_URING = ("io_uring_setup", "io_uring_enter", "io_uring_register")
"""The calls of io_uring, which can create sockets too."""

_KEYS = ("add_key", "request_key", "keyctl")
"""Calls for kernel keys. All programs of a user share them, and the kernel runs a program as root to find one."""

_TRACING = ("ptrace", "process_vm_writev", "pidfd_getfd")
"""Calls that can make another process open a socket.

Debuggers need these calls for the command's own processes. Landlock limits the calls to these processes, so they are
refused only without Landlock.
"""

_QUEUES = ("mq_open", "mq_unlink", "msgget", "msgsnd", "msgrcv", "msgctl")
"""Calls for message queues. All programs of a user share the queues, except those in a namespace."""

_SUBVOLUMES = (0x5000940E, 0x50009418, 0x50009401, 0x50009417, 0x5000940F, 0x5000943F, 0x4008941A)
"""The requests by which btrfs creates, copies, removes and locks subvolumes, which are a kind of directory.

Landlock does not check them. In order: SUBVOL_CREATE, SUBVOL_CREATE_V2, SNAP_CREATE, SNAP_CREATE_V2, SNAP_DESTROY,
SNAP_DESTROY_V2, SUBVOL_SETFLAGS.
"""

_PRIO_USER, _IOPRIO_WHO_USER, _TYPE_OF_SOCKET = 2, 3, 0xF

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
"""Offsets in ``struct seccomp_data``: the architecture, the number of the call, the lower halves of its arguments."""

_PROCESS_ARGUMENT = {
    **dict.fromkeys(
        ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"), _FIRST
    ),
    **dict.fromkeys(("setpriority", "ioprio_set"), _SECOND),
}
"""Calls that set limits and priorities, each with the offset of the argument that names the process or group.

In that argument, 0 is the caller's own process or group.
"""

_LOAD, _AND, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_TO_REFUSE = -1
"""A placeholder for a jump to the last line, which refuses the call."""
_KILL, _REFUSE, _PERMIT = 0x80000000, 0x00050000 | errno.EACCES, 0x7FFF0000


def _refuse_calls(fence: Fence, *, has_others: bool) -> None:
    """Install a seccomp filter that enforces ``fence`` for the calling process.

    The filter also refuses calls that have the effect of a refused call. With ``has_others``, it refuses calls that
    affect other processes. Raise ``OSError`` if the filter cannot be installed.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES or struct.calcsize("P") != 8:
        raise OSError(errno.EOPNOTSUPP, f"seccomp is not used on {machine}")
    architecture, column = _ARCHITECTURES[machine]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),  # a program of another architecture has other numbers
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *([(_JUMP_IF_AT_LEAST, _TO_REFUSE, 0, _X32)] if machine == "x86_64" else []),
    ]

    def refuse(*names: str) -> None:
        lines.extend((_JUMP_IF_EQUAL, _TO_REFUSE, 0, _NUMBERS[name][column]) for name in names)

    def refuse_if(name: str, argument: int, *values: int, is_equal: bool = True, mask: int = 0xFFFFFFFF) -> None:
        """Refuse a call if its masked argument is one of ``values`` or, without ``is_equal``, none of them."""
        jumps = (_TO_REFUSE, 0) if is_equal else (0, _TO_REFUSE)
        tests = [(_JUMP_IF_EQUAL, *jumps, value) for value in values]
        test = [(_LOAD, 0, 0, argument), (_AND, 0, 0, mask), *tests, (_LOAD, 0, 0, _NUMBER)]
        lines.extend([(_JUMP_IF_EQUAL, 0, len(test), _NUMBERS[name][column]), *test])

    refuse(*_IO_URING, *_KEYS)
    if fence.writable is None and fence.devices is None and not fence.signals:
        refuse(*_TRACING)
    if fence.writable is not None:
        refuse_if("ioctl", _SECOND, *_SUBVOLUMES)
    if has_others:
        refuse(*_QUEUES)
        refuse_if("setpriority", _FIRST, _PRIO_USER)
        refuse_if("ioprio_set", _FIRST, _IOPRIO_WHO_USER)
        for name, argument in _PROCESS_ARGUMENT.items():
            refuse_if(name, argument, 0, is_equal=False)
    if fence.network:
        refuse("socket")
    elif fence.unix_sockets:
        refuse_if("socket", _FIRST, socket.AF_UNIX)
    if fence.network or fence.unix_sockets:
        # A datagram socket of a pair can send to any other; streams of a pair only to each other.
        refuse_if("socketpair", _SECOND, socket.SOCK_DGRAM, socket.SOCK_RAW, mask=_TYPE_OF_SOCKET)
    lines += [(_RETURN, 0, 0, _PERMIT), (_RETURN, 0, 0, _REFUSE)]
    program = [
        (code, *(len(lines) - n - 2 if to == _TO_REFUSE else to for to in jumps), value)
        for n, (code, *jumps, value) in enumerate(lines)
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    _prctl(_SECCOMP, 2, ctypes.c_char_p(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))))


# ----------------------------------------------------------------------------------------------------- PID namespace

_NEW_MOUNTS, _NEW_IPC, _NEW_USERS, _NEW_PIDS = 0x20000, 0x8000000, 0x10000000, 0x20000000
_MOUNT_FLAGS = 0x2 | 0x4 | 0x8  # no set-user-id, no devices, no programs
_SLAVES_ALL = (1 << 19) | (1 << 14)


def enter_pid_namespace() -> None:
    """Create a PID namespace, whose first process is the next that this process forks. Raise ``OSError`` on failure.

    The namespace also has its own System V shared memory, semaphores and message queues. If the user may not create a
    PID namespace directly, it is created in a new user namespace, in which the ids of the user and group stay the same.
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
    """Mount a ``/proc`` of only this PID namespace for this process and its children. Raise ``OSError`` on failure."""
    _checked(_LIBC.unshare(_NEW_MOUNTS), "unshare")
    _checked(_LIBC.mount(None, b"/", None, ctypes.c_ulong(_SLAVES_ALL), None), "mount /")
    _checked(_LIBC.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(_MOUNT_FLAGS), None), "mount /proc")
