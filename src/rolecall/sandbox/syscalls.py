"""A machine's architecture comes in, a seccomp filter (classic BPF) for its system calls goes out.

Namespaces are the walls; this takes away the tools to work on them: new namespaces and mounts,
other processes' memory, kernel interfaces that no ordinary program needs, and sockets that are
not of a network namespace (vsock would reach the machine's host).
"""

from __future__ import annotations

import errno
import socket
import struct

# Names and numbers of linux/audit.h and asm/unistd.h: (x86-64, 64-bit ARM).
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
CLONE, CLONE3, SOCKET = (56, 220), (435, 435), (41, 198)
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWUSER, _NEWNS, _NEWNET, ... as `clone` takes them
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
X32 = 0x40000000  # numbers from here on are a second way to make the same calls on x86-64

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENT_AT = 0, 4, 16  # offsets in struct seccomp_data
ALLOW, FAIL = 0x7FFF0000, 0x00050000


def syscall_filter(machine: str) -> bytes | None:
    """The filter's program for bwrap's --seccomp, or None for a machine whose calls are unknown."""
    if machine not in ARCHITECTURES:
        return None
    column, architecture = ARCHITECTURES[machine]
    refuse = _step(RETURN, FAIL | errno.EPERM)
    program = [
        _step(LOAD, ARCHITECTURE_AT),
        _step(EQUAL, architecture, yes=1),
        refuse,
        _step(LOAD, NUMBER_AT),
        *_when(AT_LEAST, X32, [refuse]),
        # Programs fall back to `clone`, whose flags a filter can see.
        *_when(EQUAL, CLONE3[column], [_step(RETURN, FAIL | errno.ENOSYS)]),
    ]
    for numbers in REFUSED.values():
        program += _when(EQUAL, numbers[column], [refuse])
    flags = [_step(LOAD, ARGUMENT_AT), *_when(ANY_BIT, NEW_NAMESPACES, [refuse])]
    program += _when(EQUAL, CLONE[column], [*flags, _step(RETURN, ALLOW)])
    family = [_step(LOAD, ARGUMENT_AT)]
    for known in FAMILIES:
        family += _when(EQUAL, known, [_step(RETURN, ALLOW)])
    program += _when(EQUAL, SOCKET[column], [*family, refuse])
    return b"".join([*program, _step(RETURN, ALLOW)])


def _step(code: int, operand: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One instruction; `yes` and `no` are how many to skip after a comparison."""
    return struct.pack("=HBBI", code, yes, no, operand)


def _when(code: int, operand: int, then: list[bytes]) -> list[bytes]:
    return [_step(code, operand, no=len(then)), *then]
