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

# The newest call whose number was looked at: of later ones nobody has decided anything.
NEWEST = 462

# fmt: off
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # Files and folders, in a mount namespace that holds nothing of the host's.
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286),
    "pwritev2": (328, 287), "open": (2, None), "openat": (257, 56), "openat2": (437, 437),
    "creat": (85, None), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23),
    "dup2": (33, None), "dup3": (292, 24), "lseek": (8, 62), "fcntl": (72, 25), "flock": (73, 32),
    "ioctl": (16, 29), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, None), "readlinkat": (267, 78), "getdents": (78, None),
    "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "mknod": (133, None), "mknodat": (259, 33), "chmod": (90, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "fchown": (93, 55),
    "lchown": (94, None), "fchownat": (260, 54), "umask": (95, 166), "truncate": (76, 45),
    "ftruncate": (77, 46), "fallocate": (285, 47), "fadvise64": (221, 223),
    "readahead": (187, 213), "sync": (162, 81), "fsync": (74, 82), "fdatasync": (75, 83),
    "syncfs": (306, 267), "sync_file_range": (277, 84), "utime": (132, None),
    "utimes": (235, None), "utimensat": (280, 88), "futimesat": (261, None), "sendfile": (40, 71),
    "splice": (275, 76), "copy_file_range": (326, 285), "memfd_create": (319, 279),
    "pipe": (22, None), "pipe2": (293, 59), "getxattr": (191, 8), "lgetxattr": (192, 9),
    "fgetxattr": (193, 10), "listxattr": (194, 11), "llistxattr": (195, 12),
    "flistxattr": (196, 13), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "inotify_rm_watch": (255, 28), "cachestat": (451, 451),
    # Waiting for several things at once.
    "select": (23, None), "pselect6": (270, 72), "poll": (7, None), "ppoll": (271, 73),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "eventfd": (284, None), "eventfd2": (290, 19), "signalfd": (282, None),
    "signalfd4": (289, 74), "timerfd_create": (283, 85), "timerfd_settime": (286, 86),
    "timerfd_gettime": (287, 87),
    # Memory, which a control group counts.
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216),
    "mprotect": (10, 226), "madvise": (28, 233), "msync": (26, 227), "mincore": (27, 232),
    "mlock": (149, 228), "mlock2": (325, 284), "munlock": (150, 229), "mlockall": (151, 230),
    "munlockall": (152, 231), "membarrier": (324, 283), "pkey_alloc": (330, 289),
    "pkey_free": (331, 290), "pkey_mprotect": (329, 288), "get_mempolicy": (239, 236),
    "mseal": (462, 462), "map_shadow_stack": (453, 453),
    # Processes, threads and signals, in a PID namespace of their own. Users: pid 1 changes them.
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "exit": (60, 93), "exit_group": (231, 94), "wait4": (61, 260), "waitid": (247, 95),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigpending": (127, 136), "rt_sigreturn": (15, 139), "rt_sigsuspend": (130, 133),
    "rt_sigtimedwait": (128, 137), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "sigaltstack": (131, 132), "pause": (34, None), "alarm": (37, None), "setitimer": (38, 103),
    "getitimer": (36, 102), "restart_syscall": (219, 128), "getpid": (39, 172),
    "getppid": (110, 173), "gettid": (186, 178), "getpgid": (121, 155), "setpgid": (109, 154),
    "getpgrp": (111, None), "setsid": (112, 157), "getsid": (124, 156), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148),
    "getresgid": (120, 150), "getgroups": (115, 158), "setuid": (105, 146), "setgid": (106, 144),
    "setreuid": (113, 145), "setregid": (114, 143), "setresuid": (117, 147),
    "setresgid": (119, 149), "setgroups": (116, 159), "setfsuid": (122, 151),
    "setfsgid": (123, 152), "capget": (125, 90), "prctl": (157, 167), "arch_prctl": (158, None),
    "set_tid_address": (218, 96), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "futex": (202, 98), "futex_waitv": (449, 449), "futex_wake": (454, 454),
    "futex_wait": (455, 455), "futex_requeue": (456, 456), "rseq": (334, 293),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "sched_setaffinity": (203, 122),
    "sched_getparam": (143, 121), "sched_setparam": (142, 118), "sched_getscheduler": (145, 120),
    "sched_setscheduler": (144, 119), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "sched_rr_get_interval": (148, 127),
    "sched_getattr": (315, 275), "sched_setattr": (314, 274), "getpriority": (140, 141),
    "setpriority": (141, 140), "getrlimit": (97, 163), "setrlimit": (160, 164),
    "prlimit64": (302, 261), "getrusage": (98, 165), "times": (100, 153), "getcpu": (309, 168),
    # Clocks.
    "time": (201, None), "gettimeofday": (96, 169), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "timer_create": (222, 107), "timer_settime": (223, 110), "timer_gettime": (224, 108),
    "timer_getoverrun": (225, 109), "timer_delete": (226, 111),
    # What machine it is.
    "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278),
    # Sockets that exist; `socket` and `socketpair` look at the family of new ones.
    "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200),
    "listen": (50, 201), "getsockname": (51, 204), "getpeername": (52, 205), "sendto": (44, 206),
    "recvfrom": (45, 207), "sendmsg": (46, 211), "recvmsg": (47, 212), "sendmmsg": (307, 269),
    "recvmmsg": (299, 243), "shutdown": (48, 210), "setsockopt": (54, 208),
    "getsockopt": (55, 209),
    # Memory and messages that processes share, in an IPC namespace of their own.
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183), "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
}
# fmt: on


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
