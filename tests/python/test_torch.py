# SPDX-License-Identifier: MIT
"""torch tensors on the host, and the habits of training loops written for torch.utils.data.DataLoader."""
import errno
import os
import subprocess
import sys

import loaderd
import numpy
import pytest
from conftest import SOURCE

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("zero_copy", [False, True])
def test_tensors(make, records, zero_copy):
    start = 0
    for ids, images, labels in make(device="cpu", last="keep", zero_copy=zero_copy, label_dtype="i64"):
        rows = slice(start, start + len(ids))
        assert images.dtype == torch.uint8 and labels.dtype == torch.int64
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert numpy.array_equal(images.numpy(), records.images[rows])
        assert numpy.array_equal(labels.numpy(), records.labels[rows])
        start += len(ids)
    assert start == len(records.ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats(make, records, dtype):
    images = next(iter(make(device=torch.device("cpu"), dtype=dtype, layout="nchw")))[1]
    assert images.dtype == dtype and images.is_contiguous()
    expected = (torch.from_numpy(records.images[:8]).float() / 255).to(dtype)
    assert torch.equal(images, expected)


def test_views_hold_their_batch(make, records):
    loader = make(device="cpu", zero_copy=True, fields=["image"], held=3)
    iterator = iter(loader)
    part = next(iterator)[0][2:4].flatten(1).t()
    for _ in range(len(loader) - 1):
        next(iterator)
    assert numpy.array_equal(part.t().reshape(2, 3, 8, 8).numpy(), records.images[2:4])


class Wrapped(torch.utils.data.IterableDataset):
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for ids, images, labels in self.loader:
            yield ids.tolist()
        self.loader.close()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_inside_a_workers_process(make, context):
    expected = [b[0].tolist() for b in make(shuffle=True)]
    wrapped = torch.utils.data.DataLoader(Wrapped(make(shuffle=True)), batch_size=None, num_workers=1,
                                          multiprocessing_context=context)
    assert list(wrapped) == expected
    used = make(shuffle=True)
    list(used)
    if context == "fork":
        with pytest.raises(RuntimeError, match="another process"):  # the worker's error comes back as it is
            list(torch.utils.data.DataLoader(Wrapped(used), batch_size=None, num_workers=1,
                                             multiprocessing_context="fork"))
    assert [b[0].tolist() for b in used] != expected  # goes on: the next epoch


def test_a_training_loop(make):
    """As one would have it over a DataLoader."""
    loader = make(device="cpu", normalize="imagenet", shuffle=True, drop=["id"], last="drop")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 1000))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            x, y = x.to("cpu", non_blocking=True), y.to("cpu", non_blocking=True)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        assert step == len(loader) - 1 and torch.isfinite(loss)


def test_no_device(make):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    for device in ("cuda", "cuda:0"):
        with pytest.raises(loaderd.LoaderdError, match="CUDA") as e:
            len(make(device=device))
        assert e.value.errno in (errno.ENODEV, errno.ENOENT)


def test_the_example(tmp_path):
    """client/examples/resnet.py, two ranks of it."""
    from pictures import PICTURES
    example = os.path.join(SOURCE, "client", "examples", "resnet.py")
    if os.environ.get("LOADERD_TEST_INSTALLED"):
        pytest.skip("the installed package is tested")
    for i in range(24):
        folder = tmp_path / "data" / str(i % 4)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.jpg").write_bytes(PICTURES[i % 4][1])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
               str(20000 + os.getpid() % 20000), example, str(tmp_path / "data"), "--val", str(tmp_path / "data"),
               "--model", "small", "--batch", "4", "--image", "32", "--epochs", "2", "--device", "cpu",
               "--workers", "1"]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                            timeout=120)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 2 and all("samples/s, waited for data" in line and "accuracy" in line for line in lines)


RANK = """
import sys, loaderd, torch.distributed
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
loader = loaderd.Loader(sys.argv[1 + rank], batch_size=2, keys={"record": sys.argv[3], "workers": 1}, seed=5)
try:
    loader.check_ranks()
    print("agree")
except loaderd.LoaderdError as error:
    print(error)
"""


def check_two_ranks(first, second, record):
    children = []
    for rank in range(2):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(21000 + os.getpid() % 20000)}
        children.append(subprocess.Popen([sys.executable, "-c", RANK, first, second, record], stdout=subprocess.PIPE,
                                         universal_newlines=True, env=environment))
    return [child.communicate()[0].strip() for child in children]


def test_check_ranks(records, tmp_path):
    record = records.keys["record"]
    assert check_two_ranks(records.path, records.path, record) == ["agree", "agree"]
    with open(records.path, "rb") as file:
        all_bytes = file.read()
    other = tmp_path / "shorter.bin"
    other.write_bytes(all_bytes[:len(all_bytes) // 2 // (len(all_bytes) // len(records.ids)) *
                                (len(all_bytes) // len(records.ids))])
    for sentence in check_two_ranks(records.path, str(other), record):
        assert "number of samples" in sentence and "rank" in sentence
