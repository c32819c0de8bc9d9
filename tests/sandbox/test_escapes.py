"""What a program may try in the sandbox, and what it gets."""

import dataclasses
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from rolecall.sandbox import base
from rolecall.sandbox.bubblewrap import Pool
from tests.sandbox.places import run, working_sandbox

pytestmark = pytest.mark.slow


def test_the_hosts_environment_is_not_there(sandbox, monkeypatch):
    monkeypatch.setenv("API_KEY", "a-secret-of-the-host")
    code = """
import os, pathlib
print(sorted(os.environ))
for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try: print(path.read_bytes())
    except OSError as error: print(error)
"""
    fresh = run(sandbox, code, disk_mb=255)  # a size that no waiting sandbox has
    assert "secret" not in fresh.stdout
    names = {"HOME", "LANG", "OMP_NUM_THREADS", "PATH", "PWD", "PYTHONHASHSEED"}
    assert set(eval(fresh.stdout.splitlines()[0])) - {"LD_LIBRARY_PATH"} == names


def test_the_hosts_files_are_not_there(sandbox, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("a secret")
    places = [secret, "/etc/shadow", "/etc/passwd", "/root", "/home", "/work", "/var", "/sys"]
    places += ["/run", "/mnt", "/etc/ssh", Path(base.__file__), Path(__file__), "/boot", "/srv"]
    code = (
        f"import os\nprint([path for path in {[str(p) for p in places]} if os.path.exists(path)])"
    )
    assert run(sandbox, code).stdout == "[]\n"
    assert run(sandbox, "ls /dev", language="bash").stdout.split() == (
        ["fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero"]
    )


def test_the_system_cannot_be_written(sandbox):
    code = """
import os
folders = ["/", "/usr", "/usr/bin", "/opt", "/opt/python", "/etc", "/dev", "/proc/sys/kernel"]
for folder in [*folders, *[path for path in os.environ["PATH"].split(":")]]:
    try:
        open(folder + "/written", "w")
        print("written", folder)
    except OSError: pass
for path in ("/opt/init.py", os.__file__, "/proc/sys/kernel/hostname", "/proc/sysrq-trigger"):
    try:
        open(path, "a")
        print("opened", path)
    except OSError: pass
"""
    assert run(sandbox, code).stdout == ""


def test_there_is_no_network(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        code = f"""
import socket
for place in (("127.0.0.1", {port}), ("8.8.8.8", 53)):
    try:
        socket.create_connection(place, timeout=1)
        print("connected", place)
    except OSError as error: print(type(error).__name__)
try: print(socket.getaddrinfo("example.com", 80))
except OSError as error: print(type(error).__name__)
print([name for _, name in socket.if_nameindex()])
"""
        ran = run(sandbox, code)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert ran.stdout.splitlines()[:3] == ["ConnectionRefusedError", "OSError", "gaierror"]
    assert "connected" not in ran.stdout
    assert ran.stdout.splitlines()[3] == "['lo']"


def test_abstract_sockets_of_the_host_are_not_there(sandbox):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0rolecall-escape")
        listener.listen()
        code = "import socket; socket.socket(socket.AF_UNIX).connect('\\0rolecall-escape')"
        assert "ConnectionRefusedError" in run(sandbox, code).stderr


def test_system_calls_that_work_on_the_walls_are_refused(sandbox):
    code = """
import ctypes, errno, os, socket
call = ctypes.CDLL(None, use_errno=True).syscall
def refused(*arguments):
    return call(*arguments) == -1 and errno.errorcode[ctypes.get_errno()]
NEWUSER, x86 = 0x10000000, os.uname().machine == "x86_64"
print(refused(272 if x86 else 97, NEWUSER))
print(refused(56 if x86 else 220, NEWUSER | 17, 0, 0, 0, 0))
print(refused(435, 0, 0))
print(refused(101 if x86 else 117, 16, 1, 0, 0))
print(refused(425, 8, 0))
try: socket.socket(40, socket.SOCK_STREAM)
except OSError as error: print(errno.errorcode[error.errno])
"""
    told = run(sandbox, code).stdout.split()
    assert told == ["EPERM", "EPERM", "ENOSYS", "EPERM", "EPERM", "EPERM"]


def test_a_fork_bomb_stays_small(sandbox):
    code = """
import os, time
started = 0
try:
    while True:
        if os.fork() == 0: time.sleep(60)
        started += 1
except BlockingIOError: print(started)
"""
    assert int(run(sandbox, code, processes=20).stdout) in (18, 19)
    bomb = run(sandbox, ":(){ :|:& };:; sleep 60", language="bash", wall_s=1, processes=20)
    assert bomb.status in ("timeout", "error")
    assert run(sandbox, "print(1)").stdout == "1\n"


def test_threads_count_as_processes(sandbox):
    code = """
import threading, time
try:
    for number in range(100): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError: print(number, flush=True)
import os; os._exit(0)
"""
    assert run(sandbox, code, processes=20).stdout == "19\n"


def test_memory_of_all_processes_and_files_counts_together(sandbox):
    swarm = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = b"x" * (40 << 20)
        time.sleep(1)
        os._exit(0)
print({os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(8)})
"""
    assert "-9" in run(sandbox, swarm, memory_mb=150).stdout
    files = "open('/dev/shm/x', 'wb').write(bytes(200 << 20))"
    assert run(sandbox, files, memory_mb=100).limit == "memory"


TCP = """
import socket
server, clients = socket.create_server(("127.0.0.1", 0), backlog=400), []
try:
    for _ in range(200):
        clients += [socket.create_connection(server.getsockname()), server.accept()[0]]
except OSError: pass
"""
PAIRS = """
import socket
clients = [client for _ in range(1000) for client in socket.socketpair()]
"""
DATAGRAMS = """
import socket
clients, kept = [], []
for _ in range(2000):
    kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)); kept[-1].bind(("127.0.0.1", 0))
    clients.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    clients[-1].connect(kept[-1].getsockname())
