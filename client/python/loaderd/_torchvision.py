# SPDX-License-Identifier: MIT
"""torchvision transforms to keys. By class name and attributes: torchvision itself is not imported."""
from __future__ import annotations

import errno
from typing import Any, Dict, List, Optional, Tuple

from ._library import LoaderdError

_FILTERS = {"nearest": "nearest", "nearest-exact": "nearest", "bilinear": "bilinear", "bicubic": "bicubic"}
_CONTAINERS = ("Compose", "Sequential", "ModuleList")
_NOTHING = ("PILToTensor", "ToImage", "ToImageTensor", "ToPureTensor", "Identity", "RGB")


class _Translation:
    """What was seen so far, and what cannot be said in keys."""

    def __init__(self) -> None:
        self.keys: Dict[str, Any] = {}
        self.crop = ""
        self.resize: Optional[Tuple[str, int]] = None  # a short side that waits for its CenterCrop
        self.flips: Dict[str, float] = {}
        self.is_float = False
        self.refused: List[str] = []

    def refuse(self, transform: Any, why: str) -> None:
        self.refused.append(f"{_short(transform)}: {why}")


def _short(transform: Any) -> str:
    text = " ".join(repr(transform).split())
    return text if len(text) <= 120 else text[:117] + "..."


def _value(transform: Any, *names: str, default: Any = None) -> Any:
    for name in names:
        if hasattr(transform, name):
            return getattr(transform, name)
    return default


def _pair(size: Any) -> Tuple[int, ...]:
    if isinstance(size, (list, tuple)):
        return tuple(int(x) for x in size)
    return (int(size),)


def _image(size: Any) -> Any:
    """As the key image has it; one number is a square."""
    sides = _pair(size)
    return sides[0] if len(set(sides)) == 1 else sides


def _filter(t: _Translation, transform: Any) -> bool:
    mode = _value(transform, "interpolation", default="bilinear")
    name = str(getattr(mode, "value", mode)).lower()
    if name not in _FILTERS:
        t.refuse(transform, f"interpolation {name}; offered are nearest, bilinear and bicubic")
        return False
    if _FILTERS[name] != "nearest" and _value(transform, "antialias", default=True) is False:
        t.refuse(transform, "antialias=False; pictures are always resized with antialiasing, as Pillow does")
        return False
    if t.is_float:
        t.refuse(transform, "it resizes floats; put it before the conversion to floats")
        return False
    if t.keys.setdefault("filter", _FILTERS[name]) != _FILTERS[name]:
        t.refuse(transform, f"a second interpolation beside {t.keys['filter']}")
        return False
    return True


def _set_crop(t: _Translation, transform: Any, name: str, size: Any) -> bool:
    if t.crop:
        t.refuse(transform, f"a second crop or resize after {t.crop}")
        return False
    t.crop = name
    t.keys["image"] = _image(size)
    return True


def _random_resized_crop(t: _Translation, transform: Any) -> None:
    if _filter(t, transform) and _set_crop(t, transform, "random-resized-crop", transform.size):
        t.keys["scale"] = tuple(float(x) for x in transform.scale)
        t.keys["ratio"] = tuple(float(x) for x in transform.ratio)


def _resize(t: _Translation, transform: Any) -> None:
    size = transform.size
    if size is None or _value(transform, "max_size") is not None:
        t.refuse(transform, "max_size; the short side is resized to one size")
    elif not _filter(t, transform):
        return
    elif len(_pair(size)) == 2:
        _set_crop(t, transform, "stretch", size)
    elif t.crop or t.resize:
        t.refuse(transform, f"a second crop or resize after {t.crop or 'Resize'}")
    else:
        t.resize = (_short(transform), _pair(size)[0])


def _center_crop(t: _Translation, transform: Any) -> None:
    if not t.resize:
        t.refuse(transform, "it cuts pixels as they are stored; a Resize(short side) must come before")
    elif _set_crop(t, transform, "center-crop", transform.size):
        t.keys["resize"] = t.resize[1]
        t.resize = None


def _random_crop(t: _Translation, transform: Any) -> None:
    padding = _pair(_value(transform, "padding") or 0)
    fill = _value(transform, "fill", default=0)
    if isinstance(fill, dict):
        fill = list(fill.values())[0] if fill else 0
    if len(set(padding)) != 1 or str(_value(transform, "padding_mode", default="constant")) != "constant" or \
            _value(transform, "pad_if_needed", default=False):
        t.refuse(transform, "only a constant padding, the same on all four sides, without pad_if_needed")
    elif any(float(x) != 0 for x in (fill if isinstance(fill, (list, tuple)) else [fill or 0])):
        t.refuse(transform, "padding is zero pixels")
    elif t.resize:
        t.refuse(transform, f"after {t.resize[0]}: random-crop cuts pixels as they are stored")
    elif _set_crop(t, transform, "random-crop", transform.size):
        t.keys["padding"] = padding[0]


def _flip(t: _Translation, transform: Any, name: str) -> None:
    p = float(_value(transform, "p", default=0.5))
    if name in t.flips or any(other != p for other in t.flips.values()):
        t.refuse(transform, "mirrors have one probability, each once")
    else:
        t.flips[name] = p


def _to_dtype(t: _Translation, transform: Any) -> None:
    dtype, scale = _value(transform, "dtype"), _value(transform, "scale", default=True)
    name = str(dtype).rsplit(".", 1)[-1]
    names = {"float32": "f32", "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16", "uint8": "u8"}
    if isinstance(dtype, dict) or name not in names:
        t.refuse(transform, "pictures become uint8, float32, float16 or bfloat16")
    elif names[name] != "u8" and not scale:
        t.refuse(transform, "floats are always value / 255 (scale=True)")
    elif names[name] == "u8" and t.is_float:
        t.refuse(transform, "back to integers")
    elif names[name] != "u8":
        t.keys["dtype"] = names[name]
        t.is_float = True


