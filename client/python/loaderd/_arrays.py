# SPDX-License-Identifier: MIT
"""Memory of a batch as arrays: numpy views and copies on the host, DeviceArray on a CUDA device, torch tensors of
either.

Whoever looks at memory that belongs to loaderd keeps the batch's lease alive, whatever views are made of it; see
_session.Lease. torch is imported only where tensors are asked for."""
from __future__ import annotations

import ctypes
import errno
from typing import Any, Dict, List, Optional, Tuple

import numpy

from . import _library as lib
from ._library import LoaderdError

_NUMPY = {lib.U8: "u1", lib.I8: "i1", lib.U16: "<u2", lib.I16: "<i2", lib.U32: "<u4", lib.I32: "<i4", lib.U64: "<u8",
          lib.I64: "<i8", lib.F16: "<f2", lib.BF16: "<u2", lib.F32: "<f4", lib.F64: "<f8"}

Shape = Tuple[int, ...]

#: one row of a batch: struct loaderd_row
ROW = numpy.dtype([("sample", "<u8"), ("position", "<u8"), ("status", "<u4"), ("flip", "<u4"),
                   ("source_width", "<u4"), ("source_height", "<u4"), ("crop_x", "<f4"), ("crop_y", "<f4"),
                   ("crop_width", "<f4"), ("crop_height", "<f4"), ("reserved", "<u8", (2,))])


def storage_dtype(dtype: int) -> numpy.dtype:
    """numpy's dtype of the stored elements; bf16, which numpy does not have, as the 16 bits that they are."""
    return numpy.dtype(_NUMPY[dtype])


def bfloat16_dtype() -> numpy.dtype:
    try:
        import ml_dtypes
    except ImportError:
        raise LoaderdError(errno.ENOTSUP, "numpy has no bfloat16: install ml_dtypes, or ask for torch tensors "
                                          "(device='cpu')") from None
    return numpy.dtype(ml_dtypes.bfloat16)


def import_torch(why: str) -> Any:
    try:
        import torch
    except ImportError as e:
        raise LoaderdError(errno.ENOENT, f"{why} needs PyTorch, which cannot be imported ({e})") from None
    return torch


def channels_first(shape: Shape, strides: Optional[Shape] = None) -> Any:
    """(N, H, W, C) seen as (N, C, H, W)."""
    n, h, w, c = shape
    if strides is None:
        return (n, c, h, w)
    return (n, c, h, w), (strides[0], strides[3], strides[1], strides[2])


class _HostMemory:
    """What a numpy view of a slot has as its base."""
    __slots__ = ("__array_interface__", "lease")

    def __init__(self, address: int, shape: Shape, dtype: numpy.dtype, readonly: bool, lease: Any):
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (address, readonly)}
        self.lease = lease


def host_view(address: int, shape: Shape, dtype: numpy.dtype, lease: Any, readonly: bool = True) -> numpy.ndarray:
    return numpy.asarray(_HostMemory(address, shape, dtype, readonly, lease))


class Pool:
    """Memory of large copies that are not referred to any more: fresh pages cost as much as the copy itself."""
    LEAST, MOST = 1 << 20, 4

    def __init__(self) -> None:
        self._free: Dict[int, List[numpy.ndarray]] = {}

    def empty(self, shape: Shape, dtype: numpy.dtype) -> numpy.ndarray:
        size = int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
        if size < self.LEAST:
            return numpy.empty(shape, dtype)
        free = self._free.setdefault(size, [])
        try:
            memory = free.pop()
        except IndexError:
            memory = numpy.empty(size, numpy.uint8)
        return numpy.asarray(_Pooled(memory, free, shape, dtype))


class _Pooled:
    """The base of a pooled array, and of all views of it: ends with the last one."""
    __slots__ = ("__array_interface__", "memory", "free")

    def __init__(self, memory: numpy.ndarray, free: List[numpy.ndarray], shape: Shape, dtype: numpy.dtype):
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str,
                                    "data": (memory.ctypes.data, False)}
        self.memory, self.free = memory, free

    def __del__(self) -> None:
        if len(self.free) < Pool.MOST:
            self.free.append(self.memory)


def host_copy(address: int, shape: Shape, dtype: numpy.dtype, pool: Optional[Pool] = None) -> numpy.ndarray:
    array = numpy.empty(shape, dtype) if pool is None else pool.empty(shape, dtype)
    ctypes.memmove(array.ctypes.data, address, array.nbytes)  # other threads may run meanwhile
    return array


