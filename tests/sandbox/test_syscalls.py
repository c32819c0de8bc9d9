"""Which system calls a program has: all that ordinary ones need, and few others."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from rolecall.sandbox.syscalls import ALLOWED, ARCHITECTURES, NEWEST, syscall_filter
from tests.sandbox.places import run

pytestmark = pytest.mark.slow

ALLOW, FAIL = 0x7FFF0000, 0x00050000
NAMED = ("clone", "clone3", "socket", "socketpair")  # looked into, or told that there is none


def outcome(machine: str, number: int, *arguments: int) -> int | str:
    """What the filter says of a call, as the kernel would read it: an error number or "allowed"."""
    program = syscall_filter(machine)
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    given = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("=iIQ6Q", number, ARCHITECTURES[machine][1], 0, *given)
    held, at = 0, 0
    while True:
        code, yes, no, operand = steps[at]
        if code == 0x06:
            return "allowed" if operand == ALLOW else operand - FAIL
        if code == 0x20:
            held = struct.unpack_from("=I", data, operand)[0]
            at += 1
            continue
        met = {0x15: held == operand, 0x35: held >= operand, 0x45: bool(held & operand)}[code]
        at += 1 + (yes if met else no)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_what_the_table_names_is_allowed_and_nothing_else(machine):
    column = ARCHITECTURES[machine][0]
    allowed = {numbers[column] for numbers in ALLOWED.values()} - {None}
    special = {56: "clone", 435: "clone3", 41: "socket", 53: "socketpair"}
    if machine == "aarch64":
        special = {220: "clone", 435: "clone3", 198: "socket", 199: "socketpair"}
    for number in range(NEWEST + 20):
        if number in special:
            continue
        wanted = errno.EPERM if number <= NEWEST else errno.ENOSYS
        assert outcome(machine, number) == ("allowed" if number in allowed else wanted), number
    assert not set(NAMED) & set(ALLOWED)
    clone, clone3, new_socket, pair = special
    assert outcome(machine, clone3) == errno.ENOSYS
    assert outcome(machine, clone, 17) == "allowed"
    assert outcome(machine, clone, 0x10000000 | 17) == errno.EPERM
    assert outcome(machine, pair, socket.AF_UNIX, 1) == "allowed"
    assert outcome(machine, pair, 40, 1) == errno.EPERM
    assert outcome(machine, new_socket, socket.AF_INET, 1) == "allowed"
    assert outcome(machine, new_socket, 40, 1) == errno.EPERM
    assert outcome(machine, new_socket, 16, 3, 0) == "allowed"  # NETLINK_ROUTE
    assert outcome(machine, new_socket, 16, 3, 12) == errno.EPERM  # NETLINK_NETFILTER
    assert outcome(machine, 0x40000000) == errno.EPERM


def test_calls_of_the_kernels_that_no_program_needs_are_refused(sandbox):
    code = """
import ctypes, errno, os, socket
call = ctypes.CDLL(None, use_errno=True).syscall
def refused(*arguments):
    return call(*arguments) == -1 and errno.errorcode[ctypes.get_errno()]
print("memfd_secret", refused(447, 0))
print("open_tree_attr", refused(467, -100, b"/", 0, 0, 0))
print("landlock_create_ruleset", refused(444, 0, 0, 1))
print("perf_event_open", refused(298 if os.uname().machine == "x86_64" else 241, 0, 0, 0, 0, 0))
for family in (40, 38, 17):  # vsock, crypto, packets
    try: socket.socketpair(family, socket.SOCK_STREAM)
    except OSError as error: print("socketpair", family, errno.errorcode[error.errno])
for protocol in (12, 15, 16):  # netfilter, devices, generic
    try: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    except OSError as error: print("netlink", protocol, errno.errorcode[error.errno])
"""
    assert run(sandbox, code).stdout.splitlines() == [
        "memfd_secret EPERM",
        "open_tree_attr ENOSYS",
        "landlock_create_ruleset EPERM",
        "perf_event_open EPERM",
        *(f"socketpair {family} EPERM" for family in (40, 38, 17)),
        *(f"netlink {protocol} EPERM" for protocol in (12, 15, 16)),
    ]


PROGRAMS = {
    "asyncio, with a server, a client, a child and a thread": """
import asyncio, sys
async def main():
    async def greet(reader, writer):
        writer.write(await reader.readline()); await writer.drain(); writer.close()
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\\n")
    assert await reader.readline() == b"hello\\n"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(3)", stdout=-1)
    assert (await child.communicate())[0] == b"3\\n"
    assert await asyncio.to_thread(sum, [1, 2]) == 3
