# SPDX-License-Identifier: MIT
"""Batches on a CUDA device: through libloaderd-cuda over a device of threads and host memory (tests/cuda/fake.c), and,
with torch, on a real one where there is one."""
import ctypes
import errno
import gc
import os
import shutil
import subprocess

import loaderd
import numpy
import pytest
from conftest import SOURCE, is_running, run_python, wait_gone
from loaderd import _library

CHECK = """
#include <stdio.h>
#include <stdlib.h>
#define ck_assert_msg(x, ...) do { if (!(x)) { fprintf(stderr, __VA_ARGS__); abort(); } } while (0)
#define ck_assert_int_eq(a, b) ck_assert_msg((a) == (b), "fake device: %s:%d\\n", __FILE__, __LINE__)
#define ck_assert_ptr_nonnull(p) ck_assert_msg((p) != NULL, "fake device: %s:%d\\n", __FILE__, __LINE__)
"""


class Leaks(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("allocations", "streams", "events", "registrations")]


def missing():
    """Why there can be no fake device here, or None."""
    if os.environ.get("LOADERD_TEST_INSTALLED"):
        return "the installed package is tested"
    if not os.path.exists(os.path.join(SOURCE, "client", "cuda", "helper.c")):
        return "the sources of libloaderd-cuda are not here"
    if shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
        return "no C compiler"
    return None


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """The fake library, in the place of libloaderd-cuda."""
    if missing():
        pytest.skip(missing())
    folder = str(tmp_path_factory.mktemp("fake"))
    with open(os.path.join(folder, "check.h"), "w") as f:
        f.write(CHECK)
    cuda = os.path.join(SOURCE, "client", "cuda")
    sources = [os.path.join(cuda, name) for name in ("cuda.c", "finish.c", "helper.c", "pin.c")]
    path = os.path.join(folder, "libloaderd-cuda.so.0")
    command = [os.environ.get("CC", "cc").split()[0], "-shared", "-fPIC", "-std=gnu11", "-D_GNU_SOURCE",
               "-DFAKE_DEVICE", "-I", folder, "-I", os.path.join(SOURCE, "include"), "-I", os.path.join(SOURCE, "src"),
               "-o", path, *sources, os.path.join(SOURCE, "tests", "cuda", "fake.c"), "-pthread",
               os.environ["LOADERD_LIBRARY"]]
    result = subprocess.run(command, stderr=subprocess.PIPE, universal_newlines=True)
    assert result.returncode == 0, result.stderr
    before, variable = _library._cuda_library, os.environ.get("LOADERD_CUDA_LIBRARY")
    os.environ["LOADERD_CUDA_LIBRARY"], _library._cuda_library = path, None
    library = _library.cuda_library()
    library.gpu_sync.argtypes = library.gpu_stream_free.argtypes = [ctypes.c_void_p]
    library.gpu_stream_new.restype = ctypes.c_void_p
    library.gpu_slow.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.gpu_leaks.restype = Leaks
    yield library
    _library._cuda_library = before
    if variable is None:
        del os.environ["LOADERD_CUDA_LIBRARY"]
    else:
        os.environ["LOADERD_CUDA_LIBRARY"] = variable


@pytest.fixture
def on_device(make, fake):
    def make_one(**arguments):
        return make(device="cuda", framework="array", **arguments)
    yield make_one


def leaks(library):
    gc.collect()
    found = library.gpu_leaks()
    return [getattr(found, name) for name, _ in Leaks._fields_]


def on_host(fake, array, stream=None):
    """What the array interface says, behind the work of the stream."""
    fake.gpu_sync(stream)
    interface = array.interface()
    size = max(a * b for a, b in zip(array.shape, array.strides))
    memory = (ctypes.c_uint8 * size).from_address(interface["data"][0])
    flat = numpy.frombuffer(memory, dtype=interface["typestr"])
    return numpy.lib.stride_tricks.as_strided(flat, interface["shape"], interface["strides"])


