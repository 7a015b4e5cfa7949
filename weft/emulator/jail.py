"""Limits on a process that runs a foreign kernel: what it may use, and which calls of the system it may make.

Two steps, each for good: `limit` before the text is compiled, `lock_in` before the result is loaded. Where the system has no such filter (it is Linux's
seccomp), `lock_in` returns False and the limits alone hold. docs/security.md says what this protects from. Read first: `lock_in`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

MEMORY_BYTES = 8 * 2**30
"""Address space in addition to the buffers: the interpreter, the compiler, the emulator's stacks and its records of accesses."""

FILE_BYTES = 256 * 2**20
OPEN_FILES = 256

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2  # prctl
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF: ld word, jeq, jge, jset, ret
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32_BIT = 0x40000000
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# name: (x86-64, aarch64); None: the machine has no such call. Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # processes
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435), "execve": (59, 221), "execveat": (322, 281),
    "setsid": (112, 157), "setpgid": (109, 154), "unshare": (272, 97), "setns": (308, 268), "ptrace": (101, 117), "tkill": (200, 130),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    # network, and io_uring, which would bypass this filter
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242),
    "sendto": (44, 206), "sendmsg": (46, 211), "sendmmsg": (307, 269), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    # files
    "creat": (85, None), "openat2": (437, 437), "truncate": (76, 45), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "unlink": (87, None), "unlinkat": (263, 35), "rmdir": (84, None), "mkdir": (83, None), "mkdirat": (258, 34), "mknod": (133, None),
    "mknodat": (259, 33), "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "chmod": (90, None),
    "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "utimensat": (280, 88), "mount": (165, 40), "umount2": (166, 39),
    "chroot": (161, 51), "pivot_root": (155, 41), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "open_by_handle_at": (304, 265),
    # the rest of the machine
    "bpf": (321, 280), "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "userfaultfd": (323, 282),
    "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104), "reboot": (169, 142), "swapon": (167, 224), "setrlimit": (160, 164),
    "setuid": (105, 146), "setgid": (106, 144), "setresuid": (117, 147), "setresgid": (119, 149), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
}  # fmt: skip
_OPENS = {"open": ((2, None), 1), "openat": ((257, 56), 2)}  # numbers, and the position of the flags argument
_ONLY_SELF = {"kill": (62, 129), "tgkill": (234, 131)}  # the first argument is a process
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def limit(buffer_bytes: int, seconds: float) -> None:
    """Limit this process and its children: memory, processor time, sizes and number of files, no core dump."""
    import resource

    wanted = {
        "RLIMIT_AS": MEMORY_BYTES + 8 * buffer_bytes, "RLIMIT_CPU": int(seconds) + 1, "RLIMIT_FSIZE": FILE_BYTES, "RLIMIT_NOFILE": OPEN_FILES, "RLIMIT_CORE": 0,
    }  # fmt: skip
    for name, most in wanted.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (OSError, ValueError):  # this system has no such limit
            continue


def lock_in() -> bool:
    """Refuse, from now on, new processes, the network, writing to files that are not open, and signals to others. Return whether the system supports that."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # for users other than root; the filter is for all
    except (ImportError, AttributeError, OSError, ValueError):  # not on this system
        pass
    if not sys.platform.startswith("linux") or platform.machine() not in _MACHINES or struct.calcsize("P") != 8:
        return False
    program = _program(platform.machine(), os.getpid())
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)):
        return False
    text = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
    return library.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER), ctypes.create_string_buffer(header, len(header))) == 0


def _program(machine: str, process: int) -> bytes:
    """Return the filter as BPF instructions: code, jump if true, jump if false, constant."""
    column, tag = _MACHINES[machine]
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    lines = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, tag), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, _X32_BIT), refuse]
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            lines += [(_EQUAL, 0, 1, number), refuse]
    for numbers, flags_at in _OPENS.values():
        number = numbers[column]
        if number is not None:
            lines += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENTS + 8 * flags_at), (_ANY_BIT, 0, 1, _WRITES), refuse, (_RETURN, 0, 0, _ALLOW)]
    for numbers in _ONLY_SELF.values():
        lines += [(_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, _ARGUMENTS), (_EQUAL, 1, 0, process), refuse, (_RETURN, 0, 0, _ALLOW)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)
