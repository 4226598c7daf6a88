# SPDX-License-Identifier: MIT
"""from_torchvision(): with stand-ins that have torchvision's names and attributes, and with torchvision where it is."""
import errno

import loaderd
import pytest


class Transform:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __repr__(self):
        return type(self).__name__ + "()"


def stand_in(name, **attributes):
    return type(name, (Transform,), {})(**attributes)


def compose(*transforms):
    return stand_in("Compose", transforms=list(transforms))


class Mode:
    def __init__(self, value):
        self.value = value


def crop(**attributes):
    return stand_in("RandomResizedCrop", **{"size": (224, 224), "scale": (0.08, 1.0), "ratio": (0.75, 4 / 3),
                                            "interpolation": Mode("bilinear"), "antialias": True, **attributes})


NORMALIZE = stand_in("Normalize", mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
FLIP = stand_in("RandomHorizontalFlip", p=0.5)
TO_TENSOR = stand_in("ToTensor")


def test_training():
    keys = loaderd.from_torchvision(compose(crop(), FLIP, TO_TENSOR, NORMALIZE))
    assert keys == {"image": 224, "scale": (0.08, 1.0), "ratio": (0.75, 4 / 3), "filter": "bilinear", "dtype": "f32",
                    "normalize": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), "augment": "random-resized-crop,flip"}


def test_evaluation():
    resize = stand_in("Resize", size=256, interpolation=Mode("bicubic"), max_size=None, antialias=True)
    keys = loaderd.from_torchvision(compose(resize, stand_in("CenterCrop", size=(224, 200)), stand_in("ToImage"),
                                            stand_in("ToDtype", dtype="torch.float16", scale=True), NORMALIZE))
    assert keys["resize"] == 256 and keys["image"] == (224, 200) and keys["augment"] == "center-crop"
    assert keys["filter"] == "bicubic" and keys["dtype"] == "f16"


def test_cifar():
    random_crop = stand_in("RandomCrop", size=(32, 32), padding=4, fill=0, padding_mode="constant",
                           pad_if_needed=False)
    flips = [stand_in("RandomHorizontalFlip", p=0.3), stand_in("RandomVerticalFlip", p=0.3)]
    keys = loaderd.from_torchvision(compose(random_crop, *flips))
    assert keys == {"image": 32, "padding": 4, "augment": "random-crop,flip,flip-vertical", "flip_probability": 0.3}


def test_colors():
    jitter = stand_in("ColorJitter", brightness=(0.6, 1.4), contrast=None, saturation=(0.0, 2.5), hue=(-0.1, 0.1))
    gray, erase = stand_in("RandomGrayscale", p=0.2), stand_in("RandomErasing", p=0.25, scale=(0.02, 0.33),
                                                              ratio=(0.3, 3.3), value=0)
    keys = loaderd.from_torchvision(compose(crop(), jitter, gray, TO_TENSOR, NORMALIZE, erase))
    assert keys["color-jitter"] == (0.4, 0.0, 1.5, 0.1)
    assert (keys["grayscale-probability"], keys["erase-probability"]) == (0.2, 0.25)
    for wrong in (stand_in("ColorJitter", brightness=(0.9, 1.4)), stand_in("RandomErasing", p=1, scale=(0.1, 0.2),
                                                                          ratio=(0.3, 3.3), value=0)):
        with pytest.raises(loaderd.LoaderdError):
            loaderd.from_torchvision(wrong)
    for order in ((gray, jitter), (TO_TENSOR, gray), (erase, TO_TENSOR)):
        with pytest.raises(loaderd.LoaderdError):
            loaderd.from_torchvision(compose(*order))


def test_stretch_gray_and_nesting():
    keys = loaderd.from_torchvision(compose(compose(stand_in("Resize", size=(64, 48), interpolation=Mode("nearest"))),
                                            stand_in("Grayscale", num_output_channels=1), stand_in("PILToTensor")))
    assert keys == {"image": (64, 48), "filter": "nearest", "color": "gray", "augment": "stretch"}
    assert loaderd.from_torchvision(crop())["augment"] == "random-resized-crop"