def tensor_of_host(torch: Any, array: numpy.ndarray, dtype: int) -> Any:
    """Shares the array's memory."""
    if dtype == lib.BF16:
        return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def ragged(field: Any, counts: Any) -> List[Any]:
    """The rows of a field that is filled in part, each without what only fills it up: memoryviews of the bytes of a
    field that is delivered undecoded, arrays (or tensors) of boxes, (count, 5)::

        files = loaderd.ragged(batch["image"], batch["image-length"])
        boxes = loaderd.ragged(batch["boxes"], batch["boxes-count"])

    Nothing is copied: with ``zero_copy`` they are valid as long as the batch is."""
    if len(field) != len(counts):
        raise ValueError(f"{len(field)} rows and {len(counts)} counts are not of one batch")
    if getattr(field, "ndim", 0) == 2 and hasattr(field, "numpy"):  # a tensor of bytes
        field = field.numpy()
    rows = [row[:int(count)] for row, count in zip(field, counts)]
    return [memoryview(row) for row in rows] if isinstance(field, numpy.ndarray) and field.ndim == 2 else rows


# ---- DLPack: https://dmlc.github.io/dlpack/latest/c_api.html ---------------------------------------------------------

_DL_CUDA = 2
_DL_CODES = {lib.U8: 1, lib.U16: 1, lib.U32: 1, lib.U64: 1, lib.I8: 0, lib.I16: 0, lib.I32: 0, lib.I64: 0,
             lib.F16: 2, lib.F32: 2, lib.F64: 2, lib.BF16: 4}


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _DLManagedTensor(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DLManagedTensor._fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]

_exported: Dict[int, Any] = {}  # what consumers hold, by the address of its struct


@_DELETER
def _deleter(address: Optional[int]) -> None:
    _exported.pop(address or 0, None)


# prototypes of our own: the functions of ctypes.pythonapi are shared with whoever else sets their argument types
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))
_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))
_NAME = ctypes.create_string_buffer(b"dltensor")


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _capsule_destructor(capsule: int) -> None:
    if _is_capsule(capsule, _NAME.value):  # nobody took it
        _exported.pop(_capsule_pointer(capsule, _NAME.value) or 0, None)


class DeviceArray:
    """One field of a batch in the memory of a CUDA device, for what understands DLPack or the CUDA array interface::

        cupy.asarray(x)    jax.dlpack.from_dlpack(x)    torch.as_tensor(x, device="cuda")

    As long as it, or what was made of it, lives, its memory is not filled anew. The data are ready for work on the
    stream that the loader had when it yielded the batch (``loader.stream``; the default stream unless set); work on
    another, non-blocking stream must wait for that one.

    Attributes: ``shape``, ``strides`` (in bytes), ``dtype`` ("u8", "bf16", ...), ``ptr``, ``device``, ``stream``.
    """
    __slots__ = ("shape", "strides", "dtype", "ptr", "device", "stream", "_code", "_lease", "__weakref__")

    def __init__(self, ptr: int, shape: Shape, strides: Shape, code: int, device: int, stream: int, lease: Any):
        self.ptr, self.shape, self.strides, self.device, self.stream = ptr, shape, strides, device, stream
        self.dtype = lib.DTYPE_NAMES[code]
        self._code, self._lease = code, lease

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if self._code == lib.BF16:
            raise AttributeError("the CUDA array interface has no bfloat16: take it by DLPack")
        return self.interface()

    def interface(self) -> Dict[str, Any]:
        """The CUDA array interface; bf16 as int16."""
        typestr = "<i2" if self._code == lib.BF16 else storage_dtype(self._code).str
        return {"version": 3, "shape": self.shape, "strides": self.strides, "typestr": typestr,
                "data": (self.ptr, False), "stream": self.stream or 1}

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _DL_CUDA, self.device

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        n, size = len(self.shape), lib.DTYPE_BYTES[self._code]
        shape = (ctypes.c_int64 * n)(*self.shape)
        strides = (ctypes.c_int64 * n)(*(stride // size for stride in self.strides))
        tensor = _DLTensor(self.ptr, _DL_CUDA, self.device, n, _DL_CODES[self._code], size * 8, 1,
                           ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
                           ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)), 0)
        managed = _DLManagedTensor(tensor, None, _deleter)
        address = ctypes.addressof(managed)
        _exported[address] = (managed, shape, strides, self)
        return _new_capsule(address, ctypes.cast(_NAME, ctypes.c_char_p),
                            ctypes.cast(_capsule_destructor, ctypes.c_void_p))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<loaderd.DeviceArray {self.dtype}{list(self.shape)} on cuda:{self.device}>"


class _AsInterface:
    """For torch.as_tensor(), which keeps it."""
    __slots__ = ("__cuda_array_interface__", "array")

    def __init__(self, array: DeviceArray):
        self.__cuda_array_interface__ = array.interface()
        self.array = array


def tensor_of_device(torch: Any, array: DeviceArray) -> Any:
    tensor = torch.as_tensor(_AsInterface(array), device=f"cuda:{array.device}")
    return tensor.view(torch.bfloat16) if array._code == lib.BF16 else tensor


def c_strides(shape: Shape, size: int) -> Shape:
    strides = [size]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return tuple(strides)
