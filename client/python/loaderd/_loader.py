# SPDX-License-Identifier: MIT
"""Loader: what a training loop sees. A position (epoch, step) and a session that stands there, opened when first needed
and opened anew where the loop jumps."""
from __future__ import annotations

import errno
import os
import socket
import sys
import weakref
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy

from . import _arrays as arrays
from . import _keys as keys_of
from . import _library as lib
from ._library import LoaderdError
from ._session import FieldShape, Finish, Lease, Request, Session, child_error

_LAUNCHERS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_HELD_VIEWS = 2   # the loop's variables still hold a batch while it asks for the next one
_DEVICE_DEPTH = 4 # these two, one that lies ready and one on its way

_ENDLESS = 2**40  # so many steps has no epoch but that of an explicit order

Position = Tuple[int, int]


class _Target(NamedTuple):
    """Where arrays are to lie, and as what."""
    cuda: Optional[int]  # index of the device, -1: the current one, None: the host
    framework: str       # "numpy", "torch" or "array"


def _parse_target(device: Any, framework: Optional[str]) -> _Target:
    text = "" if device is None else str(device)
    kind, _, index = text.partition(":")
    if kind not in ("", "cpu", "cuda") or (index and not (index.isdigit() and kind == "cuda")):
        raise keys_of.bad(f"device {device!r}: None, 'cpu', 'cuda' or 'cuda:N'")
    if framework is None:
        framework = "numpy" if kind == "" else "torch" if kind == "cpu" else "torch" if _has_torch() else "array"
    allowed = ("torch", "array") if kind == "cuda" else ("torch", "numpy")
    if framework not in allowed:
        raise keys_of.bad(f"framework {framework!r} with device {device!r}: {' or '.join(allowed)}")
    return _Target((int(index) if index else -1) if kind == "cuda" else None, framework)


def _has_torch() -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


class _CurrentStream:
    """The stream of a device that waits for copies, and that the reuse of memory waits for. Sessions have it, which may
    outlive their Loader."""

    def __init__(self, by_torch: bool):
        self.by_torch, self.value = by_torch, 0

    def __call__(self, device: int) -> int:
        return sys.modules["torch"].cuda.current_stream(device).cuda_stream if self.by_torch else self.value


class _FieldPlan(NamedTuple):
    """How one field of a batch becomes an array."""
    place: int
    name: str
    dtype: int
    shape: Tuple[int, ...]  # as it lies in memory, the batch included
    permute: bool           # pictures: (N, H, W, C) in memory, shown as (N, C, H, W)
    to_i64: bool            # labels


class Dataset:
    """What ``loader.dataset`` is: ``len()`` is the number of samples; :meth:`path` names one."""

    def __init__(self, loader: "Loader"):
        self._loader = weakref.ref(loader)

    def _session(self) -> Session:
        loader = self._loader()
        if loader is None:
            raise LoaderdError(errno.EBADF, "the loader is gone")
        return loader._open_session()

    def __len__(self) -> int:
        return self._session().samples

    def path(self, sample: int) -> str:
        """Path of a sample, with ``#record`` behind it where several share a file. Asks the daemon: for messages."""
        return self._session().sample_path(sample)

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("samples come in batches, from the loader; they cannot be asked for one by one")


class Sampler:
    """What ``loader.sampler`` is: for trainers that call ``loader.sampler.set_epoch(epoch)``. ``len()`` is the number
    of rows that this rank gets in an epoch."""

    def __init__(self, loader: "Loader"):
        self._loader = weakref.ref(loader)

    def set_epoch(self, epoch: int) -> None:
        loader = self._loader()
        if loader is not None:
            loader.set_epoch(epoch)

    def __len__(self) -> int:
        loader = self._loader()
        return len(loader) * loader.batch_size if loader is not None else 0


