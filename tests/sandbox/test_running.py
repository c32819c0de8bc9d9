"""What a program may do in the sandbox, and what is seen of it outside."""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rolecall.sandbox import bubblewrap_command
from rolecall.sandbox.base import Limits, Run, SandboxError
from rolecall.sandbox.bubblewrap import Bubblewrap
from rolecall.sandbox.bubblewrap_command import plan_sandboxes
from rolecall.sandbox.cgroups import MemoryGroup, memory_groups
from tests.sandbox.places import run, working_sandbox

pytestmark = pytest.mark.slow


def test_output_input_and_return_code_are_the_programs(sandbox):
    ran = run(
        sandbox,
        "import sys; print(input()[::-1]); print('oh', file=sys.stderr); sys.exit(3)",
        stdin="abc\n",
    )
    assert (ran.stdout, ran.stderr, ran.return_code) == ("cba\n", "oh\n", 3)
    assert (ran.status, ran.limit) == ("error", "")


def test_a_program_is_a_script_like_any_other(sandbox):
    code = """
import inspect, pickle, sys
class Point: pass
def f(): return 1
print(__name__, sys.argv, len(pickle.dumps(Point())) > 0, inspect.getsource(f).strip())
import helper
helper.fail()
"""
    ran = run(sandbox, code, files={"helper.py": b"def fail():\n    return 1 / 0\n"})
    assert ran.stdout == "__main__ ['__program__.py'] True def f(): return 1\n"
    assert 'File "/tmp/work/__program__.py", line 7' in ran.stderr
    assert "helper.fail()" in ran.stderr
    assert "ZeroDivisionError" in ran.stderr
    assert ran.return_code == 1


@pytest.mark.parametrize("size", [0, 100_000])
def test_syntax_errors_and_long_programs_are_run_errors(sandbox, size):
    ran = run(sandbox, "#" * size + "\nprint(1\n")
    assert ran.status == "error"
    assert "SyntaxError" in ran.stderr
    assert run(sandbox, "#" * size + "\nprint(1)").stdout == "1\n"


def test_a_program_may_name_its_encoding_and_text_that_is_none_fails(sandbox):
    latin = run(sandbox, "# coding: latin-1\nprint(len('\u00e9'))")  # two bytes, two letters
    assert latin.stdout == "2\n"
    assert run(sandbox, "print('\ud800')").status == "error"


