# SPDX-License-Identifier: MIT
"""One session with a daemon: loaderd_open() to loaderd_close(), and the leases of its batches.

Calls on a struct loaderd must not overlap, while Python drops tensors in any thread and in the midst of anything. So a
lease that ends is only queued; whoever can take the lock without waiting gives it back, at the latest the next call.
A session that is closed while somebody still looks at its memory ends with the last lease.

Signals: no call into the library is longer than SLICE_MS, so that Ctrl-C is heard; opening has a thread of its own."""
from __future__ import annotations

import atexit
import collections
import ctypes
import errno
import os
import re
import threading
import time
import weakref
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Tuple

from . import _library as lib
from ._library import LoaderdError

SLICE_MS = 200
_ERROR_BYTES = 1024


class FieldShape(NamedTuple):
    name: str
    dtype: int
    shape: Tuple[int, ...]


class Finish(NamedTuple):
    """What a CUDA device makes of u8 pictures."""
    dtype: int
    nchw: bool
    normalize: Optional[Tuple[Tuple[float, ...], Tuple[float, ...]]]


class Request(NamedTuple):
    """What loaderd_open() is asked for, without the position."""
    name: str
    keys: List[bytes]
    rank: int
    world: int
    held: int
    timeout: Optional[float]
    reconnect_timeout: Optional[float]
    socket: Optional[str]
    job: Optional[str]
    group: Optional[str]


def _milliseconds(seconds: Optional[float]) -> int:
    return -1 if seconds is None else max(1, min(int(seconds * 1000), 2**31 - 1))


def child_error() -> LoaderdError:
    return LoaderdError(errno.ECHILD, "this loader was opened by another process; make a Loader in this one, or fork "
                                      "before the first use (an unused Loader may be passed to a child)")


def check(code: int, sentence: Callable[[], Optional[bytes]]) -> int:
    if code < 0:
        raise LoaderdError(code, (sentence() or b"").decode(errors="replace") or os.strerror(-code))
    return code