@pytest.mark.parametrize("layout", ["channels_last", "nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [None, "u8", "f16"])
def test_values(on_device, make, fake, records, layout, dtype):
    """Bit for bit what the daemon makes for the host."""
    arguments = {"layout": layout, "shuffle": True, "normalize": None if dtype == "u8" else "imagenet"}
    host = make(dtype=dtype, **arguments)
    loader = on_device(dtype=dtype, **arguments)
    assert loader.shapes["image"] == host.shapes["image"] and loader.shapes["label"] == ("i64", (8,))
    for _ in range(2):
        for (ids, images, labels), expected in zip(loader, host):
            assert images.dtype == loader.shapes["image"][0] and images.device == 0
            assert numpy.array_equal(on_host(fake, ids), expected[0])
            assert numpy.array_equal(on_host(fake, images), expected[1])
            assert numpy.array_equal(on_host(fake, labels), expected[2])
            assert numpy.array_equal(loader.rows["sample"], expected[0])
    if layout == "channels_last":
        assert images.strides[1] == numpy.dtype(images.interface()["typestr"]).itemsize
    del ids, images, labels
    loader.close()
    assert leaks(fake) == [0, 0, 0, 0]


@pytest.mark.parametrize("layout", ["channels_last", "nchw", "nhwc"])
def test_erased_pixels_are_zero_behind_normalize(on_device, make, fake, layout):
    arguments = {"layout": layout, "normalize": "imagenet", "keys": None, "record": "id:u32 image:u8[3,8,8]",
                 "erase_probability": 1}
    for (_, images), (_, expected) in zip(on_device(**arguments), make(**arguments)):
        assert (expected == 0).sum() >= 8 * 3
        assert numpy.array_equal(on_host(fake, images), expected)


def test_last_rows_and_epochs(on_device, fake, records):
    loader = on_device(last="keep", epochs=2, fields=["label"], with_valid=True)
    for _ in range(2):
        found = [on_host(fake, labels)[mask].tolist() for labels, mask in loader]
        assert sum(found, []) == records.labels.tolist() and len(found[-1]) == len(records.labels) % 8
    with pytest.raises(loaderd.LoaderdError, match="epochs=2"):
        iter(loader)


def test_resume(on_device, fake):
    reference = on_device(shuffle=True, fields=["id"])
    expected = [on_host(fake, ids).tolist() for (ids,) in reference]
    loader = on_device(shuffle=True, fields=["id"])
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()  # more are copied ahead; two were yielded
    assert state["step"] == 2
    other = on_device(shuffle=True, fields=["id"])
    other.load_state_dict(state)
    assert [on_host(fake, ids).tolist() for (ids,) in other] == expected[2:]


def test_a_buffer_is_kept_while_it_is_referred_to(on_device, fake, records):
    """And reuse comes behind the work of the stream that is current when it is dropped."""
    loader = on_device(fields=["id"], held=3)
    loader.stream = fake.gpu_stream_new()
    kept = []
    for (ids,) in loader:
        fake.gpu_slow(loader.stream, 2000)
        kept.append(ids)
        if len(kept) == 3:
            assert on_host(fake, kept[0], loader.stream)[0] == on_host(fake, ids, loader.stream)[0] - 16
            kept.pop(0)
    kept.clear()
    with pytest.raises(loaderd.LoaderdError, match="still referred to") as e:
        for (ids,) in loader:
            kept.append(ids)
    assert e.value.errno == errno.EBUSY and len(kept) == 5
    assert [on_host(fake, ids, loader.stream)[0] for ids in kept[:4]] == [0, 8, 16, 24]
    pid = loader.daemon_pid
    loader.close()
    assert on_host(fake, kept[1], None)[0] == 8 and os.path.exists(f"/proc/{pid}")
    del ids
    kept.clear()
    assert leaks(fake)[0] == 0


def test_dlpack(on_device, fake, records):
    loader = on_device(dtype="bf16", fields=["image"])
    (image,) = next(iter(loader))
    with pytest.raises(AttributeError):
        image.__cuda_array_interface__
    assert image.__dlpack_device__() == (2, 0)
    capsule = image.__dlpack__(stream=1)
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi))
    from loaderd import _arrays
    managed = _arrays._DLManagedTensor.from_address(pointer(capsule, b"dltensor"))
    tensor = managed.tensor
    assert (tensor.data, tensor.ndim, tensor.code, tensor.bits, tensor.lanes) == (image.ptr, 4, 4, 16, 1)
    assert tensor.shape[:4] == [8, 3, 8, 8] and tensor.strides[:4] == [192, 1, 24, 3]
    exported = len(_arrays._exported)
    del capsule  # nobody took it
    assert len(_arrays._exported) == exported - 1
    capsule = image.__dlpack__()
    address = pointer(capsule, b"dltensor")
    rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_SetName", ctypes.pythonapi))
    used = ctypes.create_string_buffer(b"used_dltensor")
    assert rename(capsule, ctypes.cast(used, ctypes.c_char_p)) == 0
    del capsule, image  # a consumer has it
    gc.collect()
    assert len(_arrays._exported) == exported and loader._session._leases == 1
    _arrays._DLManagedTensor.from_address(address).deleter(address)
    assert len(_arrays._exported) == exported - 1 and loader._session._leases == 0