def test_input_ends_at_once_when_there_is_none(sandbox):
    assert run(sandbox, "import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_huge_input_that_nobody_reads_does_not_stop_a_run(sandbox):
    assert run(sandbox, "print(1)", stdin="x" * 20_000_000).stdout == "1\n"
    read = run(sandbox, "import sys; print(len(sys.stdin.read()))", stdin="x" * 20_000_000)
    assert read.stdout == "20000000\n"


def test_bash_and_pytest_are_offered_and_others_refused_by_name(sandbox):
    assert run(sandbox, "echo $((6 * 7)); exit 4", language="bash").return_code == 4
    ran = run(sandbox, "def test_one():\n    assert 1 == 2\n", language="pytest")
    assert "1 failed" in ran.stdout
    with pytest.raises(ValueError, match="'cobol' is not offered here; offered: python, bash"):
        run(sandbox, "", language="cobol")


def test_packages_come_along_or_not(sandbox):
    code = "import numpy; print(int(numpy.ones(3) @ numpy.ones(3)))"
    assert run(sandbox, code).stdout == "3\n"
    plain = working_sandbox(packages=False, warm=0)
    assert "No module named 'numpy'" in run(plain, code).stderr
    assert "pytest" not in plain.languages
    asyncio.run(plain.close())


def test_files_come_in_and_those_asked_for_go_out(sandbox):
    code = """
import os, pathlib
print(open("data/deep/in.txt").read())
for name in ("a.pkl", "b.pkl", "out/c.pkl", "out/deep/d.pkl", "other.txt"):
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_bytes(name.encode())
"""
    files = {"data/deep/in.txt": b"hello"}
    top = run(sandbox, code, files=files, fetch=["*.pkl", "missing.csv", "./other.txt"])
    assert top.stdout == "hello\n"
    assert top.files == {"a.pkl": b"a.pkl", "b.pkl": b"b.pkl", "other.txt": b"other.txt"}
    every = run(sandbox, code, files=files, fetch=["**/*.pkl"])
    assert sorted(every.files) == ["a.pkl", "b.pkl", "out/c.pkl", "out/deep/d.pkl"]


def test_fetched_files_are_bounded_and_the_rest_is_named(sandbox):
    code = "for n in range(5): open(f'{n}', 'wb').write(bytes(400_000))\n"
    code += "open('9', 'wb').truncate(1 << 40)"
    ran = run(sandbox, code, fetch=["*"], num_files=4, file_mb=1)
    assert sorted(ran.files) == ["0", "1"]
    assert ran.left_out == ("2", "3", "4", "9")
    few = run(sandbox, "for n in range(5): open(f'{n}', 'w')", fetch=["*"], num_files=3)
    assert (sorted(few.files), few.left_out) == (["0", "1", "2"], ("3", "4"))


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", ".", "a\0b"])
def test_paths_that_leave_the_directory_are_refused(path):
    with pytest.raises(ValueError, match="stay in it"):
        Run("", files={path: b""})
    with pytest.raises(ValueError, match="stay in it"):
        Run("", fetch=(path,))


def test_files_that_cannot_be_are_refused(sandbox):
    with pytest.raises(ValueError, match="cannot be placed"):
        run(sandbox, "", files={"a": b"", "a/b": b""})
    with pytest.raises(ValueError, match="No space left"):
        run(sandbox, "", files={"a": bytes(2 << 20)}, disk_mb=1)
    with pytest.raises(ValueError, match="the program's own name"):
        run(sandbox, "", files={"__program__.py": b""})


def test_output_keeps_both_ends_and_counts_the_rest(sandbox):
    ran = run(sandbox, "print('a' * 50_000 + 'b' * 140_000 + 'c' * 50_000, end='')")
    assert ran.stdout_omitted == 240_000 - 65_536
    assert ran.stdout.startswith("a" * 32_768 + "\n... 174464 bytes omitted ...\n")
    assert ran.stdout.endswith("c" * 32_768)
    whole = run(sandbox, "print('a' * 65_535)")
    assert (len(whole.stdout), whole.stdout_omitted) == (65_536, 0)


def test_bytes_that_are_no_text_are_replaced(sandbox):
    ran = run(sandbox, "import os; os.write(1, b'a\\xffb')")
    assert ran.stdout == "a\ufffdb"


def test_a_timeout_keeps_output_and_files(sandbox):
    code = "open('x.txt', 'w').write('y'); print('before', flush=True)\nwhile True: pass"
    ran = run(sandbox, code, fetch=["x.txt"], wall_s=0.5)
    assert (ran.status, ran.limit, ran.return_code) == ("timeout", "wall", None)
    assert (ran.stdout, ran.files) == ("before\n", {"x.txt": b"y"})
    assert 0.5 <= ran.wall_s < 3


def test_processor_time_memory_and_disk_are_limited_and_named(sandbox):
    assert run(sandbox, "while True: pass", cpu_s=1).limit == "cpu"
    assert run(sandbox, "x = b'x' * (1 << 30)", memory_mb=100).limit == "memory"
    full = run(sandbox, "open('x', 'wb').write(bytes(20 << 20))", disk_mb=10)
    assert (full.limit, full.status) == ("disk", "error")
    assert "No space left" in full.stderr


@pytest.mark.parametrize("limits", [{"wall_s": 0}, {"memory_mb": -1}, {"wall_s": float("inf")}])
def test_limits_that_are_none_are_refused(limits):
    with pytest.raises(ValueError, match=r"above 0 and finite, got"):
        Limits(**limits)


def test_the_event_loop_goes_on_while_programs_run(sandbox):
    async def play():
        runs = [sandbox.run(Run("import time; time.sleep(0.5)")) for _ in range(4)]
        playing = asyncio.gather(*runs)
        longest, last = 0.0, time.monotonic()
        while not playing.done():
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return longest

    assert asyncio.run(play()) < 0.4  # a run that blocked it would take longer than 0.5 s


def test_no_more_runs_than_allowed_go_at_once():
    sandbox = working_sandbox(concurrency=1, warm=1)

    async def play():
        started = time.monotonic()
        await asyncio.gather(*(sandbox.run(Run("import time; time.sleep(0.3)")) for _ in range(3)))
        await sandbox.close()
        return time.monotonic() - started

    assert asyncio.run(play()) >= 0.9


def remains():
    """Processes, control groups and open files of sandboxes that this process started."""
    groups = [
        Path(folder) / name
        for folder, names, _ in os.walk("/sys/fs/cgroup")  # passes over what others remove
        for name in names
        if name.startswith(f"rolecall-{os.getpid()}-")
    ]
    children = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that ends
            children += (task / "children").read_text().split()
    mounts = Path("/proc/self/mountinfo").read_text().count("\n")
    files = len(os.listdir("/proc/self/fd"))
    return {"groups": groups, "children": children, "mounts": mounts, "files": files}


def assert_nothing_more(before):
    """Fewer open files are right: threads of earlier tests may close theirs meanwhile."""
    after = remains()
    assert after["files"] <= before["files"]
    assert after | {"files": 0} == before | {"files": 0}


def test_sixty_runs_leave_nothing_behind():
    sandbox = working_sandbox(concurrency=4, warm=0)
    before = remains()

    async def play():
        daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)"
        runs = [Run("open('/tmp/x', 'w')"), Run("exit 1", "bash"), Run(daemon)]
        rans = await asyncio.gather(*(sandbox.run(runs[n % 3]) for n in range(60)))
        assert {ran.return_code for ran in rans} == {0, 1}

    asyncio.run(play())
    asyncio.run(sandbox.close())
    assert_nothing_more(before)


