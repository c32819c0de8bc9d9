"""Plans how each sandbox is built and confined from what this machine offers."""

from __future__ import annotations

import itertools
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from rolecall.sandbox.base import SandboxError
from rolecall.sandbox.cgroups import MemoryGroups, memory_groups
from rolecall.sandbox.inside import init
from rolecall.sandbox.orphans import end_orphans
from rolecall.sandbox.syscalls import syscall_filter

QUESTIONS = """
import json, os, sys, sysconfig
from importlib.util import find_spec
print(json.dumps({
    "program": os.path.realpath(sys.executable),
    "made_of": getattr(sys, "_base_executable", "") or sys.executable,
    "prefix": os.path.realpath(sys.prefix),
    "base": os.path.realpath(sys.base_prefix),
    "packages": list(dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib")))),
    "shared": bool(sysconfig.get_config_var("Py_ENABLE_SHARED")),
    "pytest": find_spec("pytest") is not None,
}))
"""
HOME = "/opt/python"  # the path outside may lead through somebody's home directory


class Facts(TypedDict):
    program: str
    made_of: str  # for a virtual environment: the Python it was made of
    prefix: str
    base: str  # prefix of that Python
    packages: list[str]  # directories
    shared: bool  # its library is a file beside it
    pytest: bool


@dataclass(frozen=True, slots=True)
class Interpreter:
    program: str  # its path inside
    mounts: dict[str, str | None]  # directory inside -> outside, read-only; None: empty
    environment: dict[str, str]
    has_pytest: bool


def find_interpreter(python: str, *, packages: bool) -> Interpreter:
    """Find what a sandbox needs of `python`, in a virtual environment or not, with its packages if
    `packages`.

    They are mounted over those of the Python it was made of, so nothing else is importable.
    Raises SandboxError if it cannot be asked.
    """
    facts = _ask(python)
    base = facts if facts["prefix"] == facts["base"] else _ask(facts["made_of"])
    moved = not Path(base["prefix"]).is_relative_to("/usr")

    def inside(path: str) -> str:
        return str(Path(HOME, Path(path).relative_to(base["prefix"]))) if moved else path

    mounts: dict[str, str | None] = {HOME: base["prefix"]} if moved else {}
    for number, folder in enumerate(base["packages"]):
        if not packages:
            mounts[inside(folder)] = None
        elif facts["prefix"] != base["prefix"]:
            mounts[inside(folder)] = facts["packages"][number]
    environment = {"LD_LIBRARY_PATH": f"{HOME}/lib"} if moved and base["shared"] else {}
    return Interpreter(inside(base["program"]), mounts, environment, packages and facts["pytest"])


