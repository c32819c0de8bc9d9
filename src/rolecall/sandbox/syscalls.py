"""Builds the seccomp filter (classic BPF) for the system calls of an architecture.

Namespaces are the walls; this leaves programs the calls that they need (`syscall_table`), and none
of the tools to work on the walls: new namespaces and mounts, other processes' memory, kernel
interfaces that few programs use, and sockets that are not of a network namespace (vsock would reach
the machine's host).

A call that is not among them fails with EPERM, as one that needs a right does. A call that is newer
than the table fails with ENOSYS, as on an older kernel, so that the C library takes the call it
took before there was a new one; so does `clone3`, whose flags a filter cannot see.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable

from rolecall.sandbox.syscall_table import ALLOWED, NEWEST

# Names and numbers of linux/audit.h and asm/unistd.h: (x86-64, 64-bit ARM).
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
CLONE, CLONE3, SOCKET, SOCKETPAIR = (56, 220), (435, 435), (41, 198), (53, 199)
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWUSER, _NEWNS, _NEWNET, ... as `clone` takes them
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
NETLINK_ROUTE = 0  # the one protocol of AF_NETLINK that is needed: it lists interfaces
X32 = 0x40000000  # numbers from here on are a second way to make the same calls on x86-64

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Offsets in struct seccomp_data; of the arguments, the first and the third.
NUMBER_AT, ARCHITECTURE_AT, ARGUMENT_AT, THIRD_AT = 0, 4, 16, 32
ALLOW, FAIL = 0x7FFF0000, 0x00050000


def syscall_filter(machine: str) -> bytes | None:
    """Return the program for bwrap's --seccomp, or None for a machine whose calls are unknown."""
    if machine not in ARCHITECTURES:
        return None
    column, architecture = ARCHITECTURES[machine]
    allow, refuse = _step(RETURN, ALLOW), _step(RETURN, FAIL | errno.EPERM)
    program = [
        _step(LOAD, ARCHITECTURE_AT),
        _step(EQUAL, architecture, yes=1),
        refuse,
        _step(LOAD, NUMBER_AT),
        *_when(AT_LEAST, X32, [refuse]),
        *_when(EQUAL, CLONE3[column], [_step(RETURN, FAIL | errno.ENOSYS)]),
    ]
    flags = [_step(LOAD, ARGUMENT_AT), *_when(ANY_BIT, NEW_NAMESPACES, [refuse])]
    program += _when(EQUAL, CLONE[column], [*flags, allow])
    program += _when(EQUAL, SOCKET[column], _families(allow, refuse))
    # asyncio and multiprocessing need pairs of AF_UNIX, which reach nobody else.
    pair = [_step(LOAD, ARGUMENT_AT), *_when(EQUAL, socket.AF_UNIX, [allow]), refuse]
    program += _when(EQUAL, SOCKETPAIR[column], pair)
    for first, last in _ranges(calls[column] for calls in ALLOWED.values()):
        program += [_step(AT_LEAST, first, yes=1), refuse, _step(AT_LEAST, last + 1, yes=1), allow]
    newer = _when(AT_LEAST, NEWEST + 1, [_step(RETURN, FAIL | errno.ENOSYS)])
    return b"".join([*program, *newer, refuse])


def _families(allow: bytes, refuse: bytes) -> list[bytes]:
    """Return the filter steps of `socket`, by its first argument."""
    steps = [_step(LOAD, ARGUMENT_AT)]
    for family in FAMILIES:
        steps += _when(EQUAL, family, [allow])
    route = [_step(LOAD, THIRD_AT), *_when(EQUAL, NETLINK_ROUTE, [allow]), refuse]
    return [*steps, *_when(EQUAL, socket.AF_NETLINK, route), refuse]


def _ranges(numbers: Iterable[int | None]) -> list[tuple[int, int]]:
    """First and last of each run: 0, 1, 2, 5, None -> (0, 2), (5, 5)."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(number for number in numbers if number is not None):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _step(code: int, operand: int, *, yes: int = 0, no: int = 0) -> bytes:
    """Encode one instruction; `yes` and `no` are how many to skip after a comparison."""
    return struct.pack("=HBBI", code, yes, no, operand)


def _when(code: int, operand: int, then: list[bytes]) -> list[bytes]:
    return [_step(code, operand, no=len(then)), *then]
