# SPDX-License-Identifier: MIT
"""Processes: fork, spawn, interrupts, ranks of one job, and nothing left behind."""
import errno
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import loaderd
import numpy
import pytest
from conftest import is_running, run_python, wait_gone


def test_a_forked_child_is_refused_and_the_parent_goes_on(make):
    loader = make(shuffle=True, zero_copy=True)
    expected = [b[0].tolist() for b in make(shuffle=True)]
    iterator = iter(loader)
    held = next(iterator)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        found = []
        for use in (lambda: next(iterator), lambda: iter(loader), lambda: len(loader), lambda: loader.state_dict(),
                    lambda: loader.dataset.path(0), lambda: loader.statistics()):
            try:
                use()
                found.append("worked")
            except loaderd.LoaderdError as e:
                found.append("refused" if e.errno == errno.ECHILD and "another process" in str(e) else repr(e))
        found.append("same" if held[0].tolist() == expected[0] else "other")  # its memory may be read
        loader.close()
        del held, iterator, loader
        os.write(write, " ".join(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        assert f.read() == "refused refused refused refused refused refused same"
    assert os.waitpid(pid, 0)[1] == 0
    assert [held[0].tolist()] + [b[0].tolist() for b in iterator] == expected


def _use_in_child(loader, queue):
    queue.put([b[0].tolist() for b in loader])
    loader.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_unused_loader_may_be_passed_to_a_child(make, method):
    expected = [b[0].tolist() for b in make(shuffle=True)]
    loader = make(shuffle=True)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_use_in_child, args=(loader, queue))
    child.start()
    assert queue.get(timeout=60) == expected
    child.join()
    assert child.exitcode == 0
    assert [b[0].tolist() for b in loader] == expected  # here, too


def test_pickle(make):
    loader = make(shuffle=True)
    state = loader.state_dict()
    with pytest.raises(loaderd.LoaderdError, match="cannot be pickled"):
        pickle.dumps(loader)
    fresh = make(shuffle=True)
    fresh.load_state_dict({**state, "step": 2})
    copy = pickle.loads(pickle.dumps(fresh))
    assert [b[0].tolist() for b in copy] == [b[0].tolist() for b in fresh]
    copy.close()
    error = pickle.loads(pickle.dumps(loaderd.LoaderdError(-5, "text")))
    assert error.errno == 5 and str(error) == "text"


SCRIPT = """
import sys, time, loaderd
loader = loaderd.Loader(sys.argv[1], batch_size=8, verbose=False, zero_copy=len(sys.argv) > 3,
                        keys={"record": sys.argv[2], "workers": 1})
for batch in loader:
    print(loader.daemon_pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_trainer_leaves_no_daemon(records, number):
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, records.path, records.keys["record"], "z"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pid = int(child.stdout.readline())
    assert is_running(pid)
    child.send_signal(number)
    assert child.wait(timeout=20) != 0
    child.stdout.close()
    assert wait_gone(pid)


def interrupt_soon(seconds):
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_an_interrupted_wait_leaves_no_daemon(make):
    """As in a notebook: the process and its variables live on."""
    expected = [b[0].tolist() for b in make(shuffle=True, batch_size=2)]
    loader = make(shuffle=True, batch_size=2, slots=3)
    iterator = iter(loader)
    found = [next(iterator)[0].tolist()]
    pid = loader.daemon_pid
    os.kill(pid, signal.SIGSTOP)  # so that there is something to wait for
    timer, start = interrupt_soon(0.4), time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            while True:
                found.append(next(iterator)[0].tolist())
        assert time.monotonic() - start < 5
    finally:
        timer.join()
        os.kill(pid, signal.SIGCONT)
    assert wait_gone(pid)
    found += [b[0].tolist() for b in iterator]  # goes on where it stood, with another daemon
    assert found == expected


def test_an_interrupted_open_is_undone():
    from loaderd._session import _interruptible
    undone, opened = threading.Event(), threading.Event()

    def slow():
        opened.wait(10)
        return "handle"

    timer, start = interrupt_soon(0.2), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        _interruptible(slow, lambda handle: undone.set() if handle == "handle" else None)
    timer.join()
    assert time.monotonic() - start < 5 and not undone.is_set()
    opened.set()
    assert undone.wait(10)
    with pytest.raises(ZeroDivisionError):
        _interruptible(lambda: 1 // 0, lambda handle: None)


def test_a_timeout_says_why(make):
    loader = make(timeout=0.5, batch_size=2, slots=3)
    iterator = iter(loader)
    next(iterator)
    pid = loader.daemon_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(loaderd.LoaderdError, match=r"within 0.5 s.*is stopped") as e:
            while True:
                next(iterator)
        assert e.value.errno == errno.ETIMEDOUT
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(next(iterator)[0]) == 2


def test_a_killed_daemon_is_replaced(make):
    expected = [b[0].tolist() for b in make(shuffle=True, batch_size=2)]
    loader = make(shuffle=True, batch_size=2, slots=3)
    iterator = iter(loader)
    found = [next(iterator)[0].tolist()]
    os.kill(loader.daemon_pid, signal.SIGKILL)
    found += [b[0].tolist() for b in iterator]
    assert found == expected


RANK = """
import sys, loaderd
loader = loaderd.Loader(sys.argv[1], batch_size=2, shuffle=True, last="pad", with_valid=True,
                        keys={"record": sys.argv[2], "workers": 2})
ids = [int(i) for *fields, valid in loader for i in fields[0][valid]]
print(loader.daemon_pid, loader.rank, loader.world_size, *ids, flush=True)
sys.stdin.read()
"""


def test_eight_ranks_share_one_daemon(records):
    """As torchrun starts them."""
    children = []
    for rank in range(8):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "8", "LOCAL_RANK": str(rank),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000)}
        children.append(subprocess.Popen([sys.executable, "-c", RANK, records.path, records.keys["record"]],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                         universal_newlines=True, env=environment))
    lines = [[int(word) for word in child.stdout.readline().split()] for child in children]
    heads = []
    for child in children:
        child.stdin.close()
        child.stdin = None
    for child in children:
        heads += [line for line in child.communicate()[1].splitlines() if line.startswith("loaderd: rank")]
        assert child.returncode == 0
    assert len({line[0] for line in lines}) == 1, "they have more than one daemon"
    assert [line[1:3] for line in lines] == [[rank, 8] for rank in range(8)]
    assert sorted(i for line in lines for i in line[3:]) == records.ids.tolist()
    assert len(heads) == 8 and all(f"rank {rank} of 8 (RANK)" in heads[rank] for rank in range(8))
    assert wait_gone(lines[0][0])


def test_ranks_that_differ_are_named():
    from loaderd._loader import rank_differences
    ranks = [{"host": f"node{i // 2}", "rank": i, "world": 4, "samples": 100, "seed": 0, "global_batch": 32,
              "fingerprint": "ab"} for i in range(4)]
    assert rank_differences(ranks) == ""
    for key, value, word in [("fingerprint", "cd", "another dataset"), ("samples", 99, "number of samples"),
                             ("seed", 1, "another seed"), ("global_batch", 16, "global batch")]:
        sentence = rank_differences(ranks[:2] + [{**ranks[2], key: value}] + ranks[3:])
        assert word in sentence and f"rank 2 on node1 ({value})" in sentence
    assert "ranks [0, 0, 1, 3]" in rank_differences([ranks[0], ranks[0], ranks[1], ranks[3]])


def test_the_library_must_be_there():
    result = run_python("import loaderd; loaderd.library_version()", LOADERD_LIBRARY="/nonexistent/libloaderd.so.0")
    assert result.returncode != 0
    assert "LOADERD_LIBRARY" in result.stderr and "/nonexistent/libloaderd.so.0" in result.stderr


def test_import_is_light():
    result = run_python("import sys, loaderd; print('torch' in sys.modules, 'torchvision' in sys.modules)")
    assert result.stdout.split() == ["False", "False"], result.stderr


def test_version():
    assert loaderd.library_version() == loaderd.__version__
    assert numpy.dtype  # the only need