def _ask(python: str) -> Facts:
    try:
        process = subprocess.run(
            [python, "-I", "-c", QUESTIONS], capture_output=True, check=True, timeout=60
        )
        facts: Facts = json.loads(process.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(f"the sandbox's Python {python} cannot be started: {error}") from error
    return facts


WORK = "/tmp/work"
INIT = "/opt/init.py"
FOLDER = ("--perms", "0755", "--dir")
DEVICES = ("null", "zero", "full", "random", "urandom")
# Of /etc, what the loader and Debian's command names need.
SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives")
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": WORK,
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same program does the same again
    "OMP_NUM_THREADS": "1",  # else numerical libraries start a thread for every core
}
# What pid 1 may do in its user namespace: start the program as another user, and end it.
RIGHTS = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL")
NUMBERS = itertools.count()
UNENFORCED = ("memory", "syscalls")


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    bwrap: str
    python: Interpreter
    groups: MemoryGroups | None  # None: memory is limited for each process, by RLIMIT_AS
    filter: bytes | None  # seccomp program; None: all system calls are open
    change_user: bool  # each sandbox is a user of its own; only root can do so

    def command(
        self, *, disk_mb: int, control: int, info: int, go: int, syscalls: int
    ) -> list[str]:
        """Return bwrap's command line; the last four are the numbers of open files handed to it."""
        arguments = [
            *(self.bwrap, "--unshare-all", "--unshare-user", "--hostname", "sandbox"),
            *("--as-pid-1", "--die-with-parent", "--new-session"),
            *("--info-fd", str(info), "--userns-block-fd", str(go)),
            *("--uid", self._uid, "--gid", self._uid, "--cap-drop", "ALL"),
        ]
        for right in RIGHTS if self.change_user else ():
            arguments += ["--cap-add", right]
        if self.filter is not None:
            arguments += ["--seccomp", str(syscalls)]
        arguments += [
            *_system(),
            *_devices(),
            "--proc",
            "/proc",
            "--perms",
            "0755",
            "--dir",
            "/opt",
        ]
        for inside, outside in {**self.python.mounts, INIT: init.__file__}.items():
            arguments += ["--ro-bind", outside, inside] if outside else _empty(inside)
        arguments += [
            *("--perms", "1777", "--size", str(disk_mb << 20), "--tmpfs", "/tmp"),
            *("--perms", "0777", "--dir", WORK, "--chdir", WORK, "--remount-ro", "/"),
            "--clearenv",
        ]
        for name, value in {**ENVIRONMENT, **self.python.environment}.items():
            arguments += ["--setenv", name, value]
        rights = "change" if self.change_user else "keep"
        python = self.python.program
        return [*arguments, python, "-I", "-S", INIT, str(control), rights, python]

    def user_maps(self) -> dict[str, str]:
        """Return contents of files of /proc/PID, which say who the users of a sandbox are outside
        of it.
        """
        if not self.change_user:
            maps = {"setgroups": "deny", "uid_map": f"{self._uid} {os.getuid()} 1"}
            return {**maps, "gid_map": f"{self._uid} {os.getgid()} 1"}
        # Each process that has sandboxes has 256 users for them, and takes them in turn.
        own = 1_000_000 + os.getpid() * 256 + next(NUMBERS) % 256
        users = f"0 0 1\n{init.USER} {own} 1\n"
        return {"uid_map": users, "gid_map": users}

    @property
    def isolation(self) -> str:
        """Return a description of the walls, and of the limits that are weaker than they should
        be.
        """
        weak = [] if self.groups else ["memory is limited for each process only (RLIMIT_AS)"]
        weak += [] if self.filter else ["system calls are not filtered"]
        return "; ".join(["bubblewrap", *weak])

    @property
    def _uid(self) -> str:
        return "0" if self.change_user else str(init.USER)


def plan_sandboxes(
    python: str, *, packages: bool, unenforced: Collection[str], cgroup: Path | None
) -> SandboxPlan:
    """Plan the sandboxes of this machine.

    Raises SandboxError for what this machine lacks, except limits named in `unenforced`.
    """
    for name in unenforced:
        if name not in UNENFORCED:
            raise ValueError(f"unenforced knows {', '.join(UNENFORCED)}, got {name!r}")
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError(
            "programs run in bubblewrap only, and there is no `bwrap` on the PATH: "
            "apt-get install bubblewrap, or dnf install bubblewrap"
        )
    end_orphans(INIT)
    groups = None
    try:
        groups = memory_groups(cgroup)
    except OSError as error:
        if "memory" not in unenforced:
            raise SandboxError(
                f"memory_mb cannot be enforced here: {error}. Start the process where it may make "
                "control groups (systemd-run --user --scope), or accept a limit for each process "
                'instead: unenforced=["memory"]'
            ) from error
    program = syscall_filter(platform.machine())
    if program is None and "syscalls" not in unenforced:
        raise SandboxError(
            f"there is no system call filter for {platform.machine()}; "
            'accept sandboxes without one: unenforced=["syscalls"]'
        )
    interpreter = find_interpreter(python, packages=packages)
    return SandboxPlan(bwrap, interpreter, groups, program, change_user=os.getuid() == 0)


def _system() -> list[str]:
    """Programs and libraries, read-only; nothing of /home, /root, /var, and little of /etc."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(name):
            arguments += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            arguments += ["--ro-bind", name, name]
    for name in SETTINGS:
        arguments += ["--ro-bind-try", name, name]
    return arguments


def _empty(folder: str) -> list[str]:
    """Return options for an empty folder, in which nothing can be written: it would be memory."""
    return ["--perms", "0555", "--size", "4096", "--tmpfs", folder, "--remount-ro", folder]


def _devices() -> list[str]:
    arguments = [*FOLDER, "/dev"]
    for name in DEVICES:
        arguments += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    links = {"fd": "/proc/self/fd", "shm": "/tmp"}
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        links[name] = f"/proc/self/fd/{number}"
    for name, target in links.items():
        arguments += ["--symlink", target, f"/dev/{name}"]
    return arguments
