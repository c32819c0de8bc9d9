"""Process 1 of a sandbox: takes a job from a socket, and sends the program's end and files back.

It runs inside, so it has only the standard library, and little of that, since every sandbox pays
for what it imports. The program is another process, with fewer rights and without the socket, so
what is told here is what this process saw of it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # without enumerations: 5 ms less
import os
import resource
import select
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM = "__program__.py"  # a FIFO on which a Python, already started, waits for its script
USER = 1000  # the program's, where pid 1 may change it
MOST_SEEN = 20_000  # files looked at for those to fetch
FAILED = 255  # exit status of a step that failed without an error number
PRLIMIT = {"x86_64": 302, "aarch64": 261}  # the call's number
LENGTH = 8  # bytes before each part of a message that say how long it is


def main(control: int, change_user: bool, python: str) -> None:
    close_all_but(control)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel keeps such signals from pid 1
    if not change_user:
        hide()
    os.umask(0)
    os.mkfifo(PROGRAM, 0o666)
    os.umask(0o022)

    def execute(command: list[str]) -> None:
        if not change_user:
            keep_limits()
        os.execv(command[0], command)

    waiting = spawn(lambda: execute([python, PROGRAM]), change_user=change_user)
    job = [receive(control) for _ in range(int(receive(control)))]
    command, patterns = job[0].decode().split("\0"), job[2].decode().split("\0")
    cpu_s, processes, address_space, num_files, num_bytes = (int(word) for word in job[1].split())
    files = list(zip(job[3::2], job[4::2], strict=True))
    waits = command == [""]

    def hold(pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        resource.prlimit(pid, resource.RLIMIT_NPROC, (processes, processes))
        if address_space:
            resource.prlimit(pid, resource.RLIMIT_AS, (address_space, address_space))

    def release() -> None:
        hand_over(lambda: hold(waiting))

    def start() -> None:
        hold(0)
        execute(command)

    if not waits:
        os.kill(waiting, signal.SIGKILL)
        os.unlink(PROGRAM)
    failure = finish(spawn(lambda: place(files), change_user=change_user))
    if failure:
        ended = f"unplaced {failure} 0"
    elif waits:
        ended = watch(control, waiting, spawn(release, change_user=change_user))
    else:
        ended = watch(control, spawn(start, change_user=change_user))
    end_all()
    full = os.statvfs("/tmp").f_bavail == 0
    send(control, f"{ended} {full:d}".encode())
    if patterns != [""]:
        sending = (control, patterns, num_files, num_bytes)
        finish(spawn(lambda: collect(*sending), change_user=change_user))
    send(control, b"complete")


def close_all_but(kept: int) -> None:
    """Close what bwrap left open; the program must not hold any of it."""
    os.set_inheritable(kept, False)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            try:
                os.close(int(name))
            except OSError:  # the listing's own
                continue


def hide() -> None:
    """Keep programs of the same user out of this process's memory and files."""
    import ctypes

    PR_SET_DUMPABLE = 4
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def keep_limits() -> None:
    """Keep this process, and what it will start, from changing the limits of others.

    Another process of the same user is free to be changed by `prlimit`, this file's process too. A
    filter of system calls refuses that call for all but the caller itself (0).
    """
    import ctypes

    PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
    number = PRLIMIT.get(os.uname().machine)
    if number is None:
        return
    steps = (  # load the call's number; if it is prlimit, load its first argument; EPERM or allow
        (0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 16), (0x15, 1, 0, 0),
        (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000),
    )  # fmt: skip

    class Step(ctypes.Structure):
        _fields_ = (
            ("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8),
            ("operand", ctypes.c_uint32),
        )  # fmt: skip

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_uint16), ("steps", ctypes.POINTER(Step)))

    filter = Program(len(steps), (Step * len(steps))(*(Step(*step) for step in steps)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter), 0, 0):
        raise OSError(ctypes.get_errno(), "no filter of system calls")


def receive(control: int) -> bytes:
    return exactly(control, int.from_bytes(exactly(control, LENGTH), "big"))


