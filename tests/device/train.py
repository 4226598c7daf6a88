#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training steps on a GPU, fed by one loader: images/s, GPU utilisation and idle share. One row an invocation; the rows
of one run of the machine belong together, and the compiled model is kept in TORCHINDUCTOR_CACHE_DIR between them.

    train.py --data FOLDER --row device                 the same batch over and over, on the device: the ceiling
    train.py --data FOLDER --row torch-pil --workers 15 torch.utils.data.DataLoader, decoding by Pillow
    train.py --data FOLDER --row torch-io  --workers 15 the same by torchvision.io
    train.py --data FOLDER --row loaderd   --workers 8
    train.py --data FOLDER --row synthetic              ours with LOADERD_SYNTHETIC=1: one batch through the same path

    --model resnet50 --batch 256 | --model resnet18 --batch 512    bf16, channels-last, torch.compile unless --eager
    --repeat 60       the pictures of FOLDER (a flat one will do) so many times an epoch
    --seconds 20      measured, behind --warmup steps
    --output FILE     appends the row as a line of JSON; a row that is there already is not measured again

RandomResizedCrop 224 and flip by the loader, u8 to the device, normalised there, for every row. gpu_utilisation is
NVML's share of time in which a kernel ran, gpu_idle_percent the rest; between_steps_percent is what CUDA events saw
between the end of a step and the beginning of the next; of_ceiling_percent compares with the row `device`, where
--output has it. """
import argparse
import json
import os
import sys
import tempfile
import threading
import time

import torch
from torch.nn import functional

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE = 224
EXTENSIONS = (".jpg", ".jpeg")


def find_pictures(folder):
    found = [os.path.join(base, name) for base, _, names in os.walk(os.path.abspath(folder), followlinks=True)
             for name in names if name.lower().endswith(EXTENSIONS)]
    if not found:
        sys.exit(f"no JPEG files in {folder}")
    return sorted(found)


class Pictures(torch.utils.data.Dataset):
    """u8 (3, 224, 224) and a label, as trainers commonly write it."""

    def __init__(self, files, decoder):
        self.files, self.decoder = files, decoder
        from torchvision.transforms import v2
        steps = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
        self.transform = v2.Compose(steps + ([v2.PILToTensor()] if decoder == "pil" else []))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        if self.decoder == "pil":
            from PIL import Image
            with open(path, "rb") as f:
                picture = Image.open(f).convert("RGB")
        else:
            from torchvision import io
            picture = io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)
        return self.transform(picture), index % 1000


def normalize(x, dtype):
    mean = torch.tensor(MEAN, device=x.device).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=x.device).view(1, 3, 1, 1)
    return ((x.float() / 255 - mean) / std).to(dtype)


def forever(loader):
    while True:
        yield from loader


def torch_batches(files, options, device, dtype):
    dataset = Pictures(files, options.row.split("-")[1])
    extra = {"prefetch_factor": 4, "persistent_workers": True} if options.workers else {}
    loader = torch.utils.data.DataLoader(dataset, options.batch, shuffle=True, drop_last=True, pin_memory=device.type ==
                                         "cuda", num_workers=options.workers, **extra)
    for x, y in forever(loader):
        x = x.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        yield normalize(x, dtype), y.to(device, non_blocking=True)


def loaderd_batches(files, options, device, dtype):
    import loaderd
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listing:
        listing.writelines(f"{path}\t{i % 1000}\n" for i, path in enumerate(files))
        listing.flush()
        loader = loaderd.Loader(listing.name, format="list", batch_size=options.batch, device=device, dtype=dtype,
                                normalize=(MEAN, STD), image=SIDE, augment="random-resized-crop,flip", shuffle=True,
                                index="none", keys={"workers": options.workers} if options.workers else {})
        options.loader = loader
        yield from forever(loader)


def device_batches(files, options, device, dtype):
    x = torch.randn(options.batch, 3, SIDE, SIDE, device=device).to(dtype, memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (options.batch,), device=device)
    while True:
        yield x, y


ROWS = {"device": device_batches, "torch-pil": torch_batches, "torch-io": torch_batches, "loaderd": loaderd_batches,
        "synthetic": loaderd_batches}


class Utilisation(threading.Thread):
    """NVML's share of time in which a kernel ran, sampled; None where there is no NVML."""

    def __init__(self, device):
        super().__init__(daemon=True)
        self.samples, self.stopped, self.handle = [], threading.Event(), None
        try:
            import pynvml
            pynvml.nvmlInit()
            self.nvml, self.handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(device.index or 0)
            self.start()
        except Exception as e:  # no GPU, no package, no permission: the row goes without
            print(f"train.py: no GPU utilisation: {e}", file=sys.stderr)

    def run(self):
        while not self.stopped.wait(0.1):
            self.samples.append(self.nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu)

    def mean(self):
        self.stopped.set()
        return round(sum(self.samples) / len(self.samples), 1) if self.samples else None


