# SPDX-License-Identifier: MIT
"""Training batches, ready in shared memory: the Python side of loaderd.

    import loaderd

    loader = loaderd.Loader("/data/imagenet/train", batch_size=256, device="cuda", image=224,
                            augment="random-resized-crop,flip", normalize="imagenet", shuffle=True)
    for x, y in loader:
        ...

A thin layer of ctypes over libloaderd, and over libloaderd-cuda where a CUDA device is asked for. Needs numpy; torch
only where tensors are asked for. The guide is docs/pytorch.md."""
from ._arrays import DeviceArray, ragged
from ._library import (ROW_BLANK, ROW_DAMAGED, ROW_PADDING, ROW_SUBSTITUTED, LoaderdError,
                       version as library_version)
from ._loader import Loader
from ._torchvision import from_torchvision

__all__ = ["DeviceArray", "Loader", "LoaderdError", "ROW_BLANK", "ROW_DAMAGED", "ROW_PADDING", "ROW_SUBSTITUTED",
           "from_torchvision", "library_version", "ragged"]
__version__ = "0.1.0"
