#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The loaders that compare.py compares, one a function, each set up as its own documentation advises for a machine
without a GPU. A function takes a Job and returns an endless iterator over batches: arrays or tensors whose first dimension
is the batch. What it cannot import or build is an exception, whose sentence stands in the table.

Pictures: RandomResizedCrop(224), scale 0.08 to 1, ratio 3/4 to 4/3, bilinear, mirrored every other time, u8, shuffled.
Records: float32 of 3x224x224, shuffled.

Run as a program it is one contender: reads "SECONDS WARM" lines, answers each with samples a second; see compare.py."""
import argparse
import itertools
import json
import math
import os
import random
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

SIZE, SCALE, RATIO = 224, (0.08, 1.0), (3 / 4, 4 / 3)
REPEATS = 50  # times that a list of files names each, so that ends of epochs do not decide
RECORD = (3, SIZE, SIZE)


class Job(NamedTuple):
    folder: str   # of pictures, flat or one level deep
    tar: str      # the same files in a tar, several times
    records: str  # float32 records
    pack: str     # the pictures as a pack of coefficients of ours
    work: str     # for what a peer converts them to
    batch: int
    workers: int


def files_of(folder: str) -> List[str]:
    """Pictures, in one order everywhere."""
    found = []
    for root, _, names in os.walk(folder):
        found += [os.path.join(root, n) for n in names if n.lower().endswith((".jpeg", ".jpg"))]
    return sorted(found)


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def draw_box(width: int, height: int) -> "tuple[int, int, int, int]":
    """torchvision.transforms.RandomResizedCrop.get_params, for loaders that have none: x, y, width, height."""
    for _ in range(10):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


# -- ours ----------------------------------------------------------------------------------------------------------------

def _ours(name: str, job: Job, **arguments: Any) -> Iterator[Any]:
    import loaderd
    return (batch["image"] for batch in forever(loaderd.Loader(
        name, batch_size=job.batch, shuffle=True, as_dict=True, zero_copy=True, verbose=False, last="drop",
        keys={"workers": str(job.workers)}, **arguments)))


def loaderd_files(job: Job) -> Iterator[Any]:
    return _ours(job.folder, job, image=SIZE, augment="random-resized-crop,flip")


def loaderd_coefficients(job: Job) -> Iterator[Any]:
    return _ours(job.pack, job, image=SIZE, augment="random-resized-crop,flip")


def loaderd_records(job: Job) -> Iterator[Any]:
    return _ours(job.records, job, record="image:f32[3,224,224]")


# -- PyTorch's DataLoader -------------------------------------------------------------------------------------------------

def _dataloader(dataset: Any, job: Job) -> Iterator[Any]:
    from torch.utils.data import DataLoader
    return forever(DataLoader(dataset, batch_size=job.batch, shuffle=True, drop_last=True, num_workers=job.workers,
                              persistent_workers=True, prefetch_factor=2))


class Pictures:
    """A map-style dataset: `decode` makes a u8 picture of a path."""

    def __init__(self, folder: str, decode: Callable[[str], Any]):
        self.paths, self.decode = files_of(folder) * REPEATS, decode

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        return self.decode(self.paths[i])


class ByPil:
    def __init__(self) -> None:
        from torchvision import transforms
        self.transform = transforms.Compose([transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(),
                                             transforms.PILToTensor()])

    def __call__(self, path: str) -> Any:
        from PIL import Image
        with open(path, "rb") as file:
            return self.transform(Image.open(file).convert("RGB"))


class ByTorchvision:
    def __init__(self) -> None:
        from torchvision.transforms import v2
        self.transform = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])

    def __call__(self, path: str) -> Any:
        from torchvision.io import ImageReadMode, decode_jpeg, read_file
        return self.transform(decode_jpeg(read_file(path), mode=ImageReadMode.RGB))


class BySimplejpeg:
    """simplejpeg decodes, cv2 resizes (INTER_LINEAR, without antialiasing: the fastest that people use)."""

    def __init__(self) -> None:
        import cv2
        import simplejpeg
        self.modules: Optional[tuple] = None
        cv2.setNumThreads(0)
        assert simplejpeg

    def __call__(self, path: str) -> Any:
        import cv2
        import simplejpeg
        import torch
        if self.modules is None:
            cv2.setNumThreads(0)
            self.modules = (cv2,)
        with open(path, "rb") as file:
            pixels = simplejpeg.decode_jpeg(file.read(), colorspace="RGB")
        x, y, w, h = draw_box(pixels.shape[1], pixels.shape[0])
        out = cv2.resize(pixels[y:y + h, x:x + w], (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
        return torch.from_numpy(cv2.flip(out, 1) if random.random() < 0.5 else out)


def dataloader_pil(job: Job) -> Iterator[Any]:
    return _dataloader(Pictures(job.folder, ByPil()), job)


def dataloader_torchvision(job: Job) -> Iterator[Any]:
    return _dataloader(Pictures(job.folder, ByTorchvision()), job)


def dataloader_simplejpeg(job: Job) -> Iterator[Any]:
    return _dataloader(Pictures(job.folder, BySimplejpeg()), job)


class Memmap:
    def __init__(self, path: str):
        self.path, self.data = path, None
        self.count = os.path.getsize(path) // (4 * math.prod(RECORD))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        import numpy
        import torch
        if self.data is None:
            self.data = numpy.memmap(self.path, dtype=numpy.float32, mode="r", shape=(self.count, *RECORD))
        return torch.from_numpy(numpy.array(self.data[i]))


def dataloader_memmap(job: Job) -> Iterator[Any]:
    return _dataloader(Memmap(job.records), job)


# -- NVIDIA DALI, CPU pipeline --------------------------------------------------------------------------------------------

def dali(job: Job) -> Iterator[Any]:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=job.batch, num_threads=job.workers, device_id=None, prefetch_queue_depth=2)
    def pictures() -> Any:
        encoded, _ = fn.readers.file(files=files_of(job.folder), random_shuffle=True, name="reader")
        crop = fn.decoders.image_random_crop(encoded, device="cpu", output_type=types.RGB, random_area=list(SCALE),
                                             random_aspect_ratio=list(RATIO), num_attempts=10)
        out = fn.resize(crop, resize_x=SIZE, resize_y=SIZE, interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(out, horizontal=fn.random.coin_flip(probability=0.5))

    pipeline = pictures()
    pipeline.build()

    def run() -> Iterator[Any]:
        while True:
            yield pipeline.run()[0].as_array()
    return run()


# -- SPDL ------------------------------------------------------------------------------------------------------------------

def spdl(job: Job) -> Iterator[Any]:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    paths = files_of(job.folder)

    def source() -> Iterator[List[str]]:
        while True:
            yield [random.choice(paths) for _ in range(job.batch)]

    def load(batch: List[str]) -> Any:
        frames = []
        for path in batch:
            packets = spdl.io.demux_image(path)
            x, y, w, h = draw_box(packets.width, packets.height)
            mirror = "hflip," if random.random() < 0.5 else ""
            frames.append(spdl.io.decode_packets(packets, filter_desc=(
                f"crop={w}:{h}:{x}:{y}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear,{mirror}format=pix_fmts=rgb24")))
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    pipeline = (PipelineBuilder().add_source(source()).pipe(load, concurrency=job.workers).add_sink(2)
                .build(num_threads=job.workers))

    def run() -> Iterator[Any]:
        with pipeline.auto_stop():
            yield from pipeline
    return run()


# -- WebDataset --------------------------------------------------------------------------------------------------------------

def webdataset(job: Job) -> Iterator[Any]:
    import webdataset
    decode = ByPil().transform
    dataset = (webdataset.WebDataset([job.tar] * max(job.workers, 1), resampled=True, shardshuffle=False)
               .shuffle(1000).decode("pilrgb").to_tuple("jpg").map_tuple(decode).batched(job.batch))
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=job.workers, persistent_workers=True)
    return (batch[0] for batch in forever(loader))


# -- turboloader ---------------------------------------------------------------------------------------------------------------

def turboloader(job: Job) -> Iterator[Any]:
    """Its batches are float32: no u8 is offered for a tar of JPEGs."""
    import turboloader
    loader = turboloader.DataLoader(job.tar, batch_size=job.batch, num_workers=job.workers, shuffle=True, image_size=SIZE,
                                    train_aug=True, antialias=True, output_format="numpy", drop_last=True)

    def run() -> Iterator[Any]:
        for epoch in itertools.count():
            loader.set_epoch(epoch)
            for batch in loader:
                yield batch[0] if isinstance(batch, (tuple, list)) else batch
    return run()


# -- FFCV ------------------------------------------------------------------------------------------------------------------------

class Encoded:
    """What FFCV's writer asks for: (bytes, label)."""

    def __init__(self, folder: str):
        self.paths = files_of(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        from PIL import Image
        return Image.open(self.paths[i]).convert("RGB"), 0


def ffcv(job: Job) -> Iterator[Any]:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor
    from ffcv.writer import DatasetWriter
    path = os.path.join(job.work, "pictures.beton")
    if not os.path.exists(path):
        fields = {"image": RGBImageField(write_mode="jpg", max_resolution=500, jpeg_quality=90), "label": IntField()}
        DatasetWriter(path, fields, num_workers=job.workers).from_indexed_dataset(Encoded(job.folder))
    decoder = RandomResizedCropRGBImageDecoder((SIZE, SIZE), scale=SCALE, ratio=RATIO)
    loader = Loader(path, batch_size=job.batch, num_workers=job.workers, order=OrderOption.RANDOM, drop_last=True,
                    os_cache=True, pipelines={"image": [decoder, RandomHorizontalFlip(), ToTensor()], "label": None})
    return (batch[0] for batch in forever(loader))


class Contender(NamedTuple):
    title: str
    kind: str  # "pictures" or "records"
    open: Callable[[Job], Iterator[Any]]


CONTENDERS: Dict[str, Contender] = {
    "loaderd": Contender("loaderd, the JPEG files", "pictures", loaderd_files),
    "loaderd-coefficients": Contender("loaderd, a pack of coefficients", "pictures", loaderd_coefficients),
    "pil": Contender("PyTorch DataLoader, PIL", "pictures", dataloader_pil),
    "torchvision": Contender("PyTorch DataLoader, torchvision.io", "pictures", dataloader_torchvision),
    "simplejpeg": Contender("PyTorch DataLoader, simplejpeg and cv2 (no antialiasing)", "pictures",
                            dataloader_simplejpeg),
    "dali": Contender("NVIDIA DALI, CPU", "pictures", dali),
    "spdl": Contender("SPDL", "pictures", spdl),
    "webdataset": Contender("WebDataset", "pictures", webdataset),
    "turboloader": Contender("turboloader (float32 out)", "pictures", turboloader),
    "ffcv": Contender("FFCV (pictures encoded again, at most 500 pixels)", "pictures", ffcv),
    "loaderd-records": Contender("loaderd, float32 records", "records", loaderd_records),
    "memmap": Contender("PyTorch DataLoader, numpy.memmap", "records", dataloader_memmap),
}


# -- one contender, as a program ------------------------------------------------------------------------------------------------

class Trainer:
    """A loop that does nothing but launch: small operations one after the other on this thread, as a framework's own
    overhead is where the device is fast. A step takes `milliseconds` on a free core."""

    def __init__(self, milliseconds: float):
        import numpy
        self.numpy, self.array = numpy, numpy.ones(16, dtype=numpy.float32)
        self.operations = 1000
        self.step()
        times = []
        for _ in range(9):
            began = time.thread_time()
            self.step()
            times.append(time.thread_time() - began)
        self.operations = max(1, int(self.operations * milliseconds / 1e3 / sorted(times)[4]))

    def step(self) -> None:
        for _ in range(self.operations):
            self.numpy.add(self.array, 1.0, out=self.array)


def measure(batches: Iterator[Any], seconds: float, warm: float, trainer: Optional[Trainer]) -> Dict[str, float]:
    """Samples a second between the first batch after `warm` seconds and the first after `seconds` more; and how many
    there were in all."""
    began, start, samples, everything = time.monotonic(), None, 0, 0
    while True:
        batch = next(batches)
        assert tuple(sorted(batch.shape[1:])) == tuple(sorted((3, SIZE, SIZE)))
        float(batch[0].reshape(-1)[0]), float(batch[-1].reshape(-1)[-1])  # records may hold NaN
        if trainer:
            trainer.step()
        everything += len(batch)
        now = time.monotonic()
        if start is None:
            if now - began >= warm:
                start = now
            continue
        samples += len(batch)
        if now - start >= seconds:
            return {"rate": samples / (now - start), "samples": everything}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(CONTENDERS))
    parser.add_argument("job", help="a Job as JSON")
    parser.add_argument("--step-ms", type=float, default=0)
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what loaders print does not belong among the answers
    try:
        batches = CONTENDERS[arguments.name].open(Job(**json.loads(arguments.job)))
        trainer = Trainer(arguments.step_ms) if arguments.step_ms else None
        next(batches)
        print(json.dumps({"ready": True}), file=answers)
        for line in sys.stdin:
            seconds, warm = (float(word) for word in line.split())
            print(json.dumps(measure(batches, seconds, warm, trainer)), file=answers)
    except BaseException as error:  # the table names it
        text = " ".join(str(error).split()) or type(error).__name__
        print(json.dumps({"error": f"{type(error).__name__}: {text}"[:300]}), file=answers)
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