class _EpochIterator:
    """One pass. A newer one of the same loader ends it."""

    def __init__(self, loader: "Loader", turn: int):
        self._loader: Optional["Loader"] = loader
        self._turn = turn

    def __iter__(self) -> "_EpochIterator":
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if loader is None:
            raise StopIteration
        if loader._turn != self._turn:
            raise LoaderdError(errno.EBUSY, "a newer iterator of the same Loader has begun another epoch; use two "
                                            "Loaders to go through the data twice at the same time")
        batch = loader._next()
        if batch is None:
            self._loader = None
            raise StopIteration
        return batch


class Loader:
    """Batches of a dataset, made by loaderd, as numpy arrays or torch tensors.

    ::

        loader = loaderd.Loader("/data/imagenet/train", batch_size=256, device="cuda", image=224,
                                augment="random-resized-crop,flip", normalize="imagenet", shuffle=True)
        for epoch in range(90):
            for x, y in loader:      # x: f32[256, 3, 224, 224] channels-last, y: int64[256]
                train(x, y)

    Each ``iter()`` begins the next epoch; ``set_epoch()`` chooses one. The order of an epoch, and everything random in
    it, is a function of (dataset, keys, seed, epoch, rank, world size) alone.

    Parameters
    ----------
    name
        A dataset's path (str with a slash or a pattern's ``*?[{``, or any ``os.PathLike``), served by a private daemon
        that the ranks of the job share and that ends with them; or the name of a pipeline of the running service.
    batch_size
        Rows of a batch, for one rank. Default: the pipeline's, 64.
    device
        ``None``: numpy arrays. ``"cpu"``: torch tensors. ``"cuda"``, ``"cuda:1"``: torch tensors on that device, or
        :class:`DeviceArray` where torch is not installed; they are copied ahead of use, and the current stream waits
        for the copy, not the caller.
    dtype
        Of pictures: ``"u8"``, ``"f32"``, ``"f16"``, ``"bf16"`` (numpy's and torch's dtypes will do). Floats are
        ``value / 255``, normalised if asked. Default: f32 on a CUDA device and where ``normalize`` is given, else u8.
        On a CUDA device u8 crosses the bus and the device makes the floats.
    layout
        Of pictures. ``"channels_last"``: shape (N, C, H, W), in memory N, H, W, C, torch's ``channels_last``.
        ``"nchw"``: (N, C, H, W), contiguous. ``"nhwc"``: (N, H, W, C), contiguous.
    image, augment, normalize
        Keys ``image`` (a number or (height, width)), ``augment`` (text or a list), ``normalize`` (``"imagenet"``, or
        (mean, std) in units of 0..1).
    shuffle
        ``True`` (``full``), ``False`` (``none``) or a value of the key. ``"explicit"``: :meth:`supply` says the order.
    seed
        Of order and augmentation; 0.
    last, drop_last
        What becomes of the samples that fill no whole step: ``"drop"``; ``"keep"``: a shorter last batch; ``"pad"``:
        repeats, for which ``loader.valid`` is false. Default: drop when shuffled, else pad. ``drop_last=True`` is drop,
        ``drop_last=False`` keep.
    epochs
        How many there are; a further ``iter()`` is an error. Default: no end.
    rank, world_size
        Both or neither. Default: from the launcher (torchrun, Open MPI, Slurm), else 0 of 1.
    as_dict
        Yield ``{"image": x, "label": y}`` instead of ``(x, y)``.
    fields, drop
        Names of the fields to yield, in this order; names to leave out.
    with_valid
        Yield the mask of real rows as a last element, or under ``"valid"``.
    zero_copy
        On the host: arrays are views of the shared memory instead of copies. They stay what they are as long as they
        live, and their slot of the ring is not filled anew before; hold few (``held``), else the loader stands still
        and says so. The memory is read-only: writing to a numpy view is an error, to a torch tensor of it the end of
        the process (SIGSEGV).
    held
        How many batches may be referred to at once with ``zero_copy``, or on a CUDA device (where each is one more
        device buffer). Default 2: the one in the loop's variables and the one that replaces it.
    framework
        ``"torch"``, ``"numpy"`` or ``"array"`` (:class:`DeviceArray`) where ``device`` alone would choose otherwise.
    socket, job
        Another service's socket; the name under which ranks find their private daemon.
    group
        ``"NAME:MEMBERS"``: so many trainers, each with a Loader of the same group, keys and rank, share one ring: each
        batch is made once, and all of them get it. The first use waits for the others.
    timeout, reconnect_timeout
        Seconds: the longest wait for a batch (300) and for a new daemon when one dies (60). None: without end, never.
    verbose
        One line on stderr at the first use, with the rank.
    keys, **keywords
        Keys of loaderd.conf(5): ``Loader(..., scale=(0.2, 1), label_dtype="i32")``; ``keys`` takes them as a dict, as
        they are written there. Those of the daemon (``workers=8``) count where it is started.

    Nothing is opened before the first ``iter()``, ``len()`` or the like; until then a Loader may be pickled and passed
    to other processes. A Loader that is open belongs to its process: in a forked child every use is an error. Calls of
    one Loader must not overlap; tensors may be dropped anywhere.
    """

    num_workers = 0        # asked for by loops that print them
    pin_memory = False
    persistent_workers = False
    collate_fn = None
    generator = None

    def __init__(self, name: Union[str, "os.PathLike[str]"], *, batch_size: Optional[int] = None, device: Any = None,
                 dtype: Any = None, layout: str = "channels_last", image: Any = None,
                 augment: Union[str, Sequence[str], None] = None, normalize: Any = None,
                 shuffle: Union[bool, str, None] = None, seed: Optional[int] = None, last: Optional[str] = None,
                 drop_last: Optional[bool] = None, epochs: Optional[int] = None, rank: Optional[int] = None,
                 world_size: Optional[int] = None, as_dict: bool = False, fields: Optional[Sequence[str]] = None,
                 drop: Sequence[str] = (), with_valid: bool = False, zero_copy: bool = False,
                 held: Optional[int] = None, framework: Optional[str] = None, socket: Optional[str] = None,
                 job: Optional[str] = None, group: Optional[str] = None, timeout: Optional[float] = 300.0,
                 reconnect_timeout: Optional[float] = 60.0, verbose: bool = True,
                 keys: Optional[Mapping[str, Any]] = None, **keywords: Any):
        self._session: Optional[Session] = None  # first, for __del__ after a failure below
        self._target = _parse_target(device, framework)
        if layout not in keys_of.LAYOUTS:
            raise keys_of.bad(f"layout {layout!r}: one of {', '.join(keys_of.LAYOUTS)}")
        if (rank is None) != (world_size is None):
            raise keys_of.bad(f"rank={rank} and world_size={world_size}: give both, or neither")
        if fields is not None and drop:
            raise keys_of.bad("give fields= or drop=, not both")
        self._name = keys_of.dataset_name(name)
        self._layout, self._normalize = layout, keys_of.parse_normalize(normalize)
        self._dtype = keys_of.picture_dtype(dtype)
        self._wanted, self._unwanted = None if fields is None else list(fields), list(drop)
        self._as_dict, self._with_valid = bool(as_dict), bool(with_valid)
        self._zero_copy = bool(zero_copy)
        self._held = _HELD_VIEWS if held is None else int(held)
        self._rank, self._world = rank, world_size
        self._epochs = int(epochs) if epochs else 0
        self._socket, self._job, self._group = socket, job, group
        self._timeout, self._reconnect_timeout = timeout, reconnect_timeout
        self._verbose = bool(verbose)
        named = {"batch": None if batch_size is None else str(int(batch_size)),
                 "image": None if image is None else keys_of.image_text(image),
                 "augment": None if augment is None else keys_of.value_text(augment),
                 "shuffle": keys_of.shuffle_text(shuffle), "seed": None if seed is None else str(int(seed)),
                 "last": keys_of.last_text(last, drop_last)}
        # a pixel that was erased is 0 behind Normalize, which a device that normalises u8 cannot know
        erased = self._normalize is not None and "erase-probability" in {
            name.replace("_", "-") for name in [*keywords, *(keys or {})]}
        self._finishes = self._target.cuda is not None and not erased
        named.update(self._picture_keys())
        self._keys = keys_of.merge(named, keywords, keys)
        self._casts_labels = "label-dtype" not in self._keys
        if self._casts_labels and keys_of.is_path(self._name) and socket is None:
            self._keys["label-dtype"] = "i64"
        if self._target.framework == "torch":
            arrays.import_torch(f"device={device!r}" if framework is None else "framework='torch'")

        self._opened = False
        self._identity: Optional[lib.State] = None
        self._resume: Optional[Position] = None      # by load_state_dict()
        self._chosen: Optional[int] = None           # by set_epoch()
        self._position: Optional[Position] = None    # of the batch that comes next
        self._epoch: Optional[int] = None            # that the last iterator began
        self._turn = 0                               # number of the iterator that is valid
        self._iterates = False                       # one has begun since the position was last set from outside
        self._plans: List[_FieldPlan] = []
        self._rows: Optional[numpy.ndarray] = None
        self._valid = self._nrows = 0
        self._stream = _CurrentStream(self._target.framework == "torch")
        self._pool = arrays.Pool()
        self._dataset, self._sampler = Dataset(self), Sampler(self)

    def _picture_keys(self) -> Dict[str, Optional[str]]:
        """Keys that shape pictures in the ring. Those that a CUDA device finishes are u8, NHWC there."""
        if self._finishes:
            return {}
        dtype = lib.F32 if self._dtype is None and self._normalize else self._dtype
        return {"dtype": None if dtype is None else keys_of.PICTURE_DTYPES[dtype],
                "normalize": keys_of.normalize_text(self._normalize) if self._normalize else None,
                "layout": "nchw" if self._layout == "nchw" else None}

    # -- an explicit order ---------------------------------------------------------------------------------------------

    def supply(self, ids: Any) -> None:
        """Which samples come next, with ``shuffle="explicit"``: a sequence or array of sample ids, in this order. May be
        called before the loop and within it, with as many as one likes; what the ring has no room for yet waits here. A
        batch takes as many ids as it has rows, and ``next()`` waits for those. An id that the dataset does not have is
        an error of its batch. Where the loop jumps (``set_epoch()``, ``load_state_dict()``), ids are to be sent anew."""
        ids = numpy.asarray(ids)
        if ids.size and (ids.dtype.kind not in "iu" or ids.ndim != 1 or int(ids.min()) < 0):
            raise keys_of.bad(f"supply(): ids are non-negative integers in one dimension, not {ids.dtype}{list(ids.shape)}")
        if ids.size:
            self._open_session().supply(numpy.array(ids, dtype=numpy.uint64))

    def end_supply(self) -> None:
        """No further ids come: the last batch may have fewer rows, and behind it the pass ends."""
        self._open_session().end_supply()

    # -- the session ---------------------------------------------------------------------------------------------------

    def _next_position(self) -> Position:
        """Where the next iterator begins."""
        if self._resume is not None:
            return self._resume
        if self._chosen is not None:
            return self._chosen, 0
        return (0 if self._epoch is None else self._epoch + 1), 0

    def _open_session(self) -> Session:
        """Any session, for what is the same in all of them."""
        if self._session is None:
            self._go_to(self._position if self._iterates and self._position else self._next_position())
        session = self._session
        assert session is not None
        if os.getpid() != session.pid:
            raise child_error()
        return session

    def _go_to(self, position: Position) -> Session:
        """The session that stands at `position`: the present one if it does, else another."""
        session, (epoch, step) = self._session, position
        if session is not None and os.getpid() != session.pid:
            raise child_error()
        if session is not None and session.position == position:
            return session
        self._check_epoch(epoch)
        state = None
        if self._identity is not None:
            state = lib.State.from_buffer_copy(self._identity)
            state.epoch, state.step = epoch, step
        new = Session(self._request(), epoch, step, self._epochs - epoch if self._epochs else 0, state)
        try:
            self._set_up(new)
        except BaseException:
            new.close()
            raise
        self._session, old = new, session
        if old is not None:  # not before: a private daemon would end in between
            old.close()
        self._identity = new.identity
        if not self._opened:
            self._opened = True
            self._announce(new)
        return new

    def _check_epoch(self, epoch: int) -> None:
        if self._epochs and epoch >= self._epochs:
            raise LoaderdError(errno.ENODATA, f"epoch {epoch} was asked for, and the loader has epochs={self._epochs}: "
                                              f"0 to {self._epochs - 1}")

    def _request(self) -> Request:
        held = self._held + 2 if self._target.cuda is not None else self._held if self._zero_copy else 1
        return Request(self._name, keys_of.key_strings(self._keys), -1 if self._rank is None else self._rank,
                       -1 if self._world is None else self._world, held, self._timeout, self._reconnect_timeout,
                       self._socket, self._job, self._group)

    def _set_up(self, session: Session) -> None:
        """The device, and how each field becomes an array."""
        if self._target.cuda is not None:
            pictures = any(_is_picture(f, lib.U8) for f in session.fields)
            if self._finishes and not pictures and (self._dtype is not None or self._normalize is not None):
                raise keys_of.bad("dtype and normalize are for u8 pictures, and this dataset has none: its fields are "
                                  + ", ".join(_describe(f) for f in session.fields))
            dtype = lib.F32 if self._dtype is None else self._dtype
            nchw = self._layout == "nchw"
            wanted = self._finishes and pictures and (dtype != lib.U8 or nchw)
            finish = Finish(dtype, nchw, self._normalize) if wanted else None
            session.use_device(self._device_index(), max(2, self._held + _DEVICE_DEPTH - _HELD_VIEWS), finish,
                               self._stream)
        self._plans = [self._plan(session, index) for index in self._choose(session.fields)]

    def _choose(self, fields: Sequence[FieldShape]) -> List[int]:
        names = [field.name for field in fields]
        for name in (self._wanted or []) + self._unwanted:
            if name not in names:
                raise keys_of.bad(f"no field {name!r}: there are {', '.join(names)}")
        if self._wanted is not None:
            return [names.index(name) for name in self._wanted]
        return [i for i, name in enumerate(names) if name not in self._unwanted]

    def _plan(self, session: Session, index: int) -> _FieldPlan:
        field, ring = session.fields[index], session.ring_fields[index]
        on_device = self._target.cuda is not None
        picture = _is_picture(ring, lib.U8 if self._finishes else None)
        permute = picture and self._layout == "channels_last"
        if index == session.finished and self._layout == "nchw":
            permute = False
        to_i64 = (field.name == "label" and field.dtype == lib.I32 and self._casts_labels
                  and (self._target.framework == "torch" if on_device else not self._zero_copy))
        if field.dtype == lib.BF16 and self._target.framework == "numpy":
            arrays.bfloat16_dtype()  # or an error
        return _FieldPlan(index, field.name, field.dtype, field.shape, permute, to_i64)

    def _device_index(self) -> int:
        if self._target.framework == "torch":
            torch = arrays.import_torch("device='cuda'")
            if not torch.cuda.is_available():
                raise LoaderdError(errno.ENODEV, "a CUDA device was asked for, and torch.cuda.is_available() is False: "
                                                 "no driver, no device, or a torch built without CUDA")
            if self._target.cuda == -1:
                return torch.cuda.current_device()
        return -1 if self._target.cuda is None else self._target.cuda

    def _announce(self, session: Session) -> None:
        if not self._verbose:
            return
        source = "as given" if self._rank is not None else ", ".join(
            name for name in _LAUNCHERS if os.environ.get(name) == str(session.rank))[:60] or "no launcher"
        where = f"on cuda:{session.device}" if session.device >= 0 else "on the host"
        print(f"loaderd: rank {session.rank} of {session.world} ({source}), {session.samples} samples, {session.steps} "
              f"steps of {session.batch_size} rows an epoch, {where}, seed {session.seed}, daemon {session.daemon_pid}",
              file=sys.stderr, flush=True)
        self._check_torch_rank(session)

    def _check_torch_rank(self, session: Session) -> None:
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        if self._rank is None and distributed is not None and distributed.is_available() \
                and distributed.is_initialized() and distributed.get_world_size() != session.world:
            print(f"loaderd: warning: torch.distributed has {distributed.get_world_size()} ranks, the environment says "
                  f"{session.world}: pass rank= and world_size=", file=sys.stderr, flush=True)

    # -- iteration -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        position = self._next_position()
        self._check_epoch(position[0])
        session = self._go_to(position)
        session.begin_epoch()
        self._position, self._epoch = position, position[0]
        self._resume = self._chosen = None
        self._turn += 1
        self._iterates = True
        return _EpochIterator(self, self._turn)

    def _next(self) -> Any:
        assert self._position is not None and self._epoch is not None
        if self._position[0] != self._epoch and self._session is None:
            return None  # closed behind the last batch
        session = self._go_to(self._position)
        try:
            lease = session.next()
            if lease is None:
                return None
            batch = self._take(session, lease)
            self._position = session.position
            return batch
        except LoaderdError:
            raise
        except BaseException:  # Ctrl-C: no daemon is left behind; whoever goes on opens it anew where this one stood
            self.close()
            raise

    def _take(self, session: Session, lease: Lease) -> Any:
        batch = lease.batch
        self._nrows, self._valid = batch.rows, batch.valid
        self._rows = arrays.host_copy(batch.row, (batch.rows,), arrays.ROW)
        make = self._device_array if self._target.cuda is not None else self._host_array
        values = [make(session, lease, plan) for plan in self._plans]
        if self._target.cuda is None and not self._zero_copy:
            lease.end()
        if self._with_valid:
            values.append(self.valid)
        if self._as_dict:
            names = [plan.name for plan in self._plans] + ["valid"]
            return dict(zip(names, values))
        return tuple(values)

    def _host_array(self, session: Session, lease: Lease, plan: _FieldPlan) -> Any:
        field = lease.batch.fields[plan.place]
        shape = (lease.batch.rows,) + plan.shape[1:]
        storage = arrays.storage_dtype(plan.dtype)
        tensor = self._target.framework == "torch"
        if self._zero_copy:  # torch has no read-only tensors and warns of read-only arrays
            array = arrays.host_view(field.data, shape, storage, lease, readonly=not tensor)
        else:
            array = arrays.host_copy(field.data, shape, storage, self._pool)
        if plan.to_i64:
            array = array.astype(numpy.int64)
        if plan.permute:
            array = array.transpose(0, 3, 1, 2)
        if tensor:
            return arrays.tensor_of_host(sys.modules["torch"], array, plan.dtype)
        return array.view(arrays.bfloat16_dtype()) if plan.dtype == lib.BF16 else array

    def _device_array(self, session: Session, lease: Lease, plan: _FieldPlan) -> Any:
        field = lease.batch.fields[plan.place]
        shape = (lease.batch.rows,) + plan.shape[1:]
        strides = arrays.c_strides(shape, lib.DTYPE_BYTES[plan.dtype])
        if plan.permute:
            shape, strides = arrays.channels_first(shape, strides)
        array = arrays.DeviceArray(field.data, shape, strides, plan.dtype, session.device,
                                   self._stream(session.device), lease)
        if self._target.framework == "array":
            return array
        tensor = arrays.tensor_of_device(sys.modules["torch"], array)
        return tensor.long() if plan.to_i64 else tensor

    def __len__(self) -> int:
        """Batches that this rank gets in an epoch. TypeError with an explicit order: as many as there are ids for."""
        steps = self._open_session().steps
        if steps >= _ENDLESS:
            raise TypeError("with an explicit order a Loader has no length: it gives as many batches as there are ids for")
        return steps

    def set_epoch(self, epoch: int) -> None:
        """The next ``iter()`` goes through epoch number ``epoch``. Without it each one takes the epoch after the last.
        A position inside this epoch that ``load_state_dict()`` has set is kept."""
        if self._resume is not None and self._resume[0] == epoch:
            return
        self._resume = None
        self._chosen = int(epoch)

    # -- what the last batch was ---------------------------------------------------------------------------------------

    @property
    def valid(self) -> Any:
        """bool[N] of the batch that was yielded last: False for repeats that fill it, not to be counted by a metric."""
        if self._target.framework == "torch":
            torch = sys.modules["torch"]
            device = None
            if self._target.cuda is not None and self._session is not None:
                device = f"cuda:{self._session.device}"
            return torch.arange(self._nrows, device=device) < self._valid
        return numpy.arange(self._nrows) < self._valid

    @property
    def rows(self) -> Optional[numpy.ndarray]:
        """Structured array [N] about the rows of the batch that was yielded last: ``sample``, ``position``, ``status``,
        ``flip``, ``source_width``, ``source_height``, ``crop_x``, ``crop_y``, ``crop_width``, ``crop_height``."""
        return self._rows

    @property
    def epoch(self) -> int:
        """The epoch that the last ``iter()`` began; before it, the one that it would."""
        return self._next_position()[0] if self._epoch is None else self._epoch

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> Dict[str, Any]:
        """Where the loop stands: every batch that was yielded counts as trained on, so take it behind the optimizer's
        step. Plain numbers and text. The same on every rank, where all are at the same step."""
        session = self._open_session()
        pending = self._resume is not None or self._chosen is not None
        epoch, step = self._next_position() if pending or self._position is None else self._position
        state = session.identity
        return {"version": 1, "seed": state.seed, "epoch": epoch, "step": step, "global_batch": state.global_batch,
                "fingerprint": bytes(state.fingerprint).hex()}

    def check_ranks(self, group: Any = None) -> None:
        """Compares what the ranks of a job read: call it once on every rank, behind
        ``torch.distributed.init_process_group()``. A collective: it waits for all ranks of ``group``. LoaderdError where
        a copy of the dataset on some node differs, or keys, seed, global batch, rank or world size do not fit together;
        the sentence names the ranks."""
        session = self._open_session()
        distributed = arrays.import_torch("check_ranks()").distributed
        mine = {"host": socket.gethostname(), "rank": session.rank, "world": session.world, "samples": session.samples,
                "seed": session.seed, "global_batch": session.identity.global_batch,
                "fingerprint": bytes(session.identity.fingerprint).hex()}
        all_ranks: List[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(all_ranks, mine, group=group)
        problem = rank_differences(all_ranks)
        if problem:
            raise LoaderdError(errno.EINVAL, problem)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next ``iter()`` gives the rest of the epoch that the state was taken in. It is refused, at the next use,
        where it belongs to other data, other keys or another global batch (batch size times world size: these two may
        change)."""
        if state.get("version") != 1:
            raise keys_of.bad(f"a loader's state of version {state.get('version')!r}: 1 is known")
        fingerprint = bytes.fromhex(state["fingerprint"])
        identity = lib.State(seed=state["seed"], global_batch=state["global_batch"])
        identity.fingerprint[:] = fingerprint
        if self._session is not None and not _same_identity(self._session.identity, identity):
            self.close()
        self._identity = identity
        self._resume, self._chosen = (int(state["epoch"]), int(state["step"])), None
        self._turn += 1
        self._iterates = False

    # -- the rest ------------------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Rows of a batch, for this rank."""
        given = self._keys.get("batch")
        return int(given) if given is not None and given.isdigit() else self._open_session().batch_size

    @property
    def drop_last(self) -> bool:
        last = self._keys.get("last", "auto")
        return last == "drop" or (last == "auto" and self._keys.get("shuffle", "none") != "none")

    @property
    def dataset(self) -> Dataset:
        return self._dataset

    @property
    def sampler(self) -> Sampler:
        return self._sampler

    @property
    def batch_sampler(self) -> None:
        return None

    @property
    def rank(self) -> int:
        return self._open_session().rank

    @property
    def world_size(self) -> int:
        return self._open_session().world

    @property
    def daemon_pid(self) -> int:
        return self._open_session().daemon_pid

    @property
    def shapes(self) -> Dict[str, Tuple[str, Tuple[int, ...]]]:
        """Element type and shape of each field that is yielded, as ``{"image": ("f32", (256, 3, 224, 224))}``."""
        self._open_session()
        return {p.name: ("i64" if p.to_i64 else lib.DTYPE_NAMES[p.dtype],
                         arrays.channels_first(p.shape) if p.permute else p.shape) for p in self._plans}

    @property
    def stream(self) -> int:
        """The CUDA stream (a cudaStream_t as a number, 0: the default one) that waits for copies and that the reuse of
        device memory waits for. With torch: the current stream at the time. Else this attribute, which may be set."""
        return self._stream(self._open_session().device) if self._target.cuda is not None else 0

    @stream.setter
    def stream(self, stream: int) -> None:
        if self._target.framework == "torch":
            raise keys_of.bad("with torch it is the current stream: use torch.cuda.stream(...)")
        self._stream.value = int(stream)

    def statistics(self) -> Dict[str, int]:
        """How it went since the session was opened: ``batches``, ``waits`` (found none ready), ``wait_ns`` and more;
        see struct loaderd_statistics, on a CUDA device struct loaderd_cuda_statistics."""
        return self._open_session().statistics()

    def close(self) -> None:
        """Ends the session; a private daemon ends with its last one. Memory that arrays or tensors still lie in stays,
        and the session with it, until they are dropped. The loader may be used again: it opens anew where it stood."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            session.close()

    def __getstate__(self) -> Dict[str, Any]:
        if self._opened:
            raise LoaderdError(errno.EBUSY, "a Loader that is in use cannot be pickled: pass it to other processes "
                                            "before its first use, or make it there")
        state = dict(self.__dict__)
        for name in ("_dataset", "_sampler", "_pool"):
            del state[name]
        if self._identity is not None:
            state["_identity"] = bytes(self._identity)
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._identity is not None:
            self._identity = lib.State.from_buffer_copy(self._identity)
        self._pool = arrays.Pool()
        self._dataset, self._sampler = Dataset(self), Sampler(self)

    def __repr__(self) -> str:
        keys = ", ".join(f"{key}={value}" for key, value in self._keys.items())
        return f"<loaderd.Loader {self._name!r} {keys}>"


def _describe(field: FieldShape) -> str:
    return f"{field.name}:{lib.DTYPE_NAMES[field.dtype]}{list(field.shape[1:])}"


def _is_picture(field: FieldShape, dtype: Optional[int]) -> bool:
    """(N, H, W, 1 or 3), of u8 or, where the daemon makes them, of floats."""
    return len(field.shape) == 4 and field.shape[3] in (1, 3) and (
        field.dtype == dtype if dtype is not None else field.dtype in keys_of.PICTURE_DTYPES)


_NAMES = {"fingerprint": "another dataset or other keys", "samples": "another number of samples", "seed": "another seed",
          "global_batch": "another global batch", "world": "another world size"}


def rank_differences(ranks: Sequence[Mapping[str, Any]]) -> str:
    """In one sentence which of the ranks read something else than most; "" where all agree and each rank is there once."""
    for key in ("samples", "fingerprint", "seed", "global_batch", "world"):
        values = [rank[key] for rank in ranks]
        usual = max(values, key=values.count)
        others = [f"rank {rank['rank']} on {rank['host']} ({rank[key]})" for rank in ranks if rank[key] != usual]
        if others:
            return f"{_NAMES[key]} on {', '.join(others)}; on the other ranks it is {usual}"
    numbers = sorted(rank["rank"] for rank in ranks)
    if numbers != list(range(ranks[0]["world"])):
        return f"the loaders have ranks {numbers} of {ranks[0]['world']}: pass rank= and world_size="
    return ""


def _same_identity(a: lib.State, b: lib.State) -> bool:
    return (a.seed, a.global_batch, bytes(a.fingerprint)) == (b.seed, b.global_batch, bytes(b.fingerprint))
