# SPDX-License-Identifier: MIT
"""libloaderd and libloaderd-cuda by ctypes: where they are found, and their structs as <loaderd/loaderd.h> and
<loaderd/cuda.h> have them (tests/python/test_abi.py compares them with the compiler's view). No policy here."""
from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
from typing import List, Optional, Tuple

U8, I8, U16, I16, U32, I32, U64, I64, F16, BF16, F32, F64 = range(1, 13)
MAX_DIMS = 8
BATCH_LAST = 0x1
ROW_PADDING, ROW_SUBSTITUTED, ROW_BLANK, ROW_DAMAGED = 0x1, 0x2, 0x4, 0x8

#: name in loaderd.conf(5) of each element type
DTYPE_NAMES = {U8: "u8", I8: "i8", U16: "u16", I16: "i16", U32: "u32", I32: "i32", U64: "u64", I64: "i64",
               F16: "f16", BF16: "bf16", F32: "f32", F64: "f64"}
DTYPE_BYTES = {U8: 1, I8: 1, U16: 2, I16: 2, U32: 4, I32: 4, U64: 8, I64: 8, F16: 2, BF16: 2, F32: 4, F64: 8}


class LoaderdError(RuntimeError):
    """What libloaderd said no to. ``errno`` is the positive error number (``errno.EINVAL``, ...), the text is the
    library's sentence, which names the thing and the remedy."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.errno = abs(code)

    def __reduce__(self):  # RuntimeError's own would lose `code`
        return type(self), (self.errno, str(self))


class Field(ctypes.Structure):
    """struct loaderd_field"""
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_uint32), ("ndim", ctypes.c_uint32),
                ("dims", ctypes.c_int64 * MAX_DIMS), ("data", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


class Batch(ctypes.Structure):
    """struct loaderd_batch"""
    _fields_ = [("epoch", ctypes.c_uint64), ("step", ctypes.c_uint64), ("sequence", ctypes.c_uint64),
                ("rows", ctypes.c_uint32), ("valid", ctypes.c_uint32), ("flags", ctypes.c_uint32),
                ("nfields", ctypes.c_uint32), ("fields", ctypes.POINTER(Field)), ("row", ctypes.c_void_p),
                ("slot", ctypes.c_void_p), ("slot_bytes", ctypes.c_uint64), ("generation", ctypes.c_uint64),
                ("ring", ctypes.c_void_p)]


class State(ctypes.Structure):
    """struct loaderd_state"""
    _fields_ = [("seed", ctypes.c_uint64), ("epoch", ctypes.c_uint64), ("step", ctypes.c_uint64),
                ("global_batch", ctypes.c_uint64), ("fingerprint", ctypes.c_uint8 * 16)]


class Options(ctypes.Structure):
    """struct loaderd_options"""
    _fields_ = [("size", ctypes.c_size_t), ("socket", ctypes.c_char_p), ("keys", ctypes.POINTER(ctypes.c_char_p)),
                ("rank", ctypes.c_int64), ("world", ctypes.c_int64), ("epoch", ctypes.c_uint64),
                ("step", ctypes.c_uint64), ("epochs", ctypes.c_uint64), ("state", ctypes.POINTER(State)),
                ("held", ctypes.c_uint32), ("next_timeout_ms", ctypes.c_int32),
                ("reconnect_timeout_ms", ctypes.c_int32), ("daemon", ctypes.c_char_p), ("job", ctypes.c_char_p),
                ("group", ctypes.c_char_p)]


# Structs that the library fills end in room for what later versions may add.
class Info(ctypes.Structure):
    """struct loaderd_info"""
    _fields_ = [("samples", ctypes.c_uint64), ("steps_per_epoch", ctypes.c_uint64), ("batch", ctypes.c_uint32),
                ("rank", ctypes.c_uint32), ("world", ctypes.c_uint32), ("slots", ctypes.c_uint32),
                ("seed", ctypes.c_uint64), ("daemon_pid", ctypes.c_int32), ("nfields", ctypes.c_uint32),
                ("fields", ctypes.POINTER(Field)), ("engine", ctypes.c_char_p), ("socket", ctypes.c_char_p),
                ("_room", ctypes.c_uint8 * 256)]


class Statistics(ctypes.Structure):
    """struct loaderd_statistics"""
    _fields_ = [("batches", ctypes.c_uint64), ("waits", ctypes.c_uint64), ("wait_ns", ctypes.c_uint64),
                ("wakes_sent", ctypes.c_uint64), ("rescues", ctypes.c_uint64), ("reconnects", ctypes.c_uint64),
                ("_room", ctypes.c_uint8 * 256)]


class FinishSpec(ctypes.Structure):
    """struct loaderd_cuda_finish_spec"""
    _fields_ = [("dtype", ctypes.c_uint32), ("layout", ctypes.c_uint32), ("normalize", ctypes.c_uint32),
                ("reserved", ctypes.c_uint32), ("mean", ctypes.c_float * 3), ("std", ctypes.c_float * 3)]


NOTIFY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)


class CudaOptions(ctypes.Structure):
    """struct loaderd_cuda_options"""
    _fields_ = [("size", ctypes.c_size_t), ("device", ctypes.c_int32), ("depth", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("next_timeout_ms", ctypes.c_int32), ("finish", FinishSpec),
                ("finish_field", ctypes.c_char_p), ("notify", NOTIFY), ("notify_arg", ctypes.c_void_p)]


class CudaInfo(ctypes.Structure):
    """struct loaderd_cuda_info"""
    _fields_ = [("device", ctypes.c_int32), ("node", ctypes.c_int32), ("depth", ctypes.c_uint32),
                ("pinned", ctypes.c_uint32), ("pinned_bytes", ctypes.c_uint64), ("pin_ns", ctypes.c_uint64),
                ("device_bytes", ctypes.c_uint64), ("nfields", ctypes.c_uint32), ("finished", ctypes.c_uint32),
                ("fields", ctypes.POINTER(Field)), ("note", ctypes.c_char_p), ("_room", ctypes.c_uint8 * 256)]


class CudaStatistics(ctypes.Structure):
    """struct loaderd_cuda_statistics"""
    _fields_ = [("batches", ctypes.c_uint64), ("copies", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
                ("waits", ctypes.c_uint64), ("wait_ns", ctypes.c_uint64), ("stream_waits", ctypes.c_uint64),
                ("stream_wait_ns", ctypes.c_uint64), ("data_ns", ctypes.c_uint64), ("copy_ns", ctypes.c_uint64),
                ("trainer_ns", ctypes.c_uint64), ("rings", ctypes.c_uint64), ("_room", ctypes.c_uint8 * 256)]


_P, _PP = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
_INT, _TEXT = ctypes.c_int, ctypes.c_char_p

_PROTOTYPES = [
    ("loaderd_open", _INT, [_PP, _TEXT, ctypes.POINTER(Options), _TEXT, ctypes.c_size_t]),
    ("loaderd_close", None, [_P]),
    ("loaderd_next", _INT, [_P, ctypes.POINTER(Batch)]),
    ("loaderd_release", _INT, [_P, ctypes.POINTER(Batch)]),
    ("loaderd_supply", ctypes.c_int64, [_P, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]),
    ("loaderd_supply_end", _INT, [_P]),
    ("loaderd_state", _INT, [_P, ctypes.POINTER(State)]),
    ("loaderd_sample_path", _INT, [_P, ctypes.c_uint64, _TEXT, ctypes.c_size_t]),
    ("loaderd_info", _INT, [_P, ctypes.POINTER(Info)]),
    ("loaderd_statistics", _INT, [_P, ctypes.POINTER(Statistics)]),
    ("loaderd_error", _TEXT, [_P]),
    ("loaderd_version", _TEXT, []),
]
_CUDA_PROTOTYPES = [
    ("loaderd_cuda_open", _INT, [_PP, _P, ctypes.POINTER(CudaOptions), _TEXT, ctypes.c_size_t]),
    ("loaderd_cuda_close", None, [_P]),
    ("loaderd_cuda_next", _INT, [_P, _P, ctypes.POINTER(Batch)]),
    ("loaderd_cuda_release", _INT, [_P, _P, ctypes.POINTER(Batch)]),
    ("loaderd_cuda_supply", ctypes.c_int64, [_P, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]),
    ("loaderd_cuda_supply_end", _INT, [_P]),
    ("loaderd_cuda_info", _INT, [_P, ctypes.POINTER(CudaInfo)]),
    ("loaderd_cuda_statistics", _INT, [_P, ctypes.POINTER(CudaStatistics)]),
    ("loaderd_cuda_error", _TEXT, [_P]),
]

_SONAME, _CUDA_SONAME = "libloaderd.so.0", "libloaderd-cuda.so.0"
_HERE = os.path.dirname(os.path.abspath(__file__))
#: where a wheel keeps the programs and libraries that it carries
BUNDLE = os.path.join(_HERE, "_bundle")
_SOURCE_TREE = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))

_library: Optional[ctypes.CDLL] = None
_cuda_library: Optional[ctypes.CDLL] = None
_library_path = ""


def _in_folders(folders: List[str], soname: str) -> List[str]:
    names = (soname, soname[:-2])  # the link of a development package, too
    return [os.path.join(folder, name) for folder in folders for name in names]


def _candidates(variable: str, soname: str) -> List[str]:
    """Paths that may be the library, best first; the last ones are names for the dynamic linker."""
    given = os.environ.get(variable)
    if given:
        return _in_folders([given], soname) if os.path.isdir(given) else [given]
    folders = [os.path.join(BUNDLE, "lib")]
    if os.path.isfile(os.path.join(_SOURCE_TREE, "include", "loaderd", "loaderd.h")):
        folders.append(os.path.join(_SOURCE_TREE, "build", ".libs"))
    found = [path for path in _in_folders(folders, soname) if os.path.exists(path)]
    by_linker = ctypes.util.find_library(soname[3:].split(".so")[0])
    return found + [soname] + ([by_linker] if by_linker else []) + _in_folders(["/usr/local/lib"], soname)


def _load(variable: str, soname: str, prototypes, first: List[str]) -> Tuple[ctypes.CDLL, str]:
    candidates = first + _candidates(variable, soname)
    library, path, reasons = None, "", []
    for path in candidates:
        try:
            library = ctypes.CDLL(path)
            break
        except OSError as e:
            if os.path.exists(path):  # there, but broken: that is the thing to know
                reasons.append(f"{path}: {e}")
    if library is None:
        why = "; ".join(reasons) or "looked for " + ", ".join(dict.fromkeys(candidates))
        raise LoaderdError(errno.ENOENT, f"cannot load {soname} ({why}); install loaderd, or set {variable} to the "
                                         "library or its folder")
    for name, result, arguments in prototypes:
        function = getattr(library, name, None)
        if function is None:
            raise LoaderdError(errno.ENOSYS, f"{path} has no {name}(): it is older than this Python package")
        function.restype, function.argtypes = result, arguments
    return library, path


def library() -> ctypes.CDLL:
    """libloaderd, loaded at the first call."""
    global _library, _library_path
    if _library is None:
        _library, _library_path = _load("LOADERD_LIBRARY", _SONAME, _PROTOTYPES, [])
    return _library


def cuda_library() -> ctypes.CDLL:
    """libloaderd-cuda, loaded at the first call: where libloaderd came from, else as the linker finds it."""
    global _cuda_library
    if _cuda_library is None:
        library()  # its symbols are wanted by the other one, from the same file
        folder = os.path.dirname(_library_path)
        beside = _in_folders([folder], _CUDA_SONAME) if folder and "LOADERD_CUDA_LIBRARY" not in os.environ else []
        try:
            _cuda_library = _load("LOADERD_CUDA_LIBRARY", _CUDA_SONAME, _CUDA_PROTOTYPES,
                                  [path for path in beside if os.path.exists(path)])[0]
        except LoaderdError as e:
            raise LoaderdError(e.errno, f"batches on a CUDA device need libloaderd-cuda: {e}") from None
    return _cuda_library


def daemon_program() -> Optional[str]:
    """The daemon that belongs to the loaded library, where libloaderd would not find it by itself."""
    if os.environ.get("LOADERD_DAEMON"):
        return None
    library()
    bundled = os.path.join(BUNDLE, "sbin", "loaderd")
    if _library_path.startswith(BUNDLE) and os.access(bundled, os.X_OK):
        return bundled
    folder = os.path.dirname(_library_path)
    built = os.path.join(os.path.dirname(folder), "loaderd")
    return built if os.path.basename(folder) == ".libs" and os.access(built, os.X_OK) else None


def version() -> str:
    """Version of libloaderd."""
    return library().loaderd_version().decode()