def test_all_that_cannot_be_said_is_named():
    with pytest.raises(loaderd.LoaderdError) as e:
        loaderd.from_torchvision(compose(
            NORMALIZE, stand_in("AugMix"), crop(interpolation=Mode("lanczos")), stand_in("CenterCrop", size=9),
            stand_in("RandomCrop", size=9, padding=[1, 2], fill=0), stand_in("RandomHorizontalFlip", p=0.1),
            stand_in("RandomVerticalFlip", p=0.2), stand_in("ToDtype", dtype="torch.float32", scale=False),
            stand_in("Grayscale", num_output_channels=3), stand_in("Resize", size=256, interpolation=Mode("bilinear"))))
    lines = str(e.value).splitlines()[1:]
    assert e.value.errno == errno.ENOTSUP
    assert [line.split("(")[0].strip() for line in lines] == [
        "Normalize", "AugMix", "RandomResizedCrop", "CenterCrop", "RandomCrop", "RandomVerticalFlip", "ToDtype",
        "Grayscale", "Resize"]


@pytest.mark.parametrize("transforms, word", [
    ([crop(), crop()], "second crop"), ([TO_TENSOR, crop()], "resizes floats"), ([crop(antialias=False)], "antialias"),
    ([TO_TENSOR, NORMALIZE, NORMALIZE], "second Normalize"), ([FLIP, FLIP], "each once"),
    ([stand_in("Resize", size=256, max_size=300)], "max_size"),
    ([stand_in("RandomCrop", size=32, padding=4, fill=128, padding_mode="constant")], "zero"),
    ([stand_in("RandomCrop", size=32, padding=4, fill=0, padding_mode="reflect")], "constant")])
def test_one_reason_each(transforms, word):
    with pytest.raises(loaderd.LoaderdError, match=word):
        loaderd.from_torchvision(compose(*transforms))


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_real_transforms(version):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    if version == "v1":
        from torchvision import transforms as t
        to_float = [t.ToTensor()]
    else:
        from torchvision.transforms import v2 as t
        to_float = [t.ToImage(), t.ToDtype(torch.float32, scale=True)]
    normalize = t.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    keys = loaderd.from_torchvision(t.Compose([t.RandomResizedCrop(224), t.RandomHorizontalFlip(), *to_float,
                                               normalize]))
    assert keys["image"] == 224 and keys["augment"] == "random-resized-crop,flip" and keys["dtype"] == "f32"
    assert keys["scale"] == (0.08, 1.0) and keys["normalize"][0] == (0.485, 0.456, 0.406)
    keys = loaderd.from_torchvision(t.Compose([t.Resize(256), t.CenterCrop(224), *to_float, normalize]))
    assert (keys["resize"], keys["image"], keys["augment"]) == (256, 224, "center-crop")
    keys = loaderd.from_torchvision(t.Compose([t.RandomCrop(32, padding=4), t.RandomVerticalFlip(), *to_float]))
    assert (keys["padding"], keys["image"], keys["augment"]) == (4, 32, "random-crop,flip-vertical")
    keys = loaderd.from_torchvision(t.Compose([t.Resize((8, 9)), t.Grayscale()]))
    assert keys["image"] == (8, 9) and keys["color"] == "gray"
    keys = loaderd.from_torchvision(t.Compose([t.RandomResizedCrop(224), t.ColorJitter(0.4, 1.5, 0, 0.1),
                                               t.RandomGrayscale(0.2), *to_float, normalize, t.RandomErasing(0.25)]))
    assert keys["color-jitter"] == (0.4, 1.5, 0, 0.1)
    assert (keys["grayscale-probability"], keys["erase-probability"]) == (0.2, 0.25)
    with pytest.raises(loaderd.LoaderdError, match="AutoAugment"):
        loaderd.from_torchvision(t.Compose([t.RandomResizedCrop(224), t.AutoAugment()]))


def test_the_keys_are_the_daemons(make):
    """Every key that a translation may give is one that loaderd.conf(5) has."""
    keys = loaderd.from_torchvision(compose(stand_in("RandomCrop", size=8, padding=2, fill=0, padding_mode="constant"),
                                            stand_in("RandomHorizontalFlip", p=0.25), TO_TENSOR, NORMALIZE))
    assert next(iter(make(**keys)))[1].shape == (8, 3, 8, 8)
    jitter = stand_in("ColorJitter", brightness=(0.6, 1.4), contrast=None, saturation=None, hue=None)
    keys = loaderd.from_torchvision(compose(crop(size=4, ratio=(0.9, 1.1)), jitter, stand_in("RandomGrayscale", p=0.2),
                                            TO_TENSOR, stand_in("RandomErasing", p=0.25, scale=(0.02, 0.33),
                                                                ratio=(0.3, 3.3), value=0)))
    assert next(iter(make(**keys)))[1].shape == (8, 3, 4, 4)