def _normalize(t: _Translation, transform: Any) -> None:
    mean, std = ([float(x) for x in values] for values in (transform.mean, transform.std))
    if "normalize" in t.keys:
        t.refuse(transform, "a second Normalize")
    elif not t.is_float:
        t.refuse(transform, "before the conversion to floats (ToTensor, or ToDtype with scale=True)")
    elif {len(mean), len(std)} - {1, 3}:
        t.refuse(transform, "one or three channels")
    else:
        t.keys["normalize"] = (tuple(mean * 3)[:3], tuple(std * 3)[:3])


def _color_jitter(t: _Translation, transform: Any) -> None:
    amounts = []
    for name in ("brightness", "contrast", "saturation", "hue"):
        bounds = _value(transform, name)
        centre, least = (0.0, -0.5) if name == "hue" else (1.0, 0.0)
        low, high = (centre, centre) if bounds is None else (float(x) for x in bounds)
        if abs(low - max(least, 2 * centre - high)) > 1e-6:
            t.refuse(transform, f"{name} is drawn from a range around its centre, not from [{low:g}, {high:g}]")
            return
        amounts.append(round(high - centre, 6))
    if t.is_float or {"color-jitter", "grayscale-probability"} & set(t.keys):
        t.refuse(transform, "once, on integers, and before RandomGrayscale")
    elif any(amounts):
        t.keys["color-jitter"] = tuple(amounts)


def _random_grayscale(t: _Translation, transform: Any) -> None:
    if t.is_float or "grayscale-probability" in t.keys:
        t.refuse(transform, "once, and before the conversion to floats")
    else:
        t.keys["grayscale-probability"] = float(_value(transform, "p", default=0.1))


def _random_erasing(t: _Translation, transform: Any) -> None:
    value = _value(transform, "value", default=0)
    near = all(abs(float(a) - b) < 1e-6 for a, b in zip([*transform.scale, *transform.ratio], (0.02, 0.33, 0.3, 3.3)))
    if "erase-probability" in t.keys or not near or isinstance(value, str) or \
            any(float(x) != 0 for x in (value if isinstance(value, (list, tuple)) else [value or 0])):
        t.refuse(transform, "once, with scale (0.02, 0.33), ratio (0.3, 3.3) and value 0")
    else:
        t.keys["erase-probability"] = float(_value(transform, "p", default=0.5))


def _one(t: _Translation, transform: Any) -> None:
    kind = type(transform).__name__
    if kind in _CONTAINERS or isinstance(transform, (list, tuple)):
        for part in _value(transform, "transforms", default=transform):
            _one(t, part)
    elif "erase-probability" in t.keys and kind not in _NOTHING:
        t.refuse(transform, "after RandomErasing, which is the last step")
    elif kind == "RandomResizedCrop":
        _random_resized_crop(t, transform)
    elif kind == "Resize":
        _resize(t, transform)
    elif kind == "CenterCrop":
        _center_crop(t, transform)
    elif kind == "RandomCrop":
        _random_crop(t, transform)
    elif kind == "RandomHorizontalFlip":
        _flip(t, transform, "flip")
    elif kind == "RandomVerticalFlip":
        _flip(t, transform, "flip-vertical")
    elif kind == "ToTensor":
        t.keys.setdefault("dtype", "f32")
        t.is_float = True
    elif kind in ("ToDtype", "ConvertImageDtype", "ConvertDtype"):
        _to_dtype(t, transform)
    elif kind == "Normalize":
        _normalize(t, transform)
    elif kind == "ColorJitter":
        _color_jitter(t, transform)
    elif kind == "RandomGrayscale":
        _random_grayscale(t, transform)
    elif kind == "RandomErasing":
        _random_erasing(t, transform)
    elif kind == "Grayscale":
        if _value(transform, "num_output_channels", default=1) == 1:
            t.keys["color"] = "gray"
        else:
            t.refuse(transform, "gray pictures have one channel")
    elif kind not in _NOTHING:
        t.refuse(transform, "loaderd does not do that; apply it to the batch, on the device (docs/pytorch.md)")


def from_torchvision(transform: Any) -> Dict[str, Any]:
    """The arguments of :class:`Loader` that do what a torchvision transform (v1 or v2, a ``Compose`` or one) does::

        loader = loaderd.Loader(path, batch_size=256, **loaderd.from_torchvision(train_transform))

    Translated: ``RandomResizedCrop``, ``Resize`` with ``CenterCrop`` behind it, ``Resize((h, w))``, ``RandomCrop``,
    ``RandomHorizontalFlip``, ``RandomVerticalFlip``, ``ColorJitter``, ``RandomGrayscale``, ``RandomErasing``,
    ``Grayscale``, ``ToTensor``, ``PILToTensor``, ``ToImage``, ``ToDtype``, ``ConvertImageDtype``, ``Normalize``. Random
    choices are drawn from loaderd's own generator: the same distribution, other draws. Raises :class:`LoaderdError`
    that lists everything that cannot be translated, and why.
    """
    t = _Translation()
    _one(t, transform)
    if t.resize:
        t.refused.append(f"{t.resize[0]}: pictures of different sizes make no batch; a CenterCrop must follow")
    if t.refused:
        raise LoaderdError(errno.ENOTSUP, "these transforms have no equivalent in loaderd:\n  "
                           + "\n  ".join(t.refused))
    augment = ([t.crop] if t.crop else []) + list(t.flips)
    if augment:
        t.keys["augment"] = ",".join(augment)
    if t.flips and set(t.flips.values()) != {0.5}:
        t.keys["flip_probability"] = list(t.flips.values())[0]
    return t.keys