def test_cancelling_kills_the_program():
    sandbox = working_sandbox(concurrency=1, warm=0)
    before = remains()

    async def play():
        running = asyncio.create_task(sandbox.run(Run("import time; time.sleep(60)")))
        waiting = asyncio.create_task(sandbox.run(Run("import time; time.sleep(60)")))
        await asyncio.sleep(0.5)
        for task in (running, waiting):
            task.cancel()
        await asyncio.wait([running, waiting])
        assert running.cancelled()
        assert waiting.cancelled()
        return (await sandbox.run(Run("print(2)", limits=Limits(wall_s=5)))).stdout

    started = time.monotonic()
    assert asyncio.run(play()) == "2\n"
    assert time.monotonic() - started < 10
    asyncio.run(sandbox.close())
    assert_nothing_more(before)


def descendants(pid):
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield Path("/proc", child)
            yield from descendants(child)


def test_programs_end_with_the_process_that_started_them(sandbox):
    script = """
import asyncio
from rolecall.sandbox.base import Run
from rolecall.sandbox.bubblewrap import Bubblewrap
from rolecall.sandbox.cgroups import MemoryGroup, memory_groups
async def main():
    sandbox = Bubblewrap(warm=1)
    task = asyncio.create_task(sandbox.run(Run("import time; time.sleep(60)")))
    await asyncio.sleep(1)
    print("runs", flush=True)
    await task
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"runs\n"
        processes = list(descendants(owner.pid))
        assert len(processes) >= 3  # of the run: bwrap, pid 1, the program
        owner.kill()
    deadline = time.monotonic() + 10
    while any(path.exists() for path in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [path for path in processes if path.exists()] == []


def test_what_nobody_closes_is_closed_as_the_process_ends(sandbox):
    script = """
