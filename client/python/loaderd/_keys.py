# SPDX-License-Identifier: MIT
"""Arguments of Loader to "key=value" strings of loaderd.conf(5). Pure functions; what a key means, and whether it
exists, is the daemon's to say."""
from __future__ import annotations

import errno
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ._library import BF16, F16, F32, U8, LoaderdError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_DTYPES = {"u8": U8, "uint8": U8, "f32": F32, "float32": F32, "float": F32, "f16": F16, "float16": F16, "half": F16,
           "bf16": BF16, "bfloat16": BF16}
PICTURE_DTYPES = {U8: "u8", F32: "f32", F16: "f16", BF16: "bf16"}
LAYOUTS = ("channels_last", "nchw", "nhwc")


def bad(message: str) -> LoaderdError:
    return LoaderdError(errno.EINVAL, message)


def is_path(name: str) -> bool:
    """As libloaderd tells a dataset from a pipeline's name."""
    return name.startswith((".", "synthetic:")) or any(c in name for c in "/*?[{")


def dataset_name(name: Any) -> str:
    """A str as it is; an os.PathLike is always a path."""
    if isinstance(name, str):
        return name
    path = os.fspath(name)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return path if is_path(path) else os.path.join(".", path)


def picture_dtype(dtype: Any) -> Optional[int]:
    """"f32", numpy.float32, torch.bfloat16, ... to enum loaderd_dtype; None stays None."""
    if dtype is None:
        return None
    text = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    text = text.rsplit(".", 1)[-1]  # torch.bfloat16
    if text not in _DTYPES:
        raise bad(f"dtype {dtype!r}: pictures can be u8, f32, f16 or bf16 (or numpy's and torch's names of these)")
    return _DTYPES[text]


def value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(value_text(part) for part in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, float):
        return repr(value)
    return str(value)


def image_text(image: Any) -> str:
    if isinstance(image, (list, tuple)):
        if len(image) != 2:
            raise bad(f"image {image!r}: one number, or (height, width)")
        return f"{image[0]}x{image[1]}"
    return value_text(image)


def parse_normalize(normalize: Any) -> Optional[Tuple[Tuple[float, ...], Tuple[float, ...]]]:
    """"imagenet", (mean, std) or "M,M,M/S,S,S" to two tuples of three; "none" and None to None."""
    if normalize is None or normalize == "none" or normalize is False:
        return None
    if normalize == "imagenet":
        return IMAGENET_MEAN, IMAGENET_STD
    try:
        if isinstance(normalize, str):
            parts: Sequence[Any] = [half.split(",") for half in normalize.split("/")]
        else:
            parts = normalize
        mean, std = (tuple(float(x) for x in (half if isinstance(half, Iterable) else [half])) for half in parts)
    except (TypeError, ValueError):
        raise bad(f"normalize {normalize!r}: 'imagenet', or (mean, std) with a number for each channel") from None
    mean, std = (half * 3 if len(half) == 1 else half for half in (mean, std))
    if len(mean) != 3 or len(std) != 3 or not all(std):
        raise bad(f"normalize {normalize!r}: three means and three standard deviations, none of them 0")
    return mean, std


def normalize_text(normalize: Tuple[Tuple[float, ...], Tuple[float, ...]]) -> str:
    if normalize == (IMAGENET_MEAN, IMAGENET_STD):
        return "imagenet"
    return "/".join(",".join(value_text(float(x)) for x in half) for half in normalize)


def shuffle_text(shuffle: Any) -> Optional[str]:
    if shuffle is None or isinstance(shuffle, str):
        return shuffle
    return "full" if shuffle else "none"


def last_text(last: Optional[str], drop_last: Optional[bool]) -> Optional[str]:
    if drop_last is None:
        return last
    if last is not None:
        raise bad("give last= or drop_last=, not both: last='drop' is drop_last=True, last='keep' drop_last=False")
    return "drop" if drop_last else "keep"


def merge(named: Mapping[str, Optional[str]], keywords: Mapping[str, Any],
          literal: Optional[Mapping[str, Any]]) -> Dict[str, str]:
    """All keys, underscores made hyphens, None left out; one given twice is an error."""
    result = {key: value for key, value in named.items() if value is not None}
    for source in (keywords, literal or {}):
        for name, value in source.items():
            key = name.replace("_", "-")
            if value is None:
                continue
            if key in result:
                raise bad(f"{key} is given twice: {result[key]!r} and {value!r}")
            result[key] = image_text(value) if key == "image" else value_text(value)
    for key, value in result.items():
        if "\0" in key or "\0" in value or "=" in key:
            raise bad(f"{key!r}: neither key nor value may hold a NUL, nor a key '='")
    return result


def key_strings(keys: Mapping[str, str]) -> List[bytes]:
    return [os.fsencode(f"{key}={value}") for key, value in keys.items()]