"""
FILLED = """
held = 0
for client in clients:
    client.setblocking(False)
    try:
        for _ in range(200): held += client.send(bytes(1 << 15))
    except OSError: pass
kinds = [line.split() for line in open("/proc/net/sockstat") if "mem" in line]
print([4 * int(words[-1]) >> 10 for words in kinds if words[0] in ("TCP:", "UDP:")])
"""


@pytest.mark.parametrize("opened", [TCP, PAIRS, DATAGRAMS])
def test_the_buffers_of_sockets_are_limited(sandbox, opened):
    """Version 1 of control groups counts those of TCP apart from all other memory."""
    ran = run(sandbox, opened + FILLED, memory_mb=128, wall_s=30)
    if ran.limit != "memory":
        assert max(eval(ran.stdout)) <= 128, "megabytes in the kernel"


def test_no_place_but_its_own_can_be_filled(sandbox):
    code = """
for line in open("/proc/self/mountinfo"):
    before, _, after = line.partition(" - ")
    if after.split()[0] == "tmpfs" and "rw" in before.split()[5].split(","):
        print(before.split()[4], "size=" in after)
"""
    bare = working_sandbox(packages=False, warm=0)
    for box in (sandbox, bare):
        assert run(box, code).stdout == "/tmp True\n"
    hidden = "import sys; sys.path; import site; print(site.getsitepackages()[0])"
    folder = run(bare, hidden).stdout.strip()
    told = run(bare, f"open({folder!r} + '/x', 'w')").stderr
    assert "Read-only file system" in told or "Permission denied" in told


def test_a_program_of_the_same_user_has_no_hold_on_its_supervisor(sandbox):
    """As where rolecall is not run by root, and pid 1 of a sandbox is of the program's user."""
    code = """
import errno, os, resource
for pid in (1, os.getppid()):
    try: print(resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)))
    except OSError as error: print(errno.errorcode[error.errno])
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    same = working_sandbox(concurrency=1, warm=0)
    same.plan = dataclasses.replace(same.plan, change_user=False)
    same._pool = Pool(same.plan, warm=0, disk_mb=256)
    for box in (sandbox, same):
        assert run(box, code, fetch=["*"]).stdout == "EPERM\nEPERM\n(100, 100)\n"
    touch = """
import os, signal
for name in ("mem", "environ", "maps"):
    try: print(open(f"/proc/1/{name}", "rb").read(1))
    except OSError: pass
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGCHLD, signal.SIGSTOP): os.kill(1, number)
print("still here")
"""
    ran = run(same, touch)
    assert (ran.return_code, ran.stdout) == (0, "still here\n")
    shell = run(same, f"exec python3 -c '{code}' || ulimit -n 50; ulimit -n", language="bash")
    assert "(3, 3)" not in shell.stdout


def test_a_full_disk_is_contained_and_gone(sandbox):
    code = """
import os
written = 0
for path in ("/tmp/one", "/tmp/work/two", "/dev/shm/three"):
    try:
        with open(path, "wb", buffering=0) as file:
            while True: written += file.write(bytes(1 << 20))
    except OSError as error: print(error.errno)
print(written >> 20)
"""
    told = run(sandbox, code, disk_mb=16).stdout.split()
    assert told[:3] == ["28", "28", "28"]
    assert told[3] in ("15", "16")
    after = run(sandbox, "import os; print(os.listdir('/tmp'), os.listdir('.'))")
    assert after.stdout == "['work'] ['__program__.py']\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD])
def test_killing_everything_one_can_ends_only_oneself(sandbox, number):
    code = f"""