def _interruptible(call: Callable[[], Any], undo: Callable[[Any], None]) -> Any:
    """call() in another thread. If this one is interrupted, what comes of it is undone."""
    lock = threading.Lock()
    result: List[Tuple[Any, Optional[BaseException]]] = []
    abandoned: List[bool] = []

    def run() -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as e:  # noqa: B902 - handed to the caller
            error = e
        with lock:
            result.append((value, error))
            late = bool(abandoned)
        if late and error is None:
            undo(value)

    thread = threading.Thread(target=run, name="loaderd-open", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        with lock:
            abandoned.append(True)
            late = list(result)
        if late and late[0][1] is None:
            undo(late[0][0])
        raise
    value, error = result[0]
    if error is not None:
        raise error
    return value


def _open(request: Request, epoch: int, step: int, epochs: int, state: Optional[lib.State]) -> int:
    library = lib.library()
    strings = (ctypes.c_char_p * (len(request.keys) + 1))(*request.keys, None)
    options = lib.Options(size=ctypes.sizeof(lib.Options), rank=request.rank, world=request.world, epoch=epoch,
                          step=step, epochs=epochs, held=request.held, next_timeout_ms=SLICE_MS,
                          reconnect_timeout_ms=_milliseconds(request.reconnect_timeout),
                          keys=ctypes.cast(strings, ctypes.POINTER(ctypes.c_char_p)))
    if state is not None:
        options.state = ctypes.pointer(state)
    if request.socket is not None:
        options.socket = os.fsencode(request.socket)
    if request.job is not None:
        options.job = request.job.encode()
    if request.group is not None:
        options.group = request.group.encode()
    program = lib.daemon_program()
    if program is not None:
        options.daemon = os.fsencode(program)
    handle = ctypes.c_void_p()
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    code = library.loaderd_open(ctypes.byref(handle), os.fsencode(request.name), ctypes.byref(options), error,
                                _ERROR_BYTES)
    check(code, lambda: error.value)
    return handle.value or 0


class Lease:
    """Keeps one batch from being filled anew. Ends with its last reference, or by end()."""
    __slots__ = ("session", "batch", "live", "__weakref__")

    def __init__(self, session: "Session"):
        self.session, self.batch, self.live = session, lib.Batch(), False

    def end(self) -> None:
        if self.live:
            self.live = False
            self.session._drop(self.batch)

    __del__ = end


class Session:
    """Position (epoch, step) is that of the batch that next() will give."""

    def __init__(self, request: Request, epoch: int, step: int, epochs: int, state: Optional[lib.State]):
        self.pid = os.getpid()
        self.timeout = request.timeout
        self._library = lib.library()
        self._lock = threading.Lock()
        self._dropped: Deque[lib.Batch] = collections.deque()
        self._leases = 0
        self._closing = False
        self._end_due = False
        self._ids: Deque[Any] = collections.deque()  # of an explicit order, arrays: not yet taken by the library
        self._ids_end = self._ids_ended = False      # none follow those; the library knows it
        self._cuda: Optional["CudaSession"] = None
        self._handle = _interruptible(lambda: _open(request, epoch, step, epochs, state), self._library.loaderd_close)
        _sessions.add(self)
        try:
            self._learn()
        except BaseException:
            self.close()
            raise

    def _learn(self) -> None:
        info, state = lib.Info(), lib.State()
        check(self._library.loaderd_info(self._handle, ctypes.byref(info)), self._sentence)
        check(self._library.loaderd_state(self._handle, ctypes.byref(state)), self._sentence)
        self.samples, self.steps, self.batch_size = info.samples, info.steps_per_epoch, info.batch
        self.rank, self.world, self.seed, self.slots = info.rank, info.world, info.seed, info.slots
        self.daemon_pid = info.daemon_pid
        self.engine = (info.engine or b"").decode(errors="replace")
        self.socket = os.fsdecode(info.socket or b"")
        self.fields = self.ring_fields = [field_shape(info.fields[i]) for i in range(info.nfields)]
        self.identity = state
        self.position = (state.epoch, state.step)

    # -- the library ---------------------------------------------------------------------------------------------------

    def _sentence(self) -> bytes:
        return self._library.loaderd_error(self._handle)

    def use_device(self, device: int, depth: int, finish: Optional[Finish], stream: Callable[[int], int]) -> None:
        """From now on batches lie on a CUDA device. Once, before the first next()."""
        self._cuda = CudaSession(self._handle, device, depth, finish, stream)
        self.fields = self._cuda.fields

    @property
    def device(self) -> int:
        return self._cuda.device if self._cuda else -1

    @property
    def finished(self) -> int:
        """Index of the field that the device finished, -1: none."""
        return self._cuda.finished if self._cuda else -1

    def _call_next(self, batch: lib.Batch) -> int:
        return self._cuda.next(batch) if self._cuda else self._library.loaderd_next(self._handle, ctypes.byref(batch))

    def _call_release(self, batch: lib.Batch) -> int:
        if self._cuda:
            return self._cuda.release(batch)
        return self._library.loaderd_release(self._handle, ctypes.byref(batch))

    def _call_supply(self, ids: Any) -> int:
        pointer = ids.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64))
        return self._cuda.supply(pointer, len(ids)) if self._cuda else self._library.loaderd_supply(
            self._handle, pointer, len(ids))

    def _call_supply_end(self) -> int:
        return self._cuda.supply_end() if self._cuda else self._library.loaderd_supply_end(self._handle)

    def _fail(self, code: int) -> None:
        text = (self._cuda.sentence() if self._cuda else self._sentence()).decode(errors="replace")
        if code == -errno.ETIMEDOUT and self.timeout is not None:
            text = re.sub(r"within [0-9.]+ s", f"within {self.timeout:g} s", text, count=1)
        if code == -errno.EBUSY and self._leases:
            text += (f"; {self._leases} batches are still referred to by arrays or tensors of theirs: drop them, copy "
                     "what is to be kept, or give Loader a larger held=")
        raise LoaderdError(code, text or os.strerror(-code))

    # -- batches -------------------------------------------------------------------------------------------------------

    def next(self) -> Optional[Lease]:
        """The next batch, or None once at the end of an epoch."""
        self._check_usable()
        until = None if self.timeout is None else time.monotonic() + self.timeout
        lease = Lease(self)
        try:
            with self._lock:
                return lease if self._wait_next(lease, until) else None
        finally:
            self._settle()

    def supply(self, ids: Any) -> None:
        """Ids of an explicit order, a contiguous array of uint64; those that the library has no room for go later."""
        self._check_usable()
        if self._ids_end:
            raise LoaderdError(errno.EINVAL, "end_supply() was called: no further ids can come")
        try:
            with self._lock:
                self._ids.append(ids)
                self._feed()
        finally:
            self._settle()

    def end_supply(self) -> None:
        self._check_usable()
        self._ids_end = True
        try:
            with self._lock:
                self._feed()
        finally:
            self._settle()

    def _feed(self) -> None:
        """With the lock: what there is room for."""
        while self._ids:
            ids = self._ids[0]
            taken = self._call_supply(ids)
            if taken == -errno.EAGAIN:
                return
            if taken < 0:
                self._ids.clear()
                self._fail(taken)
            if taken < len(ids):
                self._ids[0] = ids[taken:]
            else:
                self._ids.popleft()
        if self._ids_end and not self._ids_ended:
            self._ids_ended = True
            check(self._call_supply_end(), self._sentence)

    def _wait_next(self, lease: Lease, until: Optional[float]) -> bool:
        batch = lease.batch
        while True:
            self._give_back()
            self._feed()
            code = self._call_next(batch)
            if code == 1:
                self._leases += 1
                lease.live = True
                break
            self._check_usable()
            if code == 0:
                self._end_due = False
                return False
            if code != -errno.ETIMEDOUT or (until is not None and time.monotonic() >= until):
                self._fail(code)
        self._end_due = bool(batch.flags & lib.BATCH_LAST)
        self.position = (batch.epoch + 1, 0) if self._end_due else (batch.epoch, batch.step + 1)
        return True

    def begin_epoch(self) -> None:
        """Goes past the end of an epoch whose last batch was taken and whose end nobody has asked for."""
        if self._end_due:
            self.next()

    def _drop(self, batch: lib.Batch) -> None:
        self._dropped.append(batch)
        self._settle()

    def _settle(self) -> None:
        """Does what is due (batches to give back, the end of the session), unless whoever holds the lock will."""
        while (self._dropped or (self._closing and self._leases == 0 and self._handle)) and self._lock.acquire(False):
            try:
                if self._give_back():
                    return
                if self._closing and self._leases == 0:
                    self._end()
            finally:
                self._lock.release()

    def _give_back(self) -> bool:
        """With the lock. True: some cannot go now (the stream is being captured)."""
        while self._dropped:
            batch = self._dropped.popleft()
            if self._handle and os.getpid() == self.pid and self._call_release(batch) == -errno.EBUSY:
                self._dropped.appendleft(batch)
                return True
            self._leases -= 1
        return False

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if os.getpid() != self.pid:
            raise child_error()
        if self._closing:
            raise LoaderdError(errno.EBADF, "the loader is closed")

    def sample_path(self, sample: int) -> str:
        self._check_usable()
        if self._cuda:
            raise LoaderdError(errno.ENOTSUP, "paths of samples cannot be asked for while batches go to a CUDA device")
        buffer = ctypes.create_string_buffer(16384)
        with self._lock:
            check(self._library.loaderd_sample_path(self._handle, sample, buffer, len(buffer)), self._sentence)
        return os.fsdecode(buffer.value)

    def statistics(self) -> Dict[str, int]:
        self._check_usable()
        with self._lock:
            if self._cuda:
                return self._cuda.statistics()
            statistics = lib.Statistics()
            check(self._library.loaderd_statistics(self._handle, ctypes.byref(statistics)), self._sentence)
        return numbers(statistics)

    def close(self) -> None:
        """At once, or with the last lease."""
        self._closing = True
        self._settle()

    def _end(self) -> None:
        handle, self._handle = self._handle, 0
        cuda, self._cuda = self._cuda, None
        if cuda:
            cuda.close()
        if handle:
            self._library.loaderd_close(handle)

    def end_at_exit(self) -> None:
        """The process is about to end. Device memory goes in any case; a mapping that somebody may read does not."""
        if os.getpid() != self.pid:
            return
        self.close()
        if self._cuda and self._lock.acquire(timeout=1):
            self._end()