asyncio.run(main())
""",
    "child processes": """
import os, subprocess, sys
assert subprocess.run([sys.executable, "-c", "print(2)"], capture_output=True).stdout == b"2\\n"
assert subprocess.run("echo a | tr a b", shell=True, capture_output=True).stdout == b"b\\n"
pid = os.posix_spawn("/usr/bin/env", ["env"], {})
assert os.waitpid(pid, 0)[1] == 0
if os.fork() == 0: os._exit(0)
os.wait()
""",
    "pools of processes and threads": """
import concurrent.futures, multiprocessing, multiprocessing.shared_memory, os, threading
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool: assert pool.map(abs, [-1, 2]) == [1, 2]
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        assert [*pool.map(abs, [-1, 2])] == [1, 2]
    queue = multiprocessing.Queue(); queue.put(1); assert queue.get() == 1
    shared = multiprocessing.shared_memory.SharedMemory(create=True, size=100)
    shared.buf[0] = 1; shared.close(); shared.unlink()
    with concurrent.futures.ThreadPoolExecutor(4) as pool: assert sum(pool.map(abs, [-1, 2])) == 3
""",
    "files, clocks, signals and random numbers": """
import fcntl, mmap, os, pathlib, random, secrets, select, shutil, signal, sqlite3, tempfile, time
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "a"); path.write_text("x" * 5000); path.chmod(0o600)
    shutil.copy(path, folder + "/b"); os.link(path, folder + "/c"); os.symlink(path, folder + "/d")
    shutil.copytree(folder, folder + "/e"); os.utime(path); os.truncate(path, 10); os.sync()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 10) as mapped:
        mapped[0] = 65; mapped.flush(); os.fsync(file.fileno()); fcntl.flock(file, fcntl.LOCK_EX)
        os.posix_fallocate(file.fileno(), 0, 100); os.statvfs(folder)
    database = sqlite3.connect(folder + "/base"); database.execute("pragma journal_mode=wal")
    database.execute("create table t (a)"); database.execute("insert into t values (1)")
    database.commit(); assert database.execute("select * from t").fetchall() == [(1,)]
    database.close()
signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause(); time.sleep(0.001); time.clock_gettime(time.CLOCK_MONOTONIC)
secrets.token_bytes(4); os.getrandom(4); random.SystemRandom().random(); os.sched_getaffinity(0)
poll = select.epoll(); read, write = os.pipe(); poll.register(read); os.write(write, b"x")
assert poll.poll(1); os.eventfd(1); os.memfd_create("a"); os.getloadavg; os.cpu_count()
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); resource.getrusage(0)
""",
    "numpy, pandas and scikit-learn": """
import numpy, pandas, sklearn.ensemble, sklearn.linear_model
numbers = numpy.random.default_rng(0).normal(size=(200, 4))
assert numpy.linalg.svd(numbers)[1].shape == (4,)
numpy.save("a.npy", numbers); assert numpy.load("a.npy", mmap_mode="r").shape == (200, 4)
table = pandas.DataFrame(numbers); table.to_csv("a.csv"); pandas.read_csv("a.csv").describe()
sklearn.ensemble.RandomForestRegressor(5, n_jobs=2).fit(numbers[:, 1:], numbers[:, 0])
sklearn.linear_model.LogisticRegression().fit(numbers, numbers[:, 0] > 0)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ordinary_programs_have_all_they_need(sandbox, name):
    ran = run(sandbox, PROGRAMS[name], wall_s=60)
    assert (ran.stderr, ran.stdout, ran.return_code) == ("", "", 0)


def test_bash_has_all_it_needs(sandbox):
    code = """
set -e
mkdir -p a/b; echo 3 > a/b/c; cp -r a d; mv d e; ln -s a f; cat e/b/c | sort | uniq -c | wc -l
tar czf x.tgz a; tar tzf x.tgz > /dev/null; find e -name c | xargs grep -c 3; rm -rf a; sleep 0.01
(trap 'echo trapped' TERM; kill -TERM $BASHPID); date +%s > /dev/null; du -s . > /dev/null
"""
    ran = run(sandbox, code, language="bash", wall_s=30)
    assert (ran.stderr, ran.stdout.split(), ran.return_code) == ("", ["1", "1", "trapped"], 0)
