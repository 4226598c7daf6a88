# SPDX-License-Identifier: MIT
"""What the tests of the Python package share. Run by tests/check_python.sh, which sets LOADERD_LIBRARY and
LOADERD_DAEMON; with LOADERD_TEST_INSTALLED the package that is installed is tested, else the one of the source tree."""
import os
import signal
import subprocess
import sys
import time

import numpy
import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a script: tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)


HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
PACKAGE = os.path.join(SOURCE, "client", "python")

sys.dont_write_bytecode = True
if not os.environ.get("LOADERD_TEST_INSTALLED"):
    sys.path.insert(0, PACKAGE)
    os.environ["PYTHONPATH"] = os.pathsep.join([PACKAGE] + os.environ.get("PYTHONPATH", "").split(os.pathsep))
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID", "LOADERD_SOCKET"):
    os.environ.pop(name, None)

N = 37
SIDE = 8


def is_running(pid):
    """A zombie that nobody waits for does not count."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_gone(pid, seconds=10):
    until = time.monotonic() + seconds
    while is_running(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def run_python(code, *arguments, **environment):
    """A Python program in a process of its own."""
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, timeout=60,
                          env={**os.environ, **environment})


class Records:
    """N raw records of an id, a picture (3, SIDE, SIDE) and a label, and what numpy says is in them."""

    def __init__(self, folder):
        rng = numpy.random.RandomState(11)
        self.images = rng.randint(0, 256, (N, 3, SIDE, SIDE)).astype(numpy.uint8)
        self.labels = rng.randint(0, 1000, N).astype(numpy.int64)
        self.ids = numpy.arange(N, dtype=numpy.uint32)
        table = numpy.zeros(N, dtype=[("id", "<u4"), ("image", "u1", (3, SIDE, SIDE))])
        table["id"], table["image"] = self.ids, self.images
        self.path = os.path.join(folder, "records.bin")
        self.labels_path = os.path.join(folder, "labels.npy")
        table.tofile(self.path)
        numpy.save(self.labels_path, self.labels)
        self.keys = {"record": f"id:u32 image:u8[3,{SIDE},{SIDE}]", "labels": self.labels_path, "workers": 2}


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    return Records(str(tmp_path_factory.mktemp("records")))


@pytest.fixture
def make(records):
    """Loaders over the records, closed at the end of the test; no daemon may be left."""
    import loaderd
    made, pids = [], set()

    def make_one(**arguments):
        loader = loaderd.Loader(records.path, **{"batch_size": 8, "verbose": False, "keys": records.keys, **arguments})
        made.append(loader)
        return loader

    yield make_one
    for loader in made:
        if loader._session is not None:
            pids.add(loader._session.daemon_pid)
        loader.close()
    made.clear()
    import gc
    gc.collect()
    for pid in pids:
        assert wait_gone(pid), f"daemon {pid} was left behind"