def field_shape(field: lib.Field) -> FieldShape:
    return FieldShape((field.name or b"").decode(errors="replace"), field.dtype, tuple(field.dims[:field.ndim]))


def numbers(structure: ctypes.Structure) -> Dict[str, int]:
    return {name: getattr(structure, name) for name, *_ in structure._fields_ if not name.startswith("_")}


class CudaSession:
    """loaderd_cuda_open() to loaderd_cuda_close(), on the loader `handle`. The stream is asked for at each call, by device."""

    def __init__(self, handle: int, device: int, depth: int, finish: Optional[Finish], stream: Callable[[int], int]):
        self._library = lib.cuda_library()
        self._stream = stream
        options = lib.CudaOptions(size=ctypes.sizeof(lib.CudaOptions), device=device, depth=depth,
                                  next_timeout_ms=SLICE_MS)
        if finish is not None:
            options.finish = lib.FinishSpec(dtype=finish.dtype, layout=int(finish.nchw))
            if finish.normalize is not None and finish.dtype != lib.U8:
                options.finish.normalize = 1
                options.finish.mean[:], options.finish.std[:] = finish.normalize
        lc, error = ctypes.c_void_p(), ctypes.create_string_buffer(_ERROR_BYTES)
        code = self._library.loaderd_cuda_open(ctypes.byref(lc), handle, ctypes.byref(options), error, _ERROR_BYTES)
        check(code, lambda: error.value)
        self._lc = lc.value
        info = lib.CudaInfo()
        check(self._library.loaderd_cuda_info(self._lc, ctypes.byref(info)), self.sentence)
        self.device, self.depth, self.pinned = info.device, info.depth, bool(info.pinned)
        self.finished = info.finished if info.finished < info.nfields else -1
        self.fields = [field_shape(info.fields[i]) for i in range(info.nfields)]

    def sentence(self) -> bytes:
        return self._library.loaderd_cuda_error(self._lc)

    def next(self, batch: lib.Batch) -> int:
        return self._library.loaderd_cuda_next(self._lc, self._stream(self.device), ctypes.byref(batch))

    def release(self, batch: lib.Batch) -> int:
        return self._library.loaderd_cuda_release(self._lc, self._stream(self.device), ctypes.byref(batch))

    def supply(self, ids: Any, count: int) -> int:
        return self._library.loaderd_cuda_supply(self._lc, ids, count)

    def supply_end(self) -> int:
        return self._library.loaderd_cuda_supply_end(self._lc)

    def statistics(self) -> Dict[str, int]:
        statistics = lib.CudaStatistics()
        check(self._library.loaderd_cuda_statistics(self._lc, ctypes.byref(statistics)), self.sentence)
        return numbers(statistics)

    def close(self) -> None:
        self._library.loaderd_cuda_close(self._lc)


_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for session in list(_sessions):
        session.end_at_exit()