def test_a_forked_child_leaves_the_device_alone(on_device, fake):
    loader = on_device(fields=["id"])
    iterator = iter(loader)
    held = next(iterator)
    pid = os.fork()
    if pid == 0:
        try:
            next(iterator)
            code = 1
        except loaderd.LoaderdError as e:
            code = 0 if e.errno == errno.ECHILD else 2
        del held
        loader.close()
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert sum(1 for _ in iterator) == len(loader) - 1
    del held


def test_a_dropped_loader_ends_at_once(fake, records):
    loader = loaderd.Loader(records.path, batch_size=8, verbose=False, keys=records.keys, device="cuda",
                            framework="array")
    gc.collect()
    gc.disable()
    try:
        for batch in loader:
            break
        pid = loader.daemon_pid
        del loader
        assert is_running(pid)
        del batch
        assert wait_gone(pid)
    finally:
        gc.enable()


def test_dtype_without_pictures(on_device, tmp_path, fake):
    numpy.save(tmp_path / "a.npy", numpy.zeros((10, 4), numpy.float32))
    arguments = {"device": "cuda", "framework": "array", "batch_size": 2, "verbose": False}
    with pytest.raises(loaderd.LoaderdError, match="a:f32"):
        len(loaderd.Loader(tmp_path / "a.npy", dtype="f32", **arguments))
    with loaderd.Loader(tmp_path / "a.npy", **arguments) as loader:
        assert next(iter(loader))[0].shape == (2, 4)


CUDA_PROGRAM = """
import sys, loaderd
try:
    len(loaderd.Loader("synthetic:100x4:f32", batch_size=2, device="cuda", framework="array", verbose=False))
    print(0)
except loaderd.LoaderdError as e:
    print(e.errno, e)
len(loaderd.Loader("synthetic:100x4:f32", batch_size=2, verbose=False))
"""


def test_without_a_library():
    result = run_python(CUDA_PROGRAM, LOADERD_CUDA_LIBRARY="/nonexistent/libloaderd-cuda.so.0")
    assert result.returncode == 0, result.stderr
    assert "libloaderd-cuda" in result.stdout and "LOADERD_CUDA_LIBRARY" in result.stdout


def test_without_a_device():
    """Wherever libloaderd-cuda is: it says so, and the host is not concerned."""
    result = run_python(CUDA_PROGRAM)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[0]) in (0, errno.ENODEV, errno.ENOENT)


def real_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch


@pytest.mark.parametrize("dtype", [None, "u8", "bf16"])
@pytest.mark.parametrize("layout", ["channels_last", "nchw", "nhwc"])
def test_torch_on_a_device(make, records, layout, dtype):
    torch = real_torch()
    arguments = {"layout": layout, "shuffle": True, "normalize": None if dtype == "u8" else "imagenet"}
    host, loader = make(device="cpu", dtype=dtype, **arguments), make(device="cuda", dtype=dtype, **arguments)
    for _ in range(3):
        for (ids, images, labels), expected in zip(loader, host):
            assert images.is_cuda and images.dtype == expected[1].dtype and labels.dtype == torch.int64
            assert torch.equal(images.cpu(), expected[1]) and torch.equal(labels.cpu(), expected[2])
            assert images.is_contiguous(memory_format=torch.channels_last) == (layout == "channels_last")
    assert loader.valid.is_cuda and bool(loader.valid.all())
    del ids, images, labels


def test_torch_tensors_are_not_overwritten(make, records):
    torch = real_torch()
    loader = make(device="cuda", fields=["id", "image"], dtype="u8", shuffle=True, held=4)
    kept, stream = [], torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(stream):
            for ids, images in loader:
                kept.append((ids, images, images.float().sum(dim=(1, 2, 3))))
                if len(kept) == 4:
                    for i, x, total in kept:
                        expected = records.images[i.cpu().numpy()]
                        assert numpy.array_equal(x.cpu().numpy(), expected)
                        assert total.cpu().tolist() == expected.sum(axis=(1, 2, 3)).tolist()
                    kept.clear()
        del ids, images
        kept.clear()