def exactly(control: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(control, min(size - len(data), 1 << 20))
        if not chunk:  # nobody waits for this sandbox any more
            sys.exit()
        data += chunk
    return bytes(data)


def send(control: int, data: bytes) -> None:
    data = len(data).to_bytes(LENGTH, "big") + data
    while data:
        data = data[os.write(control, data) :]


def spawn(work: Callable[[], None], *, change_user: bool) -> int:
    """Do `work` in a child with the program's rights; its exit status is the error number."""
    pid = os.fork()
    if pid:
        return pid
    status = FAILED
    try:
        os.setsid()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if change_user:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
        work()
        status = 0
    except OSError as error:
        status = error.errno or FAILED
    finally:
        os._exit(status)


def finish(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def place(files: list[tuple[bytes, bytes]]) -> None:
    for path, content in files:
        os.makedirs(os.path.dirname(path) or b".", exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def hand_over(ready: Callable[[], None]) -> None:
    """Give the waiting Python its script, and put the script's file in place of the FIFO.

    The file is for tracebacks and `inspect`, which read the source again by its path.
    """
    aside = f"{PROGRAM}.new"
    with open(aside, "rb") as file, open(PROGRAM, "wb") as fifo:  # waits for the Python to open it
        ready()
        os.rename(aside, PROGRAM)
        fifo.write(file.read())


def watch(control: int, program: int, releaser: int = 0) -> str:
    """Return an event, its number (return code or error number), and the program's CPU seconds."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == program:
            cpu_s = usage.ru_utime + usage.ru_stime
            return f"ended {os.waitstatus_to_exitcode(status)} {cpu_s:.3f}"
        if pid == releaser and pid and os.waitstatus_to_exitcode(status) > 0:
            return f"unreleased {os.waitstatus_to_exitcode(status)} 0"
        if pid:
            continue  # an orphan
        ready = [fd for fd, _ in poll.poll()]
        if control in ready:
            os.read(control, LENGTH)
            return "stopped 0 0"
        os.read(woken, 4096)


def end_all() -> None:
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
            os.waitpid(-1, 0)
        except (ProcessLookupError, ChildProcessError):
            return


def collect(control: int, patterns: list[str], num_files: int, num_bytes: int) -> None:
    """Send each file that matches: b"file", path, content; or b"left out", path."""
    split = [[step for step in text.split("/") if step not in ("", ".")] for text in patterns]
    for path in regular_files():
        parts = path.split("/")
        if not any(parts == pattern or matches(parts, pattern) for pattern in split):
            continue
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:  # the program took away its own right to read it
            continue
        size = os.fstat(file).st_size
        if not num_files or size > num_bytes or not is_text(path):
            send(control, b"left out")
            send(control, os.fsencode(path))
        else:
            num_files, num_bytes = num_files - 1, num_bytes - size
            send(control, b"file")
            send(control, os.fsencode(path))
            send_file(control, file, size)
        os.close(file)


def is_text(path: str) -> bool:
    """Return whether a path can be written in UTF-8, as it must be to place the file again."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def send_file(control: int, file: int, size: int) -> None:
    """Without a copy in memory, which may be full."""
    header = size.to_bytes(LENGTH, "big")
    os.write(control, header)
    while size:
        size -= os.sendfile(control, file, None, size)


def regular_files() -> Iterator[str]:
    """Paths below the working directory, sorted; no link is followed."""
    seen = 0
    for folder, folders, names in os.walk("."):
        folders[:] = sorted(name for name in folders if not name.startswith("__program__"))
        for name in sorted(names):
            path = os.path.join(folder, name)[2:]
            seen += 1
            if seen > MOST_SEEN:
                return
            if not name.startswith("__program__") and stat.S_ISREG(os.lstat(path).st_mode):
                yield path


def matches(parts: list[str], pattern: list[str]) -> bool:
    """Match like a glob: * stays within one part of a path, ** is any number of parts."""
    from fnmatch import fnmatchcase

    reached = {0}  # how many parts what is behind us of the pattern may have taken
    for step in pattern:
        if step == "**":
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {n + 1 for n in reached if n < len(parts) and fnmatchcase(parts[n], step)}
        if not reached:
            return False
    return len(parts) in reached


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "change", sys.argv[3])
    os._exit(0)  # there is nothing to tidy up