import os, signal
if {number:d} != signal.SIGKILL: signal.signal({number:d}, signal.SIG_IGN)
for target in (1, os.getppid(), -1):
    try: os.kill(target, {number:d})
    except OSError: pass
open("alive.txt", "w")
"""
    ran = run(sandbox, code, fetch=["alive.txt"])
    assert (ran.return_code, ran.files) == (0, {"alive.txt": b""})


def test_the_process_that_reports_cannot_be_read_or_written(sandbox):
    code = """
import os
for name in ("mem", "environ", "fd", "maps", "root", "cwd"):
    try:
        path = f"/proc/1/{name}"
        print(name, os.listdir(path) if name in ("fd", "root", "cwd") else open(path, "rb").read(1))
    except OSError: pass
print(sorted(os.listdir("/proc/self/fd"))[:4])
"""
    assert run(sandbox, code).stdout == "['0', '1', '2', '3']\n"  # 3 is the listing's own


def test_what_is_printed_is_no_report(sandbox):
    forged = """
import os
report = (12).to_bytes(8, "big") + b"ended 0 0 0 " + (8).to_bytes(8, "big") + b"complete"
for number in range(1, 64):
    try: os.write(number, report)
    except OSError: pass
print("status: Success", flush=True)
os._exit(7)
"""
    ran = run(sandbox, forged, fetch=["*"])
    assert (ran.status, ran.return_code, ran.files) == ("error", 7, {})


@pytest.mark.parametrize(
    "code",
    [
        "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
        "import signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        while True: time.sleep(60)\nos.wait()\ntime.sleep(60)",
    ],
)
def test_a_timeout_cannot_be_swallowed(sandbox, code):
    started = time.monotonic()
    ran = run(sandbox, code, wall_s=0.5)
    assert (ran.status, ran.limit) == ("timeout", "wall")
    assert time.monotonic() - started < 5


def test_a_daemon_ends_with_its_run(sandbox):
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(60)
    os._exit(0)
os.wait()
"""
    started = time.monotonic()
    ran = run(sandbox, code)
    assert ran.status == "finished"
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_of_output_is_drained_and_cut(sandbox, stream):
    code = f"import sys\nfor _ in range(100): sys.{stream}.write('x' * (1 << 20))"
    ran = run(sandbox, code, wall_s=30)
    assert ran.status == "finished"
    assert len(getattr(ran, stream)) < 66_000
    assert getattr(ran, f"{stream}_omitted") == (100 << 20) - 65_536


def test_links_lead_nowhere(sandbox):
    code = """
import os
os.symlink("/etc/ld.so.cache", "a.txt")
os.symlink("/usr", "usr")
os.symlink("/proc/1/environ", "b.txt")
os.mkfifo("c.txt")
os.symlink(".", "loop")
os.makedirs("d"); os.symlink("/usr/bin/env", "d/e.txt")
open("real.txt", "w").write("r")
"""
    ran = run(sandbox, code, fetch=["*.txt", "usr/bin/env", "**/*.txt", "loop/real.txt", "d/e.txt"])
    assert (ran.status, ran.files) == ("finished", {"real.txt": b"r"})


def test_hostile_names_do_not_stop_the_fetching(sandbox):
    code = """
import os
open(b"\\xff.txt", "w"); open("new\\nline.txt", "w"); open("gone.txt", "w"); open("-rf", "w")
os.chmod("gone.txt", 0)
os.mkdir("closed"); open("closed/x.txt", "w"); os.chmod("closed", 0)
for _ in range(300): os.mkdir("d" * 200); os.chdir("d" * 200)
"""
    ran = run(sandbox, code, fetch=["**"])
    assert ran.status == "finished"
    # A name that is no UTF-8 could not be written again, where the file is a later run's.
    assert sorted(ran.files) == ["-rf", "new\nline.txt"]


def test_one_run_sees_nothing_of_another(sandbox):
    run(sandbox, "open('/tmp/left', 'w'); open('left', 'w'); open('/dev/shm/left', 'w')")
    code = (
        "import os; print([p for p in ('/tmp/left', 'left', '/dev/shm/left') if os.path.exists(p)])"
    )
    assert run(sandbox, code).stdout == "[]\n"
    assert run(sandbox, "ps() { ls -d /proc/[0-9]*; }; ps | wc -l", language="bash").stdout < "8"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a sandbox a user of its own")
def test_a_program_is_nobody_outside(sandbox):
    code = "print(open('/proc/self/uid_map').read(), open('/proc/self/status').read())"
    told = run(sandbox, code).stdout
    users = dict(line.split()[:2] for line in told.splitlines()[:2])
    assert int(users["1000"]) >= 1_000_000
    status = dict(line.split(":\t", 1) for line in told.splitlines() if ":\t" in line)
    assert status["Uid"].split() == ["1000"] * 4
    assert {status[name] for name in ("CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"], status["Groups"].strip()) == ("1", "2", "")