class Timer:
    """How long the device worked on steps: events around each one's work, behind the wait for its data."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"
        self.pairs = []

    def mark(self):
        if not self.cuda:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self):
        if not self.cuda:
            return sum(b - a for a, b in self.pairs)
        return sum(a.elapsed_time(b) for a, b in self.pairs) / 1e3


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make_step(options, device):
    from torchvision import models
    model = getattr(models, options.model)().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-5)
    forward = model if options.eager else torch.compile(model)

    def step(x, y):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()

    return step


def measure(options, device):
    files = find_pictures(options.data) * options.repeat
    step = make_step(options, device)
    warm = device_batches(files, options, device, torch.bfloat16)
    begin = time.monotonic()
    for _ in range(3):  # compiles
        step(*next(warm))
    synchronize(device)
    compiled = time.monotonic() - begin

    batches = ROWS[options.row](files, options, device, torch.bfloat16)
    for _ in range(options.warmup):
        step(*next(batches))
    synchronize(device)
    timer, utilisation, steps, waited = Timer(device), Utilisation(device), 0, 0.0
    start = time.monotonic()
    while time.monotonic() - start < options.seconds:
        before = time.monotonic()
        x, y = next(batches)
        waited += time.monotonic() - before
        first = timer.mark()
        step(x, y)
        timer.pairs.append((first, timer.mark()))
        steps += 1
        if steps % 8 == 0 and timer.cuda:  # the host runs at most 8 steps ahead
            timer.pairs[-8][1].synchronize()
    synchronize(device)
    seconds = time.monotonic() - start
    busy, in_steps = utilisation.mean(), 100 * timer.seconds() / seconds
    result = {"row": options.row, "model": options.model, "batch": options.batch, "workers": options.workers,
              "images_per_second": round(steps * options.batch / seconds, 1), "gpu_utilisation": busy,
              "gpu_idle_percent": round(max(0.0, 100 - (in_steps if busy is None else busy)), 1),
              "between_steps_percent": round(max(0.0, 100 - in_steps), 1),
              "host_waited_percent": round(100 * waited / seconds, 1), "steps": steps, "seconds": round(seconds, 2),
              "compile_seconds": round(compiled, 1), "torch": torch.__version__,
              "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", "cpus": os.cpu_count()}
    loader = getattr(options, "loader", None)
    if loader is not None:
        result["loader"] = loader.statistics()
    return result


def rows_of(options):
    if not options.output or not os.path.exists(options.output):
        return []
    with open(options.output) as f:
        return [json.loads(line) for line in f if line.strip()]


def find_row(options, **wanted):
    """The newest one with this model and batch, or None."""
    wanted.update(model=options.model, batch=options.batch)
    found = [row for row in rows_of(options) if all(row[key] == value for key, value in wanted.items())]
    return found[-1] if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", required=True, choices=sorted(ROWS))
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=0, help="0: none for torch, all processors for loaderd")
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output")
    options = parser.parse_args()
    if find_row(options, row=options.row, workers=options.workers):  # a run that was cut off goes on
        print(f"{options.row} {options.model} {options.workers}: in {options.output} already")
        return
    if options.row == "synthetic":
        os.environ["LOADERD_SYNTHETIC"] = "1"
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    row = measure(options, device)
    ceiling = find_row(options, row="device")
    if ceiling:
        row["of_ceiling_percent"] = round(100 * row["images_per_second"] / ceiling["images_per_second"], 1)
    print(json.dumps(row), flush=True)
    if options.output:
        with open(options.output, "a") as f:
            f.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