import asyncio, os
from rolecall.sandbox.base import Run
from rolecall.sandbox.bubblewrap import Bubblewrap
kept = Bubblewrap(warm=2)
asyncio.run(kept.run(Run("pass")))
print(os.getpid())
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    groups = sandbox.plan.groups
    assert groups is not None
    assert list(groups.parent.glob(f"rolecall-{int(told.stdout)}-*")) == []


def test_what_a_killed_process_left_behind_is_ended_by_the_next_one(sandbox):
    groups = sandbox.plan.groups
    assert groups is not None
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    left = MemoryGroup(groups.parent / f"rolecall-{gone.pid}-0")
    left.path.mkdir()
    with subprocess.Popen(["sleep", "60"]) as orphan:
        left.join(orphan.pid)
        reaper = threading.Thread(target=orphan.wait)
        reaper.start()
        memory_groups(groups.parent)
        reaper.join(10)
        assert orphan.returncode == -signal.SIGKILL
    assert not left.path.exists()


def begin_sandbox(plan) -> tuple[subprocess.Popen, int, int]:
    """Start bwrap up to where it waits for the users of the sandbox.

    Returns it, the first process of the sandbox, and the file whose end lets it go on.
    """
    control, report, info = os.open(os.devnull, os.O_RDWR), *os.pipe()
    wait, go = os.pipe()
    handed = {"control": control, "info": info, "go": wait, "syscalls": control}
    command = plan.command(disk_mb=16, **handed)
    process = subprocess.Popen(command, pass_fds=list(handed.values()), env={})
    os.close(info)
    with open(report, "rb") as answers:
        pid = json.loads(answers.read())["child-pid"]
    for number in (control, wait):
        os.close(number)
    return process, pid, go


def test_a_sandbox_whose_maker_was_killed_meanwhile_is_ended_by_the_next_process(
    sandbox, monkeypatch
):
    mark = f"/opt/init-{os.getpid()}.py"  # other processes of this machine look for orphans, too
    monkeypatch.setattr(bubblewrap_command, "INIT", mark)
    abandoned, first, go = begin_sandbox(sandbox.plan)
    waiting, other, other_go = begin_sandbox(sandbox.plan)
    orphan, untouched = os.pidfd_open(first), os.pidfd_open(other)
    abandoned.kill()
    abandoned.wait()
    assert select.select([orphan], [], [], 0.5)[0] == []
    plan_sandboxes(sys.executable, packages=False, unenforced=[], cgroup=None)
    assert select.select([orphan], [], [], 10)[0] == [orphan]
    assert select.select([untouched], [], [], 0)[0] == []
    os.kill(other, signal.SIGKILL)
    waiting.kill()
    waiting.wait()
    for number in (orphan, untouched, go, other_go):
        os.close(number)


def test_without_bubblewrap_nothing_runs_and_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="apt-get install bubblewrap, or dnf install bubblewrap"):
        Bubblewrap()


def test_bubblewrap_that_cannot_make_a_sandbox_says_why(monkeypatch, tmp_path):
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sandbox = Bubblewrap(warm=0, unenforced=["memory"])  # control groups are not its matter
    with pytest.raises(SandboxError, match=r"No permissions.*unprivileged_userns_clone"):
        run(sandbox, "print(1)")


def test_a_limit_that_cannot_be_held_is_an_error_unless_it_is_named(tmp_path):
    working_sandbox(warm=0)
    with pytest.raises(SandboxError, match=r"memory_mb cannot be enforced.*unenforced=\[.memory"):
        Bubblewrap(cgroup=tmp_path / "missing")
    with pytest.raises(ValueError, match="unenforced knows memory, syscalls, got 'wall'"):
        Bubblewrap(unenforced=["wall"])
    weaker = Bubblewrap(cgroup=tmp_path / "missing", unenforced=["memory"], warm=0)
    assert "each process only" in weaker.plan.isolation
    ran = run(weaker, "x = b'x' * (1 << 30)", memory_mb=100)
    assert "MemoryError" in ran.stderr
